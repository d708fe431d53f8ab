"""The group `sexplsched gateway`. It knows the names of the commands and imports only the one that is called."""

from __future__ import annotations

from importlib import import_module

import click

_EXAMPLES = """\b
examples:
  sexplsched gateway up --services services.yaml
  sexplsched gateway status --services services.yaml
  sexplsched gateway scale --services services.yaml NAME 2
"""
_COMMANDS = {
    "address": "The URL of a running gateway.",
    "down": "Drain and cancel a gateway and its replicas.",
    "key": "Make an API key.",
    "logs": "The event log, or what a service's newest replica printed.",
    "reload": "Put an edited services file in force.",
    "scale": "Set the least number of replicas of a service.",
    "services": "The services of a file, and how clients reach them.",
    "status": "Services and replicas of a running gateway.",
    "up": "Start a gateway as a Slurm job.",
    "simulate": "Replay recorded requests under scaling rules.",
}


class _LazyGroup(click.Group):
    """Lists all commands without importing any."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"inference_gateway.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_LazyGroup, epilog=_EXAMPLES)
def gateway() -> None:
    """Serve models from replica jobs, as many as the requests need."""
