"""What a simulation yields: one record per job and the use of the cluster over time, also as CSV files."""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import isnan
from pathlib import Path

from msgspec import Struct

from explsched.atomic_file import output
from simulation.traces.trace import ClusterShape


class Ending(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    TIME_LIMIT = "time limit"
    STOPPED = "stopped"  # by the policy, with the job's consent
    ABANDONED = "abandoned"  # by its owner
    FAILED = "failed"  # by itself or with its node; only in real history
    UNFINISHED = "unfinished"  # the simulation ended first


class JobRecord(Struct, frozen=True):
    """What became of one job.

    Attributes:
        job_id: its id in the trace.
        submit_s: when it was submitted.
        start_s: when it first got its GPUs; NaN if it never did.
        end_s: when it left, or the end of the simulation.
        gpus: GPUs of its gang.
        run_s: run time that its work needs when it has its GPUs to itself.
        held_s: time it held its GPUs, all runs together, overheads included.
        lost_gpu_s: work that preemption made it do again, in GPU-seconds; simulated jobs save in time.
        held_gpu_s: GPU-seconds it held, None if it always held `gpus`.
        preemptions: how often it was sent back to the queue.
        user: its owner.
        ending: how it ended.
        gain: share of its possible loss reduction that it reached, None where the trace has no learning curves.
        done_s: work it did, in seconds of running alone; None where all its time counts, up to `run_s`.

    """

    job_id: int
    submit_s: float
    start_s: float
    end_s: float
    gpus: int
    run_s: float
    held_s: float
    preemptions: int = 0
    user: str = ""
    ending: Ending = Ending.COMPLETED
    gain: float | None = None
    held_gpu_s: float | None = None
    lost_gpu_s: float = 0.0
    done_s: float | None = None

    @property
    def spent_gpu_s(self) -> float:
        """GPU-seconds it held."""
        return self.gpus * self.held_s if self.held_gpu_s is None else self.held_gpu_s

    @property
    def started(self) -> bool:
        """Whether it ever got its GPUs."""
        return not isnan(self.start_s)


class SweepReached(Struct, frozen=True):
    """How soon a policy led one sweep to its best. Times from the sweep's first submission.

    Attributes:
        best_s: when a report was within 1 % of the best that any training of the sweep reports; None if none was.
        best_gpu_s: GPU-seconds that the sweep had held by then.
        regret_area: mean normalised regret over the GPU-seconds that all trainings need without interruption, 0 to 1.
            Regret is how far the best report so far is from the best of all, as a share of how far the median first
            report is; 1 before the first report.

    """

    best_s: float | None
    best_gpu_s: float | None
    regret_area: float


class Usage(Struct, frozen=True):
    """The cluster from `time_s` until the next entry's.

    `idle_node_gpus` are the free GPUs of wholly idle nodes, None where it is not known which nodes the jobs use.
    """

    time_s: float
    busy_gpus: int
    idle_node_gpus: int | None
    running_jobs: int
    pending_jobs: int


class TraceOutcome(Struct, frozen=True):
    """A finished simulation. `jobs` in order of (submit time, job id); `usage` in order of time; `events` handled.

    `sweeps` says how soon each sweep came to its best, where the trace has learning curves. `predicted` has, where run
    times are learnt, for each job whether it ran between half and twice the median predicted at its submission, and
    between the quantiles 0.1 and 0.9; None if no similar job had ended by then. `window_s` are the times between which
    the use of the cluster counts, None for all.
    """

    policy: str
    cluster: ClusterShape
    jobs: tuple[JobRecord, ...]
    usage: tuple[Usage, ...]
    events: int
    sweeps: tuple[SweepReached, ...] = ()
    predicted: tuple[tuple[bool, bool] | None, ...] = ()
    window_s: tuple[float, float] | None = None


def span_s(outcome: TraceOutcome) -> tuple[float, float]:
    """The window, or first submission and last end or end of the simulation if that came first; (0, 0) without jobs."""
    if outcome.window_s is not None:
        return outcome.window_s
    if not outcome.jobs:
        return 0.0, 0.0
    return min(job.submit_s for job in outcome.jobs), max(job.end_s for job in outcome.jobs)


def write_jobs_csv(outcome: TraceOutcome, path: Path) -> None:
    """One line for each job, in the outcome's order: `JobRecord` field by field, then `jct_s` and `queue_s`.

    Starts and delays are empty for jobs that never started, JCTs for those that have not ended. Raises `OSError` if the
    file cannot be written.
    """
    names = list(JobRecord.__struct_fields__)
    rows: list[tuple[object, ...]] = [(*names, "jct_s", "queue_s")]
    for job in outcome.jobs:
        cells = ["" if name == "start_s" and not job.started else getattr(job, name) for name in names]
        jct_s = "" if job.ending is Ending.UNFINISHED else job.end_s - job.submit_s
        rows.append((*cells, jct_s, job.start_s - job.submit_s if job.started else ""))
    _write_csv(rows, path)


def write_cluster_csv(outcome: TraceOutcome, path: Path) -> None:
    """One line whenever the cluster changed: `Usage` field by field, then the free GPUs and the jobs that have left.

    It holds until the next line, as the original's cluster.csv (Muri) does. Raises `OSError` if the file cannot be
    written.
    """
    names = list(Usage.__struct_fields__)
    ends_s = sorted(job.end_s for job in outcome.jobs if job.ending is not Ending.UNFINISHED)
    rows: list[tuple[object, ...]] = [(*names, "idle_gpus", "ended_jobs")]
    for entry in outcome.usage:
        cells = ["" if (value := getattr(entry, name)) is None else value for name in names]
        rows.append((*cells, outcome.cluster.gpus - entry.busy_gpus, bisect_right(ends_s, entry.time_s)))
    _write_csv(rows, path)


def _write_csv(rows: Iterable[Sequence[object]], path: Path) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    with output(path) as file:
        file.write(text.getvalue().encode())
