"""The root command `sexplsched`. Commands are registered as entry points."""

from __future__ import annotations

import gc

import click

from explsched.cli.commands import RegisteredCommands
from explsched.entry_points import COMMANDS
from explsched.errors import ExplschedError

_EPILOG = """\
Exit status: 0 success, 1 failure, 2 wrong usage.

\b
examples:
  sexplsched status --me
  sexplsched explain 4711
  sexplsched doctor
"""


@click.group(cls=RegisteredCommands, entry_point_group=COMMANDS, epilog=_EPILOG)
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
