"""A site's own history: the rows of Slurm's sacct as jobs with their runs. See `sacct` for the command line.

Slurm keeps one record per run. A requeued job has several rows with one id, each with the time of its requeue as Submit
(sacct(1), field Submit); a heterogeneous job has one row per component. Ids may be given again after a reset. Seen on
Slurm 22.05: a job that is resized gets a new row, too, with the time of the change as Submit and the old Start; a job
that is requeued after its end has its first row rewritten, as if it had run until the requeue.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

from explsched import preemption_record
from simulation.traces.formats.cells import LONGEST_S, MOST_GPUS, RowError
from simulation.traces.formats.sacct_rows import Row, row_parser
from simulation.traces.formats.table import Table, collect
from simulation.traces.trace import Rejected

_GOES_ON = frozenset({"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RESIZING"})
"""States of a run after which Slurm may run the same job again."""

_UNFINISHED = frozenset({"REQUEUED", "RESIZING"})
"""States of a run after which Slurm does run the same job again."""


class Run(Struct, frozen=True):
    """One run of a job: seconds since 1970, and `held_s`, its length without the time it was suspended."""

    start_s: float
    end_s: float
    held_s: float
    gpus: int
    state: str


class PastJob(Struct, frozen=True):
    """A job that has ended.

    Attributes:
        job_id: Slurm's number; a task of an array has its own.
        submit_s: when it was first submitted, in seconds since 1970.
        eligible_s: when it could first have started, not before `submit_s` (dependencies, --begin, holds).
        runs: at least one, in order of time. All but the last were cut short: requeued, preempted, node failure.
        state: how it ended, in Slurm's words.
        time_limit_s: its limit per run, None if it had none or its partition's.
        user: its owner.
        queue: its partition.
        lost_gpu_s: work that preemption made it do again, as far as its AdminComment tells.
        line: where its last row stands in the file.

    """

    job_id: int
    submit_s: float
    eligible_s: float
    runs: tuple[Run, ...]
    state: str
    time_limit_s: float | None
    user: str
    queue: str
    line: int
    lost_gpu_s: float = 0.0

    @property
    def gpus(self) -> int:
        """GPUs of its gang, the largest of its runs."""
        return max(run.gpus for run in self.runs)

    @property
    def arrival_s(self) -> float:
        """When it began to wait: submitted and eligible. An admin may have started it before its eligible time."""
        return min(self.eligible_s, self.runs[0].start_s)

    @property
    def held_s(self) -> float:
        """How long it held its GPUs, all runs together."""
        return sum(run.held_s for run in self.runs)


def read_history(table: Table) -> tuple[list[PastJob], list[Rejected]]:
    """The jobs of an open sacct table, in order of their first row, and the rows and jobs that cannot be used.

    Job steps are part of their job and passed over. Without the column JobIDRaw, tasks of arrays get numbers above all
    others in the file, and so does a job whose id another one had before.
    """
    found, rejected = collect(table, row_parser(table))
    rows = [row for row in found if row is not None]
    by_id: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        by_id.setdefault((row.slurm_id.base, row.slurm_id.task), []).append(row)
    spare_id = max((max(row.raw_id or 0, row.slurm_id.base) for row in rows), default=0)
    jobs: list[PastJob] = []
    taken: set[int] = set()
    for same_id in by_id.values():
        for life in _lives(_whole_runs(same_id, rejected)):
            try:
                job = _job(life)
            except RowError as error:
                rejected.append(Rejected(life[-1].line, str(error)))
                continue
            if not job.job_id or job.job_id in taken:
                spare_id += 1
                job = replace(job, job_id=spare_id)
            taken.add(job.job_id)
            jobs.append(job)
    return jobs, rejected


def _whole_runs(rows: list[Row], rejected: list[Rejected]) -> list[Row]:
    """Rows of one id in order of time: the same run only once, the components of a heterogeneous job as one gang."""
    if len(rows) == 1:
        return rows
    components: dict[int, dict[tuple[float, float | None], Row]] = {}
    for row in rows:
        runs = components.setdefault(row.slurm_id.component or 0, {})
        other = runs.get((row.submit_s, row.start_s))
        if other is not None:
            # Files of neighbouring months both hold a job that ran across midnight, ended only in the later one.
            row, other = (row, other) if other.end_s is None else (other, row)
            rejected.append(Rejected(other.line, f"JobID: this run is on line {row.line} as well"))
        runs[row.submit_s, row.start_s] = row
    in_order = [
        sorted(components[component].values(), key=lambda row: (row.submit_s, row.start_s or LONGEST_S))
        for component in sorted(components)
    ]
    return [_gang([row for row in run if row is not None]) for run in zip_longest(*in_order)]


def _gang(components: list[Row]) -> Row:
    """The components of one run as one row."""
    leader = components[0]
    if len(components) == 1:
        return leader
    starts = [row.start_s for row in components if row.start_s is not None]
    ends = [row.end_s for row in components if row.end_s is not None]
    return replace(
        leader,
        start_s=min(starts, default=None),
        end_s=max(ends) if len(ends) == len(components) else None,
        held_s=max(row.held_s for row in components),
        gpus=sum(row.gpus for row in components),
    )


def _lives(rows: list[Row]) -> Iterator[list[Row]]:
    """Split the rows of one id where another job got the id: after an end that was not a requeue."""
    life: list[Row] = []
    for row in rows:
        if life and not (life[-1].state in _GOES_ON or row.submit_s == life[-1].end_s):
            yield life
            life = []
        life.append(row)
    if life:
        yield life


def _job(life: list[Row]) -> PastJob:
    """The job that some rows are the runs of; its id is 0 if the file has no number for it."""
    last = life[-1]
    # sacct does not show a requeued job again before it is eligible.
    if last.end_s is None or last.state in _UNFINISHED:
        raise RowError(f"State: found {last.state}, accepted are jobs that have ended")
    runs = tuple(run for run in map(_run, life) if run is not None)
    if not runs:
        raise RowError(f"Start: the job never ran (State {last.state}), accepted are jobs that did")
    if not 1 <= max(run.gpus for run in runs) <= MOST_GPUS:
        raise RowError("AllocTRES: found no GPUs, accepted are jobs that held some (gres/gpu=1)")
    submit_s = min(row.submit_s for row in life)
    return PastJob(
        job_id=life[0].raw_id or (0 if life[0].slurm_id.task else life[0].slurm_id.base),
        submit_s=submit_s,
        eligible_s=max(submit_s, min((row.eligible_s for row in life if row.eligible_s is not None), default=submit_s)),
        runs=runs,
        state=last.state,
        time_limit_s=last.time_limit_s,
        user=last.user,
        queue=last.queue,
        line=last.line,
        lost_gpu_s=_lost_gpu_s(last, len(life) - 1),
    )


def _lost_gpu_s(last: Row, requeues: int) -> float:
    try:
        return preemption_record.read(last.admin_comment, last.submit_s, requeues).lost_gpu_s
    except preemption_record.RecordError as error:
        raise RowError(str(error)) from error


def _run(row: Row) -> Run | None:
    if row.start_s is None or row.end_s is None:
        return None
    start_s = max(row.start_s, row.submit_s)
    held_s = max(row.held_s - (start_s - row.start_s), 0.0)
    return Run(start_s, row.end_s, held_s, row.gpus, row.state) if held_s > 0 else None
