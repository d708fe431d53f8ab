"""`sexplsched status`: the queue with what the jobs have learned and are worth."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable
from pathlib import Path

import click
from msgspec import to_builtins

from explsched.cli.options import config_option, json_option
from explsched.cli.tables import Column, lines, room
from sched_policy.model import JobState
from slurm_plugin.cli.session import current, fresh_option, tell_source
from slurm_plugin.state.published import COLUMNS, JobRow

_EXAMPLES = """\b
examples:
  sexplsched status --me
  sexplsched status --sweep digits --iterate 30
"""
_DEFAULT_FORMAT = "jobid,partition,name,user,state,gpus,step,metric,utility,planned,reason"
_SWEEP_FORMAT = "jobid,state,gpus,step,metric,params,utility,planned,reason"
_COUNTS = frozenset({"gpus", "tasks", "restarts", "preempted", "malformed", "params_changed"})
_NUMBERS = _COUNTS | {"utility", "score", "gpu_hours", "lost_gpu_s"}


@click.command(epilog=_EXAMPLES)
@click.option("-j", "--jobs", help="Only these job ids, separated by commas.")
@click.option("-u", "--user", "users", help="Only jobs of these users, separated by commas.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option("-p", "--partition", "partitions", help="Only these partitions, separated by commas.")
@click.option("-t", "--states", help="Only these states, separated by commas: PENDING, RUNNING, COMPLETING.")
@click.option("-n", "--sweep", help="Only jobs of this sweep.")
@click.option("-h", "--noheader", is_flag=True, help="No header line.")
@click.option(
    "-o",
    "--format",
    "columns",
    show_default=f"{_DEFAULT_FORMAT}; with --sweep {_SWEEP_FORMAT}",
    help="Columns as NAME[:WIDTH], ... Without a width, as wide as needed.",
)
@click.option("-i", "--iterate", type=click.FloatRange(min=1), help="Repeat every so many seconds.")
@fresh_option
@json_option
@config_option
def status(
    jobs: str | None,
    users: str | None,
    me: bool,  # noqa: FBT001  click passes options by name
    partitions: str | None,
    states: str | None,
    sweep: str | None,
    noheader: bool,  # noqa: FBT001
    columns: str | None,
    iterate: float | None,
    fresh: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    config_path: Path | None,
) -> None:
    """Show the queue and what the jobs learn.

    Jobs are listed best score first, with progress, utility and planned start. UTILITY is the expected improvement in
    percent of what the job's sweep is known to improve, per GPU-hour.
    """
    keep = _filter(jobs, getpass.getuser() if me else users, partitions, states, sweep)
    layout = _layout(columns or (_SWEEP_FORMAT if sweep else _DEFAULT_FORMAT))
    while True:
        state = current(config_path, fresh=fresh)
        shown = [row for row in state.jobs if keep(row)]
        if as_json:
            click.echo(json.dumps({"written_s": state.written_s, "jobs": to_builtins(shown)}, indent=1))
        else:
            cells = ([_cell(row, column.title.lower()) for column in layout] for row in shown)
            click.echo("\n".join(lines(layout, cells, room(), heading=not noheader)))
        tell_source(state, config_path)
        if iterate is None:
            return
        time.sleep(iterate)


def _filter(
    jobs: str | None, users: str | None, partitions: str | None, states: str | None, sweep: str | None
) -> Callable[[JobRow], bool]:
    wanted = {
        "jobid": _words(jobs),
        "user": _words(users),
        "partition": _words(partitions),
        "state": _words(states.upper() if states else None),
        "sweep": frozenset({sweep}) if sweep else None,
    }
    if strange := sorted(word for word in wanted["jobid"] or () if not word.isdecimal()):
        raise click.BadParameter(
            f"{', '.join(map(repr, strange))}: accepted are job ids such as 4711", param_hint="--jobs"
        )
    known = {state.value for state in JobState}
    unknown = (wanted["state"] or frozenset()) - known
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: accepted are {', '.join(sorted(known))}", param_hint="--states"
        )
    return lambda row: all(values is None or str(getattr(row, key)) in values for key, values in wanted.items())


def _words(text: str | None) -> frozenset[str] | None:
    return frozenset(word.strip() for word in text.split(",")) if text else None


def _layout(columns: str) -> list[Column]:
    layout = []
    for column in columns.split(","):
        name, colon, width = column.strip().lower().partition(":")
        if name not in COLUMNS or (colon and not (width.isdigit() and int(width) > 0)):
            raise click.BadParameter(f"{column!r}: accepted are {', '.join(COLUMNS)}", param_hint="--format")
        layout.append(Column(name.upper(), ">" if name in _NUMBERS else "<", int(width) if colon else None))
    return layout


def _cell(row: JobRow, name: str) -> object:
    if name == "metric" and row.value is not None:
        return f"{row.metric}={row.value:.4g}"
    return getattr(row, name)
