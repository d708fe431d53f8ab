"""What a simulation yields: one record per job, the use of the cluster over time, and the figures of both.

Names, units and meanings of figures are written once, here; tables, JSON and docs take them. Without numpy: importing
it would take longer than measuring a thousand jobs.
"""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from itertools import accumulate, chain, pairwise
from math import fsum, isclose, isnan
from pathlib import Path
from typing import Any

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
    between the quantiles 0.1 and 0.9; None if no similar job had ended by then.
    """

    policy: str
    cluster: ClusterShape
    jobs: tuple[JobRecord, ...]
    usage: tuple[Usage, ...]
    events: int
    sweeps: tuple[SweepReached, ...] = ()
    predicted: tuple[tuple[bool, bool] | None, ...] = ()


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


_NO_RESULT = (Ending.TIME_LIMIT, Ending.FAILED)
_ROUNDING = 1e-9  # relative: sums of times end a little beside what they should be


def _figure(unit: str, text: str) -> Any:  # noqa: ANN401  what dataclasses.field() is declared to return
    return field(metadata={"unit": unit, "text": text})


@dataclass(frozen=True, slots=True)
class Figure:
    """What one field of `Metrics` is: its name, its unit ("" for none) and its meaning."""

    name: str
    unit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The figures of one outcome. None where a figure has no meaning, such as a mean over no jobs.

    `figures()` has each one's unit and meaning. JCT, makespan and p99 are defined as in the simulator of Muri
    (SIGCOMM 2022), so that they compare with published figures.
    """

    jobs: int = _figure("", "jobs submitted")
    completed: int = _figure("", "of these, jobs that finished all their work")
    avg_jct_s: float | None = _figure("s", "mean job completion time, submission to end, of the jobs that ended")
    median_jct_s: float | None = _figure("s", "median job completion time")
    p99_jct_s: float | None = _figure("s", "99th percentile: entry int(0.99 n), from 0, of the n sorted JCTs")
    makespan_s: float | None = _figure("s", "last end, counted from time 0 of the trace; unknown if a job has none")
    avg_queue_s: float | None = _figure("s", "mean time from submission to first start, of the jobs that started")
    median_queue_s: float | None = _figure("s", "median time from submission to first start")
    p99_queue_s: float | None = _figure("s", "99th percentile of it, as for JCT")
    gpu_utilisation: float | None = _figure("", "share of the GPUs that jobs held, from first submission to last end")
    fragmentation: float | None = _figure("", "share of the free GPU-hours that lay on partly used nodes")
    max_rho: float | None = _figure("", "worst finish-time fairness; 1 is fair, above 1 is less than a 1/N share")
    avg_rho: float | None = _figure("", "mean finish-time fairness of the completed jobs")
    unfair_share: float | None = _figure("", "share of the completed jobs with rho above 1")
    preemptions: int = _figure("", "how often jobs were sent back to the queue")
    held_gpu_h: float | None = _figure("GPU h", "GPU-hours held; a GPU that jobs share counts once")
    useful_gpu_h: float | None = _figure(
        "GPU h", "work done, in hours of unshared GPUs; none for failed or timed out jobs"
    )
    wasted_gpu_h: float | None = _figure("GPU h", "held minus useful; below 0 where sharing gets more out of a GPU")
    lost_gpu_h: float | None = _figure("GPU h", "of these, work that preemption made jobs do again; in a history only")
    gain_per_gpu_h: float | None = _figure(
        "1/GPU h", "loss reduction, in shares of what was possible, per GPU-hour held"
    )
    avg_job_gain_per_gpu_h: float | None = _figure("1/GPU h", "the same for each job, mean over jobs")
    best_reached: float | None = _figure("", "share of the sweeps that reported a model within 1 % of their best")
    avg_best_s: float | None = _figure("s", "mean time to that model, from the sweep's submission, of those that did")
    avg_best_gpu_h: float | None = _figure("GPU h", "mean GPU-hours that a sweep had held by then, of those that did")
    avg_regret_area: float | None = _figure("", "mean regret over the GPU-hours of a sweep's whole work; 0 is best")
    predicted_share: float | None = _figure("", "share of the jobs whose run time could be learnt from similar ones")
    predicted_twice: float | None = _figure("", "of these, share that ran between half and twice the learnt median")
    predicted_inside: float | None = _figure(
        "", "of these, share between the learnt quantiles 0.1 and 0.9; 0.8 is best"
    )


def figures() -> tuple[Figure, ...]:
    """All fields of `Metrics` in order, with unit and meaning."""
    return tuple(Figure(entry.name, entry.metadata["unit"], entry.metadata["text"]) for entry in fields(Metrics))


def as_dict(metrics: Metrics) -> dict[str, float | None]:
    """The figures by name, ready for JSON."""
    return asdict(metrics)


def measure(outcome: TraceOutcome) -> Metrics:
    """All figures of an outcome. Without jobs the counts are 0 and everything else is None."""
    jobs = outcome.jobs
    ended = [job for job in jobs if job.ending is not Ending.UNFINISHED]
    jct_s = sorted(job.end_s - job.submit_s for job in ended)
    queue_s = sorted(job.start_s - job.submit_s for job in jobs if job.started)
    rho = finish_time_fairness(outcome)
    use = _use(outcome)
    useful_gpu_h = fsum(_useful_gpu_s(job) for job in jobs) / 3600 if jobs else None
    explored = [(job.gain, job.spent_gpu_s / 3600) for job in jobs if job.gain is not None and job.held_s > 0]
    return Metrics(
        jobs=len(jobs),
        completed=sum(job.ending is Ending.COMPLETED for job in jobs),
        avg_jct_s=_mean(jct_s),
        median_jct_s=_median(jct_s),
        p99_jct_s=_p99(jct_s),
        makespan_s=max((job.end_s for job in ended), default=None) if len(ended) == len(jobs) else None,
        avg_queue_s=_mean(queue_s),
        median_queue_s=_median(queue_s),
        p99_queue_s=_p99(queue_s),
        gpu_utilisation=use.utilisation,
        fragmentation=use.fragmentation,
        max_rho=max(rho, default=None),
        avg_rho=_mean(rho),
        unfair_share=_mean([float(value > 1 + _ROUNDING) for value in rho]),
        preemptions=sum(job.preemptions for job in jobs),
        held_gpu_h=use.held_gpu_h,
        useful_gpu_h=useful_gpu_h,
        wasted_gpu_h=_wasted(use.held_gpu_h, useful_gpu_h),
        lost_gpu_h=fsum(job.lost_gpu_s for job in jobs) / 3600 if jobs else None,
        gain_per_gpu_h=fsum(gain for gain, _ in explored) / fsum(spent for _, spent in explored) if explored else None,
        avg_job_gain_per_gpu_h=_mean([gain / spent for gain, spent in explored]),
        best_reached=_mean([float(one.best_s is not None) for one in outcome.sweeps]),
        avg_best_s=_mean([one.best_s for one in outcome.sweeps if one.best_s is not None]),
        avg_best_gpu_h=_mean([one.best_gpu_s / 3600 for one in outcome.sweeps if one.best_gpu_s is not None]),
        avg_regret_area=_mean([one.regret_area for one in outcome.sweeps]),
        predicted_share=_mean([float(one is not None) for one in outcome.predicted]),
        predicted_twice=_mean([float(one[0]) for one in outcome.predicted if one]),
        predicted_inside=_mean([float(one[1]) for one in outcome.predicted if one]),
    )


def _wasted(held: float | None, useful: float | None) -> float | None:
    """Held minus useful. Both are sums of times: what rounding leaves of equal ones is nothing."""
    if held is None or useful is None:
        return None
    return 0.0 if isclose(held, useful, rel_tol=_ROUNDING) else held - useful


def span_s(outcome: TraceOutcome) -> tuple[float, float]:
    """First submission and last end, or the end of the simulation if that came first; (0, 0) without jobs."""
    if not outcome.jobs:
        return 0.0, 0.0
    return min(job.submit_s for job in outcome.jobs), max(job.end_s for job in outcome.jobs)


def utilisation_series(outcome: TraceOutcome, intervals: int) -> tuple[list[float], list[float]]:
    """The held share of all GPUs in equal intervals from first submission to last end.

    Returns the edges in seconds, of which there is one more than intervals, and the mean share between them; both are
    empty where the span is.
    """
    first_s, last_s = span_s(outcome)
    if last_s <= first_s:
        return [], []
    edges_s = [first_s + (last_s - first_s) * edge / intervals for edge in range(intervals + 1)]
    busy = _busy_gpus(outcome)
    return edges_s, [busy.mean(*pair) / outcome.cluster.gpus for pair in pairwise(edges_s)]


@dataclass(frozen=True, slots=True)
class _Use:
    """What became of the cluster's GPU-hours."""

    utilisation: float | None = None
    fragmentation: float | None = None
    held_gpu_h: float | None = None


def _use(outcome: TraceOutcome) -> _Use:
    """The use of the cluster between first submission and last end."""
    first_s, last_s = span_s(outcome)
    if not outcome.usage or last_s <= first_s:
        return _Use()
    gpus = outcome.cluster.gpus
    busy_gpus = _busy_gpus(outcome).mean(first_s, last_s)
    stranded = _stranded_gpus(outcome)
    fragmentation = None
    if stranded is not None and gpus - busy_gpus > _ROUNDING * gpus:
        fragmentation = stranded.mean(first_s, last_s) / (gpus - busy_gpus)
    return _Use(busy_gpus / gpus, fragmentation, busy_gpus * (last_s - first_s) / 3600)


def _busy_gpus(outcome: TraceOutcome) -> Steps:
    """GPUs held by at least one job, over time."""
    return Steps([entry.time_s for entry in outcome.usage], [entry.busy_gpus for entry in outcome.usage])


def _stranded_gpus(outcome: TraceOutcome) -> Steps | None:
    """Free GPUs on partly used nodes over time; None where the nodes are not known."""
    stranded = []
    for entry in outcome.usage:
        if entry.idle_node_gpus is None:
            return None
        stranded.append(outcome.cluster.gpus - entry.busy_gpus - entry.idle_node_gpus)
    return Steps([entry.time_s for entry in outcome.usage], stranded)


def _useful_gpu_s(job: JobRecord) -> float:
    if job.ending in _NO_RESULT:
        return 0.0
    return min(job.gpus * job.run_s, job.spent_gpu_s if job.done_s is None else job.gpus * job.done_s)


def _mean(values: Collection[float]) -> float | None:
    return fsum(values) / len(values) if values else None


def _median(in_order: Sequence[float]) -> float | None:
    middle = len(in_order) // 2
    if not in_order:
        return None
    return in_order[middle] if len(in_order) % 2 else (in_order[middle - 1] + in_order[middle]) / 2


def _p99(in_order: Sequence[float]) -> float | None:
    return in_order[int(0.99 * len(in_order))] if in_order else None


def finish_time_fairness(outcome: TraceOutcome) -> list[float]:
    """Rho of every completed job, in the outcome's order; 1 is fair, above 1 the job got less than its share.

    Themis (Mahajan et al., NSDI 2020, section 3) divides a job's time in the shared cluster by its time in a cluster of
    its own with 1/N of the GPUs. Here, with G the GPUs of the cluster and N the mean number of jobs in the system
    (waiting or running, the job itself included) between the job's submission and its end::

        rho = JCT / (run_s * max(1, gpus * N / G))

    A share smaller than the gang slows the job in proportion; a larger one does not make it faster. Jobs that did not
    complete, or need no time, have no rho and are left out.
    """
    active = Steps.of_changes(chain.from_iterable(((job.submit_s, 1.0), (job.end_s, -1.0)) for job in outcome.jobs))
    rho = []
    for job in outcome.jobs:
        if job.ending is Ending.COMPLETED and job.run_s > 0 and job.end_s > job.submit_s:
            sharers = active.mean(job.submit_s, job.end_s)
            alone_s = job.run_s * max(1.0, job.gpus * sharers / outcome.cluster.gpus)
            rho.append((job.end_s - job.submit_s) / alone_s)
    return rho


class Steps:
    """A count over time: `values[i]` holds from `times_s[i]` until `times_s[i + 1]`, the last one for good.

    Before the first time it is 0. Times must not fall; without any the count is 0 throughout.
    """

    __slots__ = ("_area", "_times_s", "_values")

    def __init__(self, times_s: Sequence[float], values: Sequence[float]) -> None:
        """A count from its steps; both sequences have the same length."""
        self._times_s = times_s
        self._values = values
        areas = (
            value * (until_s - from_s) for value, (from_s, until_s) in zip(values, pairwise(times_s), strict=False)
        )
        self._area = list(accumulate(areas, initial=0.0))

    @classmethod
    def of_changes(cls, changes: Iterable[tuple[float, float]]) -> Steps:
        """The count that changes at each (time, by how much), given in any order."""
        ordered = sorted(changes)
        return cls([time_s for time_s, _ in ordered], list(accumulate(by for _, by in ordered)))

    def integral(self, until_s: float) -> float:
        """The count summed over all time until then, in count x seconds."""
        step = bisect_right(self._times_s, until_s) - 1
        if step < 0:
            return 0.0
        return self._area[step] + self._values[step] * (until_s - self._times_s[step])

    def mean(self, from_s: float, until_s: float) -> float:
        """The mean count between two different times."""
        return (self.integral(until_s) - self.integral(from_s)) / (until_s - from_s)
