"""The figures of an outcome. Names, units and meanings are written once, here; tables, JSON and docs take them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from sched_policy.columns import Floats
from sched_policy.simulator.fairness import finish_time_fairness
from sched_policy.simulator.outcome import Ending, JobRecord, Outcome
from sched_policy.simulator.steps import Steps

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

    `figures()` tells each one's unit and meaning. JCT, makespan and p99 are defined as in the simulator of Muri
    (SIGCOMM 2022), so that they compare with published figures.
    """

    jobs: int = _figure("", "jobs that ended")
    completed: int = _figure("", "of these, jobs that finished all their work")
    avg_jct_s: float | None = _figure("s", "mean job completion time, submission to end")
    median_jct_s: float | None = _figure("s", "median job completion time")
    p99_jct_s: float | None = _figure("s", "99th percentile: entry int(0.99 n), from 0, of the n sorted JCTs")
    makespan_s: float | None = _figure("s", "last end, counted from time 0 of the trace")
    avg_queue_s: float | None = _figure("s", "mean time from submission to first start")
    median_queue_s: float | None = _figure("s", "median time from submission to first start")
    p99_queue_s: float | None = _figure("s", "99th percentile of it, as for JCT")
    gpu_utilisation: float | None = _figure("", "held share of all GPUs, mean from first submission to last end")
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
    gain_per_gpu_h: float | None = _figure(
        "1/GPU h", "loss reduction, in shares of what was possible, per GPU-hour held"
    )
    avg_job_gain_per_gpu_h: float | None = _figure("1/GPU h", "the same for each job, mean over jobs")


def figures() -> tuple[Figure, ...]:
    """All fields of `Metrics` in order, with unit and meaning."""
    return tuple(Figure(entry.name, entry.metadata["unit"], entry.metadata["text"]) for entry in fields(Metrics))


def as_dict(metrics: Metrics) -> dict[str, float | None]:
    """The figures by name, ready for JSON."""
    return asdict(metrics)


def measure(outcome: Outcome) -> Metrics:
    """All figures of an outcome. Without jobs the counts are 0 and everything else is None."""
    jobs = outcome.jobs
    submit_s = np.array([job.submit_s for job in jobs])
    end_s = np.array([job.end_s for job in jobs])
    jct_s = np.sort(end_s - submit_s)
    queue_s = np.sort(np.array([job.start_s for job in jobs]) - submit_s)
    rho = finish_time_fairness(outcome)
    use = _use(outcome)
    useful_gpu_h = sum(job.gpus * _useful_s(job) for job in jobs) / 3600 if jobs else None
    explored = [job for job in jobs if job.gain is not None and job.held_s > 0]
    gains = np.array([job.gain for job in explored], dtype=np.float64)
    spent_gpu_h = np.array([job.gpus * job.held_s / 3600 for job in explored])
    return Metrics(
        jobs=len(jobs),
        completed=sum(job.ending is Ending.COMPLETED for job in jobs),
        avg_jct_s=_mean(jct_s),
        median_jct_s=_median(jct_s),
        p99_jct_s=_p99(jct_s),
        makespan_s=_max(end_s),
        avg_queue_s=_mean(queue_s),
        median_queue_s=_median(queue_s),
        p99_queue_s=_p99(queue_s),
        gpu_utilisation=use.utilisation,
        fragmentation=use.fragmentation,
        max_rho=_max(rho),
        avg_rho=_mean(rho),
        unfair_share=_mean((rho > 1 + _ROUNDING).astype(np.float64)),
        preemptions=sum(job.preemptions for job in jobs),
        held_gpu_h=use.held_gpu_h,
        useful_gpu_h=useful_gpu_h,
        wasted_gpu_h=None if use.held_gpu_h is None or useful_gpu_h is None else use.held_gpu_h - useful_gpu_h,
        gain_per_gpu_h=float(gains.sum() / spent_gpu_h.sum()) if explored else None,
        avg_job_gain_per_gpu_h=_mean(gains / spent_gpu_h),
    )


def span_s(outcome: Outcome) -> tuple[float, float]:
    """First submission and last end; (0, 0) without jobs."""
    if not outcome.jobs:
        return 0.0, 0.0
    return min(job.submit_s for job in outcome.jobs), max(job.end_s for job in outcome.jobs)


def busy_gpus(outcome: Outcome) -> Steps:
    """GPUs held by at least one job, over time."""
    return Steps(
        np.array([entry.time_s for entry in outcome.usage]),
        np.array([entry.busy_gpus for entry in outcome.usage], dtype=np.float64),
    )


def utilisation_series(outcome: Outcome, intervals: int) -> tuple[Floats, Floats]:
    """The held share of all GPUs in equal intervals from first submission to last end.

    Returns the edges in seconds, shape (intervals + 1,), and the mean share between them, shape (intervals,); both
    empty where the span is.
    """
    first_s, last_s = span_s(outcome)
    if last_s <= first_s:
        return np.empty(0), np.empty(0)
    edges_s: Floats = np.linspace(first_s, last_s, intervals + 1)
    return edges_s, busy_gpus(outcome).means(edges_s) / outcome.cluster.gpus


@dataclass(frozen=True, slots=True)
class _Use:
    utilisation: float | None = None
    fragmentation: float | None = None
    held_gpu_h: float | None = None


def _use(outcome: Outcome) -> _Use:
    """What became of the cluster's GPU-hours between first submission and last end."""
    first_s, last_s = span_s(outcome)
    if not outcome.usage or last_s <= first_s:
        return _Use()
    span = np.array([first_s, last_s])
    held_gpu_s = float(np.diff(busy_gpus(outcome).integral(span))[0])
    capacity_gpu_s = outcome.cluster.gpus * (last_s - first_s)
    free_gpu_s = capacity_gpu_s - held_gpu_s
    stranded = _stranded_gpus(outcome)
    fragmentation = None
    if stranded is not None and free_gpu_s > _ROUNDING * capacity_gpu_s:
        fragmentation = float(np.diff(stranded.integral(span))[0]) / free_gpu_s
    return _Use(held_gpu_s / capacity_gpu_s, fragmentation, held_gpu_s / 3600)


def _stranded_gpus(outcome: Outcome) -> Steps | None:
    """Free GPUs on partly used nodes over time; None where the nodes are not known."""
    stranded = []
    for entry in outcome.usage:
        if entry.idle_node_gpus is None:
            return None
        stranded.append(outcome.cluster.gpus - entry.busy_gpus - entry.idle_node_gpus)
    return Steps(np.array([entry.time_s for entry in outcome.usage]), np.array(stranded, dtype=np.float64))


def _useful_s(job: JobRecord) -> float:
    return 0.0 if job.ending in _NO_RESULT else min(job.run_s, job.held_s)


def _mean(values: Floats) -> float | None:
    return float(np.mean(values)) if values.size else None


def _median(values: Floats) -> float | None:
    return float(np.median(values)) if values.size else None


def _max(values: Floats) -> float | None:
    return float(np.max(values)) if values.size else None


def _p99(in_order: Floats) -> float | None:
    return float(in_order[int(0.99 * in_order.size)]) if in_order.size else None
