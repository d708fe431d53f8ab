"""The figures of an arm, live and simulated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from benchmarks.live_replay.live import LiveJob
from benchmarks.live_replay.workload import CLUSTER
from sched_policy import catalog
from sched_policy.options import PolicyOptions
from sched_policy.simulator import engine
from sched_policy.simulator.settings import Settings
from sched_policy.simulator.trace import Trace

_BRIEF_S = 0.3
_SOON = 3.0
_ENOUGH = 10


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
    costs = [job.end_s - job.start_s - job.job.run_s for job in jobs if job.end_s is not None and job.restarts == 0]
    return max(0.0, fmean(costs))


def cycle_s(jobs: Sequence[LiveJob], configured_s: float) -> float:
    """How often Slurm started jobs: mean time from start to start on a node, of jobs much shorter than its cycle.

    Slurm looks for jobs to start at its configured intervals and sometimes when a job ends, so this lies below what is
    configured on an idle host and above it on a loaded one. Counted are jobs that filled their node and ended within a
    second, if the next one on that node had been submitted by then and came soon. With fewer than ten of them the
    configured time is returned.
    """
    by_node: dict[str, list[LiveJob]] = {}
    for job in jobs:
        if job.job.gpus == CLUSTER.gpus_per_node:
            by_node.setdefault(job.nodes, []).append(job)
    gaps: list[float] = []
    for on_node in by_node.values():
        on_node.sort(key=lambda job: (job.start_s, job.end_s is None, job.end_s))
        for earlier, later in pairwise(on_node):
            gap_s = later.start_s - earlier.start_s
            if _is_brief(earlier) and later.submit_s <= earlier.start_s and gap_s <= _SOON * configured_s:
                gaps.append(gap_s)
    return fmean(gaps) if len(gaps) >= _ENOUGH else configured_s


def _is_brief(job: LiveJob) -> bool:
    return job.end_s is not None and job.restarts == 0 and job.job.run_s < _BRIEF_S


def submitted(jobs: Sequence[LiveJob]) -> Trace:
    """The jobs at the times at which they were really submitted: submitting takes its time, too."""
    return Trace.of(replace(job.job, submit_s=job.submit_s) for job in jobs)


def simulated(trace: Trace, policy: str, options: PolicyOptions, settings: Settings, launch_cost_s: float) -> Figures:
    """The same jobs under the convention `slurm`; every run costs `launch_cost_s` more than its work."""
    longer = Trace.of(replace(job, run_s=job.run_s + launch_cost_s) for job in trace.jobs)
    outcome = engine.simulate(longer, CLUSTER, catalog.build(policy, options), settings)
    jct_s = [job.end_s - job.submit_s for job in outcome.jobs]
    return Figures(fmean(jct_s), max(job.end_s for job in outcome.jobs), sum(job.preemptions for job in outcome.jobs))


def error(simulated_s: float, live_s: float) -> float:
    """Relative difference of the simulated figure from the live one, signed."""
    return simulated_s / live_s - 1.0
