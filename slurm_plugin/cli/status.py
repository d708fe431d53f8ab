"""`sexplsched status`: the queue with what the jobs have learned and are worth."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sched_policy.model import Job, JobState
from slurm_plugin.cli.options import config_option, json_option
from slurm_plugin.cli.session import clock, look
from slurm_plugin.progress import JobProgress

if TYPE_CHECKING:
    from slurm_plugin.cli.view import View

_EXAMPLES = """\b
examples:
  sexplsched status --me
  sexplsched status --sweep digits --iterate 30
"""
_DEFAULT_FORMAT = (
    "jobid:10,partition:9,name:16,user:8,state:10,gpus:4,step:11,metric:14,utility:10,planned:19,reason:36"
)
_SHORT = {JobState.PENDING: "PENDING", JobState.RUNNING: "RUNNING", JobState.COMPLETING: "COMPLETING"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. `utility` is in percent of the sweep's known improvement per GPU-hour."""

    jobid: int
    partition: str
    name: str
    user: str
    state: str
    gpus: int
    tasks: int
    sweep: str
    step: str
    metric: str
    value: float | None
    utility: float | None
    score: float | None
    gpu_hours: float
    restarts: int
    planned: str
    reservation: str
    malformed: int
    reason: str


_COLUMNS = tuple(Row.__dataclass_fields__)


def rows(view: View) -> list[Row]:
    """All jobs of the view, best score first."""
    jobs = {job.job_id: job for job in view.seen.snapshot.jobs}
    return [_row(view, jobs[score.job_id]) for score in view.plan.scores]


def _row(view: View, job: Job) -> Row:
    record = view.seen.jobs[job.job_id]
    progress = view.seen.progress.get(job.job_id, JobProgress())
    utility = view.utilities.get(job.job_id)
    promise = view.promises.get(job.job_id)
    starts_now = any(start.job_id == job.job_id for start in view.plan.starts)
    planned_s = view.seen.snapshot.now_s if starts_now else promise.start_s if promise else None
    last = job.points[-1] if job.points else None
    total = f"/{job.total_steps}" if job.total_steps else ""
    return Row(
        jobid=job.job_id,
        partition=job.partition,
        name=job.name,
        user=job.user,
        state=_SHORT[job.state],
        gpus=job.request.total,
        tasks=job.array_tasks,
        sweep=(job.exploration.sweep or "") if job.exploration else "",
        step=f"{last.step}{total}" if last else "-",
        metric=job.exploration.metric if job.exploration else "",
        value=last.value if last else None,
        utility=360_000 * utility.value if utility and utility.measured else None,
        score=view.scores[job.job_id].value,
        gpu_hours=job.request.total * job.executed_s(view.seen.snapshot.now_s) / 3600,
        restarts=job.restarts,
        planned=clock(planned_s) if job.state is JobState.PENDING else "",
        reservation=record.reservation,
        malformed=progress.malformed,
        reason=_reason(view, job, progress),
    )


def _reason(view: View, job: Job, progress: JobProgress) -> str:
    """The most useful thing to know: a fault of the job's own making first, then why it waits, then its worth."""
    fault = view.seen.option_faults.get(job.job_id) or progress.refused
    if fault:
        return fault
    record = view.seen.jobs[job.job_id]
    if job.state is JobState.PENDING and not job.eligible:
        return f"Slurm: {record.reason}"
    return view.scores[job.job_id].reason


@click.command(epilog=_EXAMPLES)
@click.option("-j", "--jobs", help="Only these job ids, separated by commas.")
@click.option("-u", "--user", "users", help="Only jobs of these users, separated by commas.")
@click.option("--me", is_flag=True, help="Only my jobs.")
@click.option("-p", "--partition", "partitions", help="Only these partitions, separated by commas.")
@click.option("-t", "--states", help="Only these states, separated by commas: PENDING, RUNNING, COMPLETING.")
@click.option("-n", "--sweep", help="Only jobs of this sweep.")
@click.option("-h", "--noheader", is_flag=True, help="No header line.")
@click.option(
    "-o", "--format", "columns", default=_DEFAULT_FORMAT, show_default=True, help="Columns as NAME[:WIDTH], ..."
)
@click.option("-i", "--iterate", type=click.FloatRange(min=1), help="Repeat every so many seconds.")
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
    columns: str,
    iterate: float | None,
    as_json: bool,  # noqa: FBT001
    config_path: Path | None,
) -> None:
    """Show jobs, best score first, with progress, utility and planned start.

    UTILITY is the expected improvement in percent of what the job's sweep is known to improve, per GPU-hour.
    """
    keep = _filter(jobs, getpass.getuser() if me else users, partitions, states, sweep)
    layout = _layout(columns)
    while True:
        shown = [row for row in rows(look(config_path)) if keep(row)]
        if as_json:
            click.echo(json.dumps({"jobs": [asdict(row) for row in shown]}, indent=1))
        else:
            click.echo("\n".join(_lines(shown, layout, [] if noheader else [_header(layout)])))
        if iterate is None:
            return
        time.sleep(iterate)


def _filter(
    jobs: str | None, users: str | None, partitions: str | None, states: str | None, sweep: str | None
) -> Callable[[Row], bool]:
    wanted = {
        "jobid": _words(jobs),
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
    return lambda row: all(values is None or str(getattr(row, key)) in values for key, values in wanted.items())


def _words(text: str | None) -> frozenset[str] | None:
    return frozenset(text.split(",")) if text else None


def _layout(columns: str) -> list[tuple[str, int]]:
    layout = []
    for column in columns.split(","):
        name, _, width = column.strip().lower().partition(":")
        if name not in _COLUMNS or not (width or "12").isdigit():
            raise click.BadParameter(f"{column!r}: accepted are {', '.join(_COLUMNS)}", param_hint="--format")
        layout.append((name, int(width or 12)))
    return layout


def _header(layout: list[tuple[str, int]]) -> str:
    return " ".join(f"{name.upper():<{width}.{width}}" for name, width in layout).rstrip()


def _lines(shown: Iterable[Row], layout: list[tuple[str, int]], head: list[str]) -> list[str]:
    return head + [" ".join(_cell(row, name, width) for name, width in layout).rstrip() for row in shown]


def _cell(row: Row, name: str, width: int) -> str:
    value = getattr(row, name)
    if name == "metric" and row.value is not None:
        value = f"{row.metric}={row.value:.4g}"
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    # A name is the user's free text: control characters must not reach a terminal.
    printable = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return f"{printable:<{width}.{width}}"
