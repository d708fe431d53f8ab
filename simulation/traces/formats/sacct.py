"""A site's own history, as Slurm's sacct prints it: jobs with their runs. An admin makes the file with `COMMAND`.

Slurm keeps one record per run. A requeued job has several rows with one id, each with the time of its requeue as Submit
(sacct(1), field Submit); a heterogeneous job has one row per component. Ids may be given again after a reset. Seen on
Slurm 22.05: a job that is resized gets a new row, too, with the time of the change as Submit and the old Start; a job
that is requeued after its end has its first row rewritten, as if it had run until the requeue; one that is cancelled
while its nodes still clean up after a requeue stays REQUEUED for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from explsched import preemption_record
from simulation.traces.formats.sacct_rows import REQUIRED, SacctRow, row_parser
from simulation.traces.formats.table import (
    LONGEST_S,
    MOST_GPUS,
    Format,
    RowError,
    Table,
    collect,
    trace_of,
    with_free_text_last,
)
from simulation.traces.trace import Recorded, Rejected, Trace, TraceError, TraceJob

_MAY_RUN_AGAIN = frozenset({"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RESIZING"})
"""States of a run after which Slurm may run the same job again."""
_FREE_TEXT = frozenset({"jobname", "admincomment", "comment"})


class PastRun(Struct, frozen=True):
    """One run of a job: seconds since 1970, and `ran_s`, its length without the time it was suspended."""

    start_s: float
    end_s: float
    ran_s: float
    gpus: int
    state: str

    @property
    def held_s(self) -> float:
        """How long it held its GPUs, which a suspended job keeps."""
        return self.end_s - self.start_s


class PastJob(Struct, frozen=True):
    """A job that has ended.

    Attributes:
        job_id: Slurm's number; a task of an array has its own.
        submit_s: when it was first submitted, in seconds since 1970.
        eligible_s: when it could first have started, not before `submit_s` (dependencies, --begin, holds).
        end_s: when it ended: with its last run, or when it was cancelled while it waited for another.
        runs: at least one, in order of time. All but the last were cut short: requeued, preempted, node failure.
        requeues: how often it was sent back to the queue.
        state: Slurm's last state of it.
        time_limit_s: its limit per run, None if it had none or its partition's.
        user: its owner.
        queue: its partition.
        name: its name, "" if the file has none.
        lost_gpu_s: work that preemption made it do again, as far as its AdminComment records it.
        line: where its last row stands in the file.
        is_local: its times are those of a local clock, read as if they were UTC.
        gpu_types: the types of its GPUs, none where the site does not account them.

    """

    job_id: int
    submit_s: float
    eligible_s: float
    end_s: float
    runs: tuple[PastRun, ...]
    requeues: int
    state: str
    time_limit_s: float | None
    user: str
    queue: str
    name: str
    line: int
    lost_gpu_s: float = 0.0
    is_local: bool = False
    gpu_types: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """GPUs of its gang, the largest of its runs."""
        return max(run.gpus for run in self.runs)

    @property
    def arrival_s(self) -> float:
        """When it began to wait: submitted and eligible. An admin may have started it before its eligible time."""
        return min(self.eligible_s, self.runs[0].start_s)

    @property
    def ran_s(self) -> float:
        """How long it ran, all runs together."""
        return sum(run.ran_s for run in self.runs)

    @property
    def ran_gpu_s(self) -> float:
        """GPU-seconds that it ran, of each run with its own GPUs."""
        return sum(run.gpus * run.ran_s for run in self.runs)

    @property
    def held_gpu_s(self) -> float:
        """GPU-seconds that it held, of each run with its own GPUs."""
        return sum(run.gpus * run.held_s for run in self.runs)


class PastJobs(Struct, frozen=True):
    """What a file of sacct has: `jobs` in order of their first row, and the rows and jobs that cannot be used.

    `unfinished` are the runs of jobs that have not ended, which are among the latter: one that goes on is as long here
    as it had run when sacct was asked.
    """

    jobs: list[PastJob]
    unfinished: list[PastRun]
    rejected: list[Rejected]


def read_history(table: Table) -> PastJobs:
    """The jobs of an open sacct table.

    Job steps are part of their job and passed over. Without the column JobIDRaw, tasks of arrays get numbers above all
    others in the file, and so does a job whose id another one had before. The last column may be free text with bars.
    Raises `TraceError` if some times are local and others seconds since 1970, as in joined files: jobs would be hours
    apart that ran together.
    """
    if table.header[-1].casefold() in _FREE_TEXT:
        table = with_free_text_last(table)
    found, rejected = collect(table, row_parser(table))
    rows = [row for row in found if row is not None]
    kinds = {row.is_local: row.line for row in rows}
    if len(kinds) == 2:
        raise TraceError(
            f"{table.name}: line {kinds[True]} has local times, line {kinds[False]} seconds since 1970; "
            "print all of them with SLURM_TIME_FORMAT=%s"
        )
    by_id: dict[tuple[int, str], list[SacctRow]] = {}
    for row in rows:
        by_id.setdefault((row.slurm_id.base, row.slurm_id.task), []).append(row)
    spare_id = max((max(row.raw_id or 0, row.slurm_id.base) for row in rows), default=0)
    jobs: list[PastJob] = []
    unfinished: list[PastRun] = []
    taken: set[int] = set()
    for same_id in by_id.values():
        for job_rows in _split_reused_ids(_whole_runs(same_id, rejected)):
            try:
                job = _job(job_rows)
            except RowError as error:
                rejected.append(Rejected(job_rows[-1].line, str(error)))
                if _ended_s(job_rows[-1]) is None:
                    unfinished.extend(run for run in map(_run, job_rows) if run is not None)
                continue
            if not job.job_id or job.job_id in taken:
                spare_id += 1
                job = replace(job, job_id=spare_id)
            taken.add(job.job_id)
            jobs.append(job)
    return PastJobs(jobs, unfinished, rejected)


def _whole_runs(rows: list[SacctRow], rejected: list[Rejected]) -> list[SacctRow]:
    """Rows of one id in order of time: the same run only once, the components of a heterogeneous job as one gang."""
    if len(rows) == 1:
        return rows
    components: dict[int, dict[tuple[float, float | None], SacctRow]] = {}
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


def _gang(components: list[SacctRow]) -> SacctRow:
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
        ran_s=max(row.ran_s for row in components),
        gpus=sum(row.gpus for row in components),
        gpu_types=tuple(name for row in components for name in row.gpu_types),
    )


def _split_reused_ids(rows: list[SacctRow]) -> Iterator[list[SacctRow]]:
    """Split the rows of one id where another job got the id: after an end that was not a requeue."""
    job_rows: list[SacctRow] = []
    for row in rows:
        if job_rows and not (job_rows[-1].state in _MAY_RUN_AGAIN or row.submit_s == job_rows[-1].end_s):
            yield job_rows
            job_rows = []
        job_rows.append(row)
    if job_rows:
        yield job_rows


def _ended_s(last: SacctRow) -> float | None:
    return None if last.state == "RESIZING" else last.end_s


def _job(job_rows: list[SacctRow]) -> PastJob:
    """The job that some rows are the runs of; its id is 0 if the file has no number for it."""
    last = job_rows[-1]
    ended_s = _ended_s(last)
    if ended_s is None:
        raise RowError(f"State: found {last.state}, accepted: jobs that have ended")
    runs = tuple(run for run in map(_run, job_rows) if run is not None)
    if not runs and any(row.start_s is not None and row.start_s == row.end_s for row in job_rows):
        raise RowError("ElapsedRaw: the job ran for less than a second, and sacct tells whole ones")
    if not runs:
        raise RowError(f"Start: the job never ran (State {last.state}), accepted: jobs that did")
    if not 1 <= max(run.gpus for run in runs) <= MOST_GPUS:
        raise RowError("AllocTRES: found no GPUs, accepted: jobs that held some (gres/gpu=1)")
    submit_s = min(row.submit_s for row in job_rows)
    requeues = sum(row.state != "RESIZING" for row in job_rows[:-1]) + (last.state == "REQUEUED")
    return PastJob(
        job_id=job_rows[0].raw_id or (0 if job_rows[0].slurm_id.task else job_rows[0].slurm_id.base),
        submit_s=submit_s,
        eligible_s=max(
            submit_s, min((row.eligible_s for row in job_rows if row.eligible_s is not None), default=submit_s)
        ),
        end_s=max(ended_s, runs[-1].end_s),
        runs=runs,
        requeues=requeues,
        state=last.state,
        time_limit_s=last.time_limit_s,
        user=last.user,
        queue=last.queue,
        name=last.name,
        line=last.line,
        lost_gpu_s=_lost_gpu_s(last, requeues),
        is_local=last.is_local,
        gpu_types=tuple(sorted({name for row in job_rows for name in row.gpu_types})),
    )


def _lost_gpu_s(last: SacctRow, requeues: int) -> float:
    try:
        return preemption_record.read(last.admin_comment, last.submit_s, requeues).lost_gpu_s
    except preemption_record.RecordError as error:
        raise RowError(str(error)) from error


def _run(row: SacctRow) -> PastRun | None:
    if row.start_s is None:
        return None
    end_s = row.start_s + row.ran_s if row.end_s is None else row.end_s
    start_s = max(row.start_s, row.submit_s)
    ran_s = max(row.ran_s - (start_s - row.start_s), 0.0)
    return PastRun(start_s, end_s, ran_s, row.gpus, row.state) if ran_s > 0 else None


COMMAND = """\
SLURM_TIME_FORMAT=%s sacct --allusers --allocations --duplicates \\
  --parsable2 --noconvert --starttime 2026-01-01 --endtime 2026-02-01 \\
  --format=JobID,JobIDRaw,User,Partition,Submit,Eligible,Start,End,\\
ElapsedRaw,State,TimelimitRaw,AllocTRES,ReqTRES,JobName > history.txt"""
"""The command line of an admin (bash).

`SLURM_TIME_FORMAT=%s` prints times as seconds since 1970. Without it they are local times, which are read too, but an
hour is lost or gained where summer time begins or ends. `--duplicates` shows all runs of requeued jobs. GPUs are
counted only where slurm.conf has AccountingStorageTRES=gres/gpu. Only the last column may be free text (JobName,
AdminComment): sacct does not mark a bar within it.
"""


def read(path: Path) -> Trace:
    """The jobs of a site's history that have ended and held GPUs.

    `submit_s` is when the job was submitted and eligible, counted from the earliest job. `run_s` is the time it ran,
    all its runs together: sacct does not say how much of a run that was cut short had to be done again.
    The job's name is its `model`, by which run times are learnt as the daemon learns them.
    Columns User, Partition, JobName, Eligible, ElapsedRaw or Elapsed, TimelimitRaw or Timelimit may be missing, and one
    of JobID and JobIDRaw and one of AllocTRES and ReqTRES. Raises `TraceError` for a file of another kind.
    """
    return FORMAT.read(path)


def _parse(table: Table) -> Trace:
    past = read_history(table)
    first_s = min((job.arrival_s for job in past.jobs), default=0.0)
    jobs = (
        TraceJob(
            job_id=job.job_id,
            submit_s=job.arrival_s - first_s,
            gpus=job.gpus,
            run_s=job.ran_s,
            # Slurm's limit is that of each run; here the job runs once, for the time of all of them.
            time_limit_s=None if job.time_limit_s is None else max(job.time_limit_s, job.ran_s),
            model=job.name,
            user=job.user,
            queue=job.queue,
            line=job.line,
            recorded=Recorded(job.arrival_s, job.end_s, job.arrival_s - job.submit_s, job.gpu_types),
        )
        for job in past.jobs
    )
    return trace_of(jobs, past.rejected, FORMAT.name)


FORMAT = Format("sacct", REQUIRED, _parse)
