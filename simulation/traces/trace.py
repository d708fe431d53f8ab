"""What a trace holds: the jobs, and the rows that could not be read. No files here, see `formats`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from explsched.errors import ExplschedError

if TYPE_CHECKING:  # it would load numpy, which most traces do not need
    from simulation.traces.learning import Learning

_SHOWN_ROWS = 3


class TraceError(ExplschedError):
    """A trace or cluster that cannot be used at all: no header, no readable row, a rejected row under `--strict`."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds one iteration spends in each resource when the job runs alone (Muri, SIGCOMM 2022).

    Stages overlap, so their sum is not the iteration time.
    """

    io_s: float
    gpu_s: float
    net_s: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a site's history tells of a job beyond what is replayed.

    Attributes:
        arrived_s: when it began to wait, in seconds since 1970: submitted and eligible.
        ended_s: when it ended, in seconds since 1970.
        held_back_s: how long it was submitted and not yet eligible (dependencies, --begin, holds, array limits).
        gpu_types: the types of its GPUs, none where the site does not account them.

    """

    arrived_s: float
    ended_s: float
    held_back_s: float
    gpu_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    Attributes:
        job_id: unique within the trace.
        submit_s: seconds since the trace began; the earliest job of a trace need not be at 0.
        gpus: GPUs of the gang.
        run_s: seconds the job runs when it has its GPUs to itself.
        iterations: iterations in `run_s`; 0 where the trace does not say.
        stages: per-iteration stage times, None where the trace does not say.
        declared_s: what the owner declared as run time; used only by the conventions of published simulators.
        time_limit_s: wall-clock limit per run, None if unlimited.
        model: name of the trained model, "" if unknown.
        user: owner, "" if unknown.
        queue: partition or virtual cluster, "" if the trace has none.
        priority: 0 has a resource guarantee, 1 is opportunistic (AntMan).
        line: its line in the file, 0 if it comes from none; used in messages, ignored in comparisons.
        least_gpus: GPUs with which it can run at least, None if only with `gpus`; `most_gpus` likewise at most.
        recorded: what a site's history tells of it, None in other traces; ignored in comparisons.
        learning: what the job learns and when its owner gives it up, None where the trace has no learning curves.

    """

    job_id: int
    submit_s: float
    gpus: int
    run_s: float
    iterations: float = 0.0
    stages: StageTimes | None = None
    declared_s: float | None = None
    time_limit_s: float | None = None
    model: str = ""
    user: str = ""
    queue: str = ""
    priority: int = 0
    line: int = field(default=0, compare=False)
    learning: Learning | None = None
    least_gpus: int | None = None
    most_gpus: int | None = None
    recorded: Recorded | None = field(default=None, compare=False)

    @property
    def iteration_s(self) -> float:
        """Seconds per iteration alone; the whole run where the trace does not count iterations."""
        return self.run_s / self.iterations if self.iterations > 0 else self.run_s


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that was left out: its line number in the file (the header is line 1) and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs in order of (submit time, job id), and the rows that were left out.

    `source_format` names the format it was read from, "" if it comes from no file.
    """

    jobs: tuple[TraceJob, ...]
    rejected: tuple[Rejected, ...] = ()
    source_format: str = field(default="", compare=False)

    @classmethod
    def of(cls, jobs: Iterable[TraceJob], rejected: Iterable[Rejected] = (), source_format: str = "") -> Trace:
        """A trace with its jobs put in order."""
        return cls(tuple(sorted(jobs, key=lambda job: (job.submit_s, job.job_id))), tuple(rejected), source_format)


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """`nodes` equal nodes with `gpus_per_node` GPUs each."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node


def fit(trace: Trace, cluster: ClusterShape) -> Trace:
    """The trace without the jobs that ask for more GPUs than the cluster has; these join the rejected rows."""
    kept = [job for job in trace.jobs if job.gpus <= cluster.gpus]
    if len(kept) == len(trace.jobs):
        return trace
    too_large = (
        Rejected(
            job.line,
            f"gpus: job {job.job_id} asks for {job.gpus:,}, accepted: up to {cluster.gpus:,} "
            f"({cluster.nodes:,} nodes with {cluster.gpus_per_node:,} GPUs)",
        )
        for job in trace.jobs
        if job.gpus > cluster.gpus
    )
    rejected = sorted((*trace.rejected, *too_large), key=lambda row: row.line)
    return Trace.of(kept, rejected, trace.source_format)


def require_all_rows(path: Path, rejected: Sequence[Rejected]) -> None:
    """Raise `TraceError` naming the first rejected rows of a file, if there are any."""
    if rejected:
        raise TraceError(f"{path}: {len(rejected):,} rows cannot be used{first_reasons(rejected)}")


def first_reasons(rejected: Sequence[Rejected]) -> str:
    """The first rejected rows as the end of a message; nothing if there are none."""
    if not rejected:
        return ""
    listed = "; ".join(f"line {row.line}: {row.reason}" for row in rejected[:_SHOWN_ROWS])
    return f": {listed}" + (f"; and {len(rejected) - _SHOWN_ROWS:,} more" if len(rejected) > _SHOWN_ROWS else "")
