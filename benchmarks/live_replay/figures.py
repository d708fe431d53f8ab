"""The figures of an arm, live and simulated. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.live_replay.live import LiveJob
from benchmarks.live_replay.workload import CLUSTER
from sched_policy import catalog
from sched_policy.catalog import PolicyOptions
from simulation.cluster import engine
from simulation.cluster.settings import Settings
from simulation.traces.trace import ClusterShape, Trace

_DRAWS = 5


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean JCT and makespan (last end since the first submission) of the jobs that completed."""

    avg_jct_s: float
    makespan_s: float
    preemptions: float


def live(jobs: Sequence[LiveJob]) -> Figures:
    """What the live arm shows."""
    ends = [(job.end_s, job.submit_s) for job in jobs if job.end_s is not None]
    return Figures(fmean(e - s for e, s in ends), max(e for e, _ in ends), sum(job.restarts for job in jobs))


def lost(jobs: Sequence[LiveJob]) -> int:
    """Jobs that did not complete."""
    return sum(job.end_s is None for job in jobs)


def launches_s(jobs: Sequence[LiveJob]) -> tuple[float, ...]:
    """What each run cost beyond its work (start, imports, cleaning up), of the jobs that ran once."""
    return tuple(
        job.end_s - job.runs[0].start_s - job.job.run_s for job in jobs if job.end_s is not None and not job.restarts
    )


def mean_gap_s(times_s: Sequence[float]) -> float | None:
    """Mean time from one look to the next; None for fewer than two."""
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None


def submitted(jobs: Sequence[LiveJob]) -> Trace:
    """The jobs at the times at which they were really submitted: submitting takes its time, too."""
    return Trace.of(replace(job.job, submit_s=job.submit_s) for job in jobs)


def simulated(
    trace: Trace,
    policy: str,
    options: PolicyOptions,
    settings: Settings,
    launches_s: Sequence[float],
    cluster: ClusterShape = CLUSTER,
) -> Figures:
    """The same jobs under the convention `slurm`; every run costs what a launch does more than its work.

    What a launch costs is chance, and a hundredth of a second decides whether a job's GPUs are free in time for a look:
    these are means over several draws from the costs `launches_s`.
    """
    found = [_simulated(trace, policy, options, settings, launches_s, cluster, seed) for seed in range(_DRAWS)]
    return Figures(
        fmean(f.avg_jct_s for f in found), fmean(f.makespan_s for f in found), fmean(f.preemptions for f in found)
    )


def _simulated(
    trace: Trace,
    policy: str,
    options: PolicyOptions,
    settings: Settings,
    launches_s: Sequence[float],
    cluster: ClusterShape,
    seed: int,
) -> Figures:
    draw = random.Random(seed)  # noqa: S311  no secret
    paid = Trace.of(replace(job, run_s=job.run_s + draw.choice(launches_s)) for job in trace.jobs)
    outcome = engine.simulate(paid, cluster, catalog.build(policy, options), settings)
    jct_s = [job.end_s - job.submit_s for job in outcome.jobs]
    return Figures(fmean(jct_s), max(job.end_s for job in outcome.jobs), sum(job.preemptions for job in outcome.jobs))


def error(simulated_s: float, live_s: float) -> float:
    """Relative difference of the simulated figure from the live one, signed."""
    return simulated_s / live_s - 1.0
