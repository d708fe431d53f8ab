"""What goes on: `sexplsched status`.

As `explain` and `plan` it shows the state that the daemon publishes, and looks itself without one.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from msgspec import to_builtins

from explsched.cli import config_option, json_option, known_users, own_name
from explsched.errors import ExplschedError, UnknownNameError
from explsched.tables import Column, lines, room
from sched_policy.model import JobState
from slurm_plugin import config as configuration
from slurm_plugin.cli.cluster_state import NoJobError, current, fresh_option, job_number, remembered, tell_source
from slurm_plugin.state.published import COLUMNS, JobRow, State

_EXAMPLES = """\b
examples:
  sexplsched status --me
  sexplsched status --sweep digits --iterate 30
"""
_DEFAULT_FORMAT = "jobid,partition,name,user,state,gpus,step,metric,utility,planned,reason"
_SWEEP_FORMAT = "jobid,state,gpus,step,metric,params,utility,planned,reason"
_COUNTS = frozenset({"gpus", "tasks", "restarts", "preempted", "malformed", "params_changed"})
_NUMBERS = _COUNTS | {"utility", "score", "gpu_hours", "lost_gpu_s"}
_WIDTH = re.compile(r"[1-9][0-9]{0,3}")
_EMPTY = (None, "", "-")


_ALONE = "="
"""Before the id of a part that was asked for by its own name, whose record may have the id of its array or job."""


def _job_ids(_ctx: click.Context, _param: click.Parameter, text: str | None) -> frozenset[str] | None:
    """As `_values` has them: an id stands for a whole array or heterogeneous job, as in squeue, `4711_3` for a part."""
    words = text.split(",") if text else ()
    return frozenset(_ALONE * (not word.strip().isdecimal()) + str(job_number(word)) for word in words) or None


@click.command(epilog=_EXAMPLES)
@click.option("-j", "--jobs", callback=_job_ids, help="Only these job ids, separated by commas; of an array all tasks.")
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
    show_default=f"{_DEFAULT_FORMAT}; with --sweep {_SWEEP_FORMAT}".replace(",", ", "),
    help="Columns as NAME[:WIDTH], ... Without a width, as wide as needed.",
)
@click.option("-i", "--iterate", type=click.FloatRange(min=1), help="Refresh interval, s.")
@fresh_option
@json_option
@config_option
def status(
    jobs: frozenset[str] | None,
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
    """Show the queue with each job's progress and utility.

    Jobs are listed best score first, with progress, utility and planned start. UTILITY is the expected improvement per
    GPU-hour, in percent of the sweep's known improvement.
    """
    wanted = _wanted(jobs, own_name() if me else users, partitions, states, sweep)
    layout = _layout(columns or (_SWEEP_FORMAT if sweep else _DEFAULT_FORMAT))
    state = current(config_path, fresh=fresh)
    if state.source == "daemon" and _unknown(wanted, state):  # submitted since then, it may be
        state = current(config_path, fresh=True)
    if fault := _unknown(wanted, state):
        if sweep is None or sweep not in _past_sweeps(config_path):
            raise fault
        click.echo(f"sexplsched: no job of it waits or runs: sexplsched sweep show {shlex.quote(sweep)}", err=True)
    while True:
        shown = [row for row in state.jobs if _is_wanted(row, wanted)]
        if as_json:
            click.echo(json.dumps({"written_s": state.written_s, "jobs": to_builtins(shown)}, indent=1))
        else:
            width = room()
            fitting = layout if columns or width is None else _told(layout, shown)
            cells = ([_cell(row, column.title.lower()) for column in fitting] for row in shown)
            click.echo("\n".join(lines(fitting, cells, width, heading=not noheader)))
        tell_source(state, config_path)
        if iterate is None:
            return
        state = _next(iterate, partial(current, config_path, fresh=fresh))


def _next(wait_s: float, look: Callable[[], State]) -> State:
    """What the next look that succeeds sees; those that fail are told, as squeue does: slurmctld may be restarted."""
    while True:
        time.sleep(wait_s)
        try:
            return look()
        except ExplschedError as error:
            click.echo(f"sexplsched: {error}", err=True)


_Wanted = Mapping[str, frozenset[str]]
"""The values of columns that rows are to have; a column that is not here may have any."""


def _wanted(
    jobs: frozenset[str] | None, users: str | None, partitions: str | None, states: str | None, sweep: str | None
) -> _Wanted:
    wanted = {
        "jobid": jobs,
        "user": _words(users),
        "partition": _words(partitions),
        "state": _words(states.upper() if states else None),
        "sweep": frozenset({sweep}) if sweep else None,
    }
    known = {state.value for state in JobState}
    unknown = (wanted["state"] or frozenset()) - known
    if unknown:
        raise click.BadParameter(
            f"{', '.join(unknown)}: accepted are {', '.join(sorted(known))}", param_hint="--states"
        )
    return {key: values for key, values in wanted.items() if values is not None}


def _is_wanted(row: JobRow, wanted: _Wanted) -> bool:
    return all(not values.isdisjoint(_values(row, key)) for key, values in wanted.items())


def _values(row: JobRow, key: str) -> Iterable[str]:
    """What a row is found by. A job that may start in several partitions, as in `short,long`, is in each of them."""
    if key == "jobid":
        return str(row.jobid), str(row.belongs_to), f"{_ALONE}{row.jobid}"
    return row.partition.split(",") if key == "partition" else (str(getattr(row, key)),)


def _unknown(wanted: _Wanted, state: State) -> ExplschedError | None:
    """What to say of the first name that nothing has; None if all are known."""
    rows = state.jobs
    for job_id in sorted(wanted.get("jobid", ())):
        number = int(job_id.removeprefix(_ALONE))
        if state.explanation(number) is None and not any(job_id in _values(row, "jobid") for row in rows):
            return NoJobError(f"job {number} neither waits nor runs")
    try:
        known_users(sorted(wanted.get("user", ())), (row.user for row in rows))
    except UnknownNameError as error:
        return error
    partitions = {name for row in rows for name in row.partition.split(",")}
    partitions |= {name for node in state.nodes for name in node.partitions}
    if not state.nodes:  # Slurm hides them
        partitions |= wanted.get("partition", frozenset())
    for kind, known in (("partition", partitions), ("sweep", {row.sweep for row in rows if row.sweep})):
        for name in sorted(wanted.get(kind, frozenset()) - known):
            return UnknownNameError(kind, name, known)
    return None


def _past_sweeps(config_path: Path | None) -> frozenset[str]:
    """Sweeps that the daemon has noted, and those of one's own jobs that Slurm still remembers."""
    from explsched.job_options.comment import PREFIX  # where nothing is unknown none of it is needed
    from slurm_plugin import job_options
    from slurm_plugin.observation.sweep_record import read as notes

    config = configuration.load(config_path)
    found = {note.sweep for note in notes(config.progress.spool)}
    for record in remembered(config, PREFIX):
        try:
            options = job_options.parse(record.comment)
        except job_options.JobOptionError:
            continue
        if options is not None and options.exploration is not None and options.exploration.sweep:
            found.add(options.exploration.sweep)
    return frozenset(found)


def _words(text: str | None) -> frozenset[str] | None:
    return frozenset(word.strip() for word in text.split(",")) if text else None


def _layout(columns: str) -> list[Column]:
    layout = []
    for column in columns.split(","):
        name, colon, width = column.strip().lower().partition(":")
        if name not in COLUMNS or (colon and _WIDTH.fullmatch(width) is None):
            raise click.BadParameter(
                f"{column!r}: accepted are {', '.join(COLUMNS)}; widths are 1 to 9999", param_hint="--format"
            )
        layout.append(Column(name.upper(), ">" if name in _NUMBERS else "<", int(width) if colon else None))
    return layout


def _told(layout: list[Column], rows: Sequence[JobRow]) -> list[Column]:
    """The columns in which some row has something: on a screen there is no room for the others."""
    return [
        column for column in layout if not rows or any(_cell(row, column.title.lower()) not in _EMPTY for row in rows)
    ]


def _cell(row: JobRow, name: str) -> object:
    if name == "metric" and row.value is not None:
        return f"{row.metric}={row.value:.4g}"
    return getattr(row, name)
