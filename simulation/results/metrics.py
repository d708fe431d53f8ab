"""The figures of a simulation's outcome.

Names, units and meanings are written once, here; tables, JSON and docs take them. Without numpy: importing it would
take longer than measuring a thousand jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain, pairwise
from math import fsum, isclose
from typing import Any

from simulation.results.outcome import Ending, JobRecord, TraceOutcome, span_s
from simulation.results.steps import Steps

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
    gpu_utilisation: float | None = _figure(
        "", "share of the GPUs that jobs held, from first submission to last end or between the times asked for"
    )
    fragmentation: float | None = _figure("", "share of the free GPU-hours that lay on partly used nodes")
    max_rho: float | None = _figure("", "worst finish-time fairness; 1 is fair, above 1 is less than a 1/N share")
    avg_rho: float | None = _figure("", "mean finish-time fairness of the completed jobs")
    unfair_share: float | None = _figure("", "share of the completed jobs with rho above 1")
    preemptions: int = _figure("", "how often jobs were sent back to the queue")
    held_gpu_h: float | None = _figure("GPU h", "GPU-hours held; a GPU that jobs share counts once")
    useful_gpu_h: float | None = _figure(
        "GPU h", "work done, in hours of unshared GPUs; none for failed or timed out jobs"
    )
    wasted_gpu_h: float | None = _figure(
        "GPU h", "held minus useful; below 0 where sharing, or elastic jobs at fewer GPUs, get more out of a GPU"
    )
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
    # What a job did within a window is not known, only what it did in all.
    is_whole = bool(jobs) and outcome.window_s is None
    useful_gpu_h = fsum(_useful_gpu_s(job) for job in jobs) / 3600 if is_whole else None
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
        lost_gpu_h=fsum(job.lost_gpu_s for job in jobs) / 3600 if is_whole else None,
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
    """The use of the cluster between first submission and last end, or in the window."""
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
