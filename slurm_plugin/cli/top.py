"""The queue, sweeps and GPUs on a screen: `sexplsched top`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from explsched.cli import config_option, own_name
from explsched.errors import ExplschedError, with_extra
from explsched.tables import is_terminal
from slurm_plugin.cli.cluster_state import current

_TOP_EXAMPLES = """\b
examples:
  sexplsched top
  sexplsched top --me --iterate 2

Needs Textual, the extra `top`. Keys are as in htop; F1 lists them.
"""


class TopError(ExplschedError):
    """The screen cannot be shown."""


@click.command(epilog=_TOP_EXAMPLES)
@click.option("-u", "--user", help="Only jobs of this user.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option(
    "-i", "--iterate", default=5.0, show_default=True, type=click.FloatRange(min=1), help="Refresh interval, s."
)
@config_option
def top(user: str | None, me: bool, iterate: float, config_path: Path | None) -> None:  # noqa: FBT001  by name
    """Watch queue, sweeps and GPUs in a terminal."""
    if find_spec("textual") is None:
        raise TopError(f"sexplsched top needs Textual: {with_extra('top')}")
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise TopError("sexplsched top needs a terminal; elsewhere: sexplsched status --iterate 5")
    from slurm_plugin.cli.screen import Screen

    Screen(lambda: current(config_path, fresh=False), iterate, own_name() if me else user or "").run()
