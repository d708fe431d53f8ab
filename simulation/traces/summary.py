"""What a trace asks for, in figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from simulation.traces.trace import ClusterShape, Rejected, Trace


class RunTimes(Struct, frozen=True):
    """Run times of all jobs, alone on their GPUs."""

    median_s: float
    mean_s: float
    p99_s: float
    max_s: float


class JobsOfSize(Struct, frozen=True):
    """How many jobs have a gang of so many GPUs."""

    gpus: int
    jobs: int


class RejectedRows(Struct, frozen=True):
    """How many rows were left out for what one column holds; `row` where no single column is at fault."""

    column: str
    rows: int


class Summary(Struct, frozen=True):
    """What a trace holds.

    Attributes:
        source_format: the format it was read from.
        jobs: how many.
        span_s: from the first submission to the last.
        work_gpu_s: GPUs x run time of all jobs.
        run: run times, None without jobs.
        gpus: jobs by GPU count, smallest first.
        users: distinct owners that are named.
        queues: distinct queues that are named.
        with_stages: jobs whose stage times are known.
        with_time_limit: jobs that have one.
        rejected: rows left out.
        rejected_by: rows left out by the column at fault, most first.

    """

    source_format: str
    jobs: int
    span_s: float
    work_gpu_s: float
    run: RunTimes | None
    gpus: tuple[JobsOfSize, ...]
    users: int
    queues: int
    with_stages: int
    with_time_limit: int
    rejected: int
    rejected_by: tuple[RejectedRows, ...]

    def load(self, cluster: ClusterShape) -> float | None:
        """Work submitted per time over what the cluster can do; None if all jobs are submitted at once."""
        return self.work_gpu_s / (cluster.gpus * self.span_s) if self.span_s > 0 else None


def summarize(trace: Trace) -> Summary:
    """The figures of a trace."""
    jobs = trace.jobs
    run_s = np.array([job.run_s for job in jobs])
    sizes = Counter(job.gpus for job in jobs)
    return Summary(
        source_format=trace.source_format,
        jobs=len(jobs),
        span_s=jobs[-1].submit_s - jobs[0].submit_s if jobs else 0.0,
        work_gpu_s=math.fsum(job.gpus * job.run_s for job in jobs),
        run=RunTimes(float(np.median(run_s)), float(run_s.mean()), float(np.quantile(run_s, 0.99)), float(run_s.max()))
        if jobs
        else None,
        gpus=tuple(JobsOfSize(gpus, sizes[gpus]) for gpus in sorted(sizes)),
        users=len({job.user for job in jobs if job.user}),
        queues=len({job.queue for job in jobs if job.queue}),
        with_stages=sum(job.stages is not None for job in jobs),
        with_time_limit=sum(job.time_limit_s is not None for job in jobs),
        rejected=len(trace.rejected),
        rejected_by=_by_column(trace.rejected),
    )


def _by_column(rejected: Iterable[Rejected]) -> tuple[RejectedRows, ...]:
    # A reason starts with the column at fault, see `formats.table.RowError`.
    columns = Counter(row.reason.partition(":")[0] for row in rejected)
    return tuple(RejectedRows(name, columns[name]) for name in sorted(columns, key=lambda name: (-columns[name], name)))
