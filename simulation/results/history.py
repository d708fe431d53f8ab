"""What really happened at a site, in the terms of a simulation, so that the same figures can be taken of both."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from msgspec import Struct

from simulation.results.outcome import Ending, JobRecord, TraceOutcome, Usage
from simulation.traces.formats.sacct import FORMAT, PastJob, PastRun, read_history
from simulation.traces.formats.sacct_rows import SUMMER_TIME
from simulation.traces.formats.table import open_table
from simulation.traces.trace import ClusterShape, Rejected, TraceError, first_reasons

NAME = "history"
"""Name of the policy in the outcome of a history."""

_ENDINGS = {
    "COMPLETED": Ending.COMPLETED,
    "TIMEOUT": Ending.TIME_LIMIT,
    "DEADLINE": Ending.TIME_LIMIT,
    "CANCELLED": Ending.ABANDONED,
    "REQUEUED": Ending.ABANDONED,  # and not back
}


class History(Struct, frozen=True):
    """A site's history: its outcome, the most GPUs that were held at once, and the rows that were left out."""

    outcome: TraceOutcome
    peak_gpus: int
    rejected: tuple[Rejected, ...]


def read(
    path: Path, cluster: ClusterShape | None = None, since_s: float | None = None, until_s: float | None = None
) -> History:
    """The history in a file of sacct, see `formats.sacct`, of jobs that held GPUs and have ended.

    Time 0 is when the first job began to wait, which is when it was submitted and eligible. All of a completed job's
    time counts as its work, except what its AdminComment records as repeated. Requeues count as preemptions. A job that
    had other sizes is one of the largest, which needs the GPU-seconds of all of them. Suspended jobs hold their GPUs.
    Without a cluster, its capacity is taken to be the most GPUs held at once. On which nodes jobs were is not read, so
    there is no fragmentation. The use of the cluster is that from `since_s` to `until_s`, in seconds since 1970, with
    the GPUs of jobs that have not ended, as long as they had run when sacct was asked. Without them it is from the
    first submission to the last end, which lie far outside sacct's window where jobs ran on into it or out of it.
    Raises `TraceError` for a file of another kind, a cluster that is too small, and times without any job.
    """
    with open_table(path) as table:
        FORMAT.require(table)
        found = read_history(table)
    past, rejected = found.jobs, found.rejected
    if not past:
        raise TraceError(f"{path}: no row can be used{first_reasons(rejected)}")
    first_s = min(job.arrival_s for job in past)
    has_window = since_s is not None or until_s is not None
    usage = _usage(past, found.unfinished if has_window else (), first_s)
    peak = max(entry.busy_gpus for entry in usage)
    is_local = any(job.is_local for job in past)
    if cluster is not None and cluster.gpus < peak:
        hint = SUMMER_TIME if is_local else ""
        if has_window and found.unfinished:
            hint += " (some have not ended, for Slurm at least: see `sacctmgr show runawayjobs`)"
        raise TraceError(f"{path}: jobs held {peak:,} GPUs at once, the cluster has {cluster.gpus:,}{hint}")
    jobs = sorted((_record(job, first_s) for job in past), key=lambda job: (job.submit_s, job.job_id))
    events = sum(1 + 2 * len(job.runs) for job in past)
    window_s = None
    if has_window:
        from_s = first_s if since_s is None else _in_file_s(since_s, is_local=is_local)
        to_s = first_s + usage[-1].time_s if until_s is None else _in_file_s(until_s, is_local=is_local)
        from_s, to_s = window_s = from_s - first_s, to_s - first_s
        begins_s, ends_s = usage[0].time_s, usage[-1].time_s
        if max(from_s, begins_s) >= min(to_s, ends_s):
            zone = UTC if is_local else None
            begin, end = (datetime.fromtimestamp(first_s + time_s, zone) for time_s in (begins_s, ends_s))
            raise TraceError(f"{path}: its jobs are from {begin:%FT%T} to {end:%FT%T}, outside the time asked for")
    shape = cluster or ClusterShape(1, peak)
    outcome = TraceOutcome(NAME, shape, tuple(jobs), usage, events, window_s=window_s)
    return History(outcome, peak, tuple(sorted(rejected, key=lambda row: row.line)))


def _in_file_s(time_s: float, *, is_local: bool) -> float:
    """A time as a file spells it: where it has those of a local clock, they are read as if they were UTC."""
    return datetime.fromtimestamp(time_s).replace(tzinfo=UTC).timestamp() if is_local else time_s


def _record(job: PastJob, first_s: float) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        submit_s=job.arrival_s - first_s,
        start_s=job.runs[0].start_s - first_s,
        end_s=job.end_s - first_s,
        gpus=job.gpus,
        run_s=max(0.0, (job.ran_gpu_s - job.lost_gpu_s) / job.gpus),
        held_s=sum(run.held_s for run in job.runs),
        held_gpu_s=sum(run.gpus * run.held_s for run in job.runs),
        preemptions=job.requeues,
        user=job.user,
        ending=_ENDINGS.get(job.state, Ending.FAILED),
        lost_gpu_s=job.lost_gpu_s,
    )


def _usage(past: Iterable[PastJob], unfinished: Iterable[PastRun], first_s: float) -> tuple[Usage, ...]:
    """The GPUs, runs and waiting jobs at every time at which one of them changes."""
    usage: list[Usage] = []
    busy = running = pending = 0
    for time_s, gpus, runs, waits in sorted(chain(_changes(past), _changes_of(unfinished))):
        busy, running, pending = busy + gpus, running + runs, pending + waits
        if usage and usage[-1].time_s == time_s - first_s:
            usage.pop()
        usage.append(Usage(time_s - first_s, busy, None, running, pending))
    return tuple(usage)


def _changes_of(unfinished: Iterable[PastRun]) -> Iterable[tuple[float, int, int, int]]:
    """As `_changes`."""
    for run in unfinished:
        if run.gpus:
            yield run.start_s, run.gpus, 1, 0
            yield run.end_s, -run.gpus, -1, 0


def _changes(past: Iterable[PastJob]) -> Iterable[tuple[float, int, int, int]]:
    """(Time, change of held GPUs, of running jobs, of waiting jobs)."""
    for job in past:
        waits_since_s = job.arrival_s
        for run in job.runs:
            yield waits_since_s, 0, 0, 1
            yield run.start_s, run.gpus, 1, -1
            yield run.end_s, -run.gpus, -1, 0
            waits_since_s = run.end_s
        yield waits_since_s, 0, 0, 1
        yield job.end_s, 0, 0, -1
