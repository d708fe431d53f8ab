"""The figures of an arm, live and simulated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.live_replay.live import LiveJob
from benchmarks.live_replay.workload import CLUSTER
from sched_policy import catalog
from sched_policy.options import PolicyOptions
from sched_policy.simulator import engine
from sched_policy.simulator.settings import Settings
from sched_policy.simulator.trace import Trace


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean JCT and makespan (last end since the first submission) of the jobs that completed."""

    avg_jct_s: float
    makespan_s: float
    preemptions: int


def live(jobs: Sequence[LiveJob]) -> Figures:
    """What the live arm shows."""
    ends = [(job.end_s, job.submit_s) for job in jobs if job.end_s is not None]
    return Figures(fmean(e - s for e, s in ends), max(e for e, _ in ends), sum(job.restarts for job in jobs))


def lost(jobs: Sequence[LiveJob]) -> int:
    """Jobs that did not complete."""
    return sum(job.end_s is None for job in jobs)


def launch_s(jobs: Sequence[LiveJob]) -> float:
    """What a run costs beyond its work (start, imports, cleaning up): mean over the jobs that ran once."""
    costs = [
        job.end_s - job.runs[0].start_s - job.job.run_s for job in jobs if job.end_s is not None and not job.restarts
    ]
    return fmean(costs)


def mean_gap_s(times_s: Sequence[float]) -> float | None:
    """Mean time from one look to the next; None for fewer than two."""
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1) if len(times_s) > 1 else None


def submitted(jobs: Sequence[LiveJob]) -> Trace:
    """The jobs at the times at which they were really submitted: submitting takes its time, too."""
    return Trace.of(replace(job.job, submit_s=job.submit_s) for job in jobs)


def simulated(trace: Trace, policy: str, options: PolicyOptions, settings: Settings, launch_cost_s: float) -> Figures:
    """The same jobs under the convention `slurm`; every run costs `launch_cost_s` more than its work."""
    paid = Trace.of(replace(job, run_s=job.run_s + launch_cost_s) for job in trace.jobs)
    outcome = engine.simulate(paid, CLUSTER, catalog.build(policy, options), settings)
    jct_s = [job.end_s - job.submit_s for job in outcome.jobs]
    return Figures(fmean(jct_s), max(job.end_s for job in outcome.jobs), sum(job.preemptions for job in outcome.jobs))


def error(simulated_s: float, live_s: float) -> float:
    """Relative difference of the simulated figure from the live one, signed."""
    return simulated_s / live_s - 1.0
