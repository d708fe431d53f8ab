"""The root command. It knows the names of the commands and imports only the one that is called."""

from __future__ import annotations

import gc
from difflib import get_close_matches
from importlib import import_module

import click

from explsched.errors import ExplschedError

_EPILOG = """\
Exit status: 0 success, 1 failure, 2 wrong usage.

\b
examples:
  sexplsched status --me
  sexplsched explain 4711
  sexplsched doctor
"""
_COMMANDS = {
    "admin": ("admin", "Install and remove the service, manual, completion and example."),
    "cluster": ("cluster", "A private, real Slurm cluster in a directory."),
    "compare": ("compare", "Replay a trace under several policies, side by side."),
    "colocate": ("colocate", "GPUs that placements need when inference and training share them."),
    "config": ("config_", "Check and show the configuration."),
    "doctor": ("doctor", "What is installed, reachable and permitted."),
    "explain": ("explain", "Why a job waits or runs, and what it is worth."),
    "gateway": ("inference_gateway.cli.main", "Replicas as Slurm jobs, as many as the requests need."),
    "kernels": ("kernels", "What CUDA kernels cost, and who shares GPUs here."),
    "metrics": ("metrics", "The figures of a site's own history."),
    "plan": ("plan", "What the daemon would change now, and why."),
    "policies": ("policies", "The scheduling policies."),
    "simulate": ("simulate", "Replay a trace of jobs under a policy."),
    "status": ("status", "Jobs with progress, utility and planned start."),
    "submit": ("submit", "Submit a task described in a JSON file."),
    "trace": ("trace", "Look at job traces, convert them, and make some."),
}


class _LazyGroup(click.Group):
    """Lists all commands without importing any."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = _COMMANDS[cmd_name][0]
        module = import_module(name if "." in name else f"slurm_plugin.cli.{name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"unknown command {args[0]!r}{hint} (known: {', '.join(sorted(_COMMANDS))})")
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_module, summary) in sorted(_COMMANDS.items())])


@click.group(cls=_LazyGroup, epilog=_EPILOG)
@click.version_option(None, "-V", "--version", package_name="explsched")
def root() -> None:
    """See and steer what explsched does with a Slurm cluster."""


def main() -> None:
    """Entry point of `sexplsched`: errors of ours become one message and exit status 1."""
    gc.set_threshold(100_000)  # most commands end before collecting would pay
    try:
        root(auto_envvar_prefix="SEXPLSCHED", standalone_mode=True)
    except ExplschedError as error:
        click.echo(f"sexplsched: error: {error}", err=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
