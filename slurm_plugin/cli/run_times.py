"""`sexplsched run-times`: how well the site's history tells how long jobs run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
from msgspec import to_builtins

from explsched.cli import MOMENT, config_option, json_option
from explsched.tables import Column, lines, room
from slurm_plugin import config as configuration
from slurm_plugin.client.cli import CliClient
from slurm_plugin.observation.run_times import Coverage, coverage, read_past

_EXAMPLES = """\b
example:
  sexplsched run-times --since 60d

Each job is judged by what was known when it was submitted. Within TWICE: it ran between half and twice the median of
the jobs like it. INSIDE: between their quantiles 0.1 and 0.9, where 0.80 is right. With run_times.history_days in
explsched.yaml the daemon expects of jobs what this tells.
"""
_COLUMNS = (Column("ALIKE IN"), *(Column(title, ">") for title in ("JOBS", "SHARE", "TWICE", "INSIDE")))


@click.command("run-times", epilog=_EXAMPLES)
@click.option("--since", "since_s", type=MOMENT, default="30d", show_default=True, help="90m, 2h, 7d ago, or a date.")
@json_option
@config_option
def run_times(since_s: float, as_json: bool, config_path: Path | None) -> None:  # noqa: FBT001  click passes by name
    """Show what could have been expected of the jobs that sacct knows."""
    config = configuration.load(config_path)
    past = read_past(CliClient(config.slurm.timeout_s).accounting, since_s, time.time())
    found = coverage(past)
    if as_json:
        click.echo(json.dumps(to_builtins(found), indent=1))
        return
    click.echo("\n".join(lines(_COLUMNS, (_cells(line) for line in found), room())))


def _cells(line: Coverage) -> tuple[object, ...]:
    parts = (line.share, line.within_twice, line.within_quantiles)
    return (line.alike_in or "nothing", line.jobs, *("-" if part is None else f"{part:.2f}" for part in parts))
