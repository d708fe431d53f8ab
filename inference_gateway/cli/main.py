"""The group `sexplsched gateway`. Its commands are registered as entry points."""

from __future__ import annotations

import click

from explsched.cli.commands import RegisteredCommands
from explsched.entry_points import GATEWAY_COMMANDS

_EXAMPLES = """\b
examples:
  sexplsched gateway up --services services.yaml
  sexplsched gateway status --services services.yaml
  sexplsched gateway scale --services services.yaml NAME 2
"""


@click.group(cls=RegisteredCommands, entry_point_group=GATEWAY_COMMANDS, epilog=_EXAMPLES)
def gateway() -> None:
    """Serve models from replica jobs, as many as the requests need."""
