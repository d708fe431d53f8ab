"""The figures of an arm, live and simulated. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.live_replay import log
from benchmarks.live_replay.live import LiveJob
from benchmarks.live_replay.workload import CLUSTER
from sched_policy import catalog
from sched_policy.options import PolicyOptions
from sched_policy.simulator import engine
from sched_policy.simulator.settings import Settings
from sched_policy.simulator.trace import Trace

_PHASES = 5


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


def launch_s(jobs: Sequence[LiveJob]) -> float:
    """What a run costs beyond its work (start, imports, cleaning up): mean over the jobs that ran once."""
    costs = [
        job.end_s - job.runs[0].start_s - job.job.run_s for job in jobs if job.end_s is not None and not job.restarts
    ]
    return fmean(costs)


def main_offset_s(jobs: Sequence[LiveJob], interval_s: float) -> float | None:
    """How much later than backfill Slurm's main scheduler looks at the queue; None where it started nothing."""
    return log.main_offset_s([run for job in jobs for run in job.runs], interval_s)


def submitted(jobs: Sequence[LiveJob]) -> Trace:
    """The jobs at the times at which they were really submitted: submitting takes its time, too."""
    return Trace.of(replace(job.job, submit_s=job.submit_s) for job in jobs)


def simulated(trace: Trace, policy: str, options: PolicyOptions, settings: Settings, launch_cost_s: float) -> Figures:
    """The same jobs under the convention `slurm`; every run costs `launch_cost_s` more than its work.

    How the intervals lie to the submissions is chance: these are means over several of such phases.
    """
    found = [
        _simulated(trace, phase * settings.interval_s / _PHASES, policy, options, settings, launch_cost_s)
        for phase in range(_PHASES)
    ]
    return Figures(
        fmean(f.avg_jct_s for f in found), fmean(f.makespan_s for f in found), fmean(f.preemptions for f in found)
    )


def _simulated(
    trace: Trace, phase_s: float, policy: str, options: PolicyOptions, settings: Settings, launch_cost_s: float
) -> Figures:
    shifted = Trace.of(
        replace(job, submit_s=job.submit_s + phase_s, run_s=job.run_s + launch_cost_s) for job in trace.jobs
    )
    outcome = engine.simulate(shifted, CLUSTER, catalog.build(policy, options), settings)
    jct_s = [job.end_s - job.submit_s for job in outcome.jobs]
    last_s = max(job.end_s for job in outcome.jobs)
    return Figures(fmean(jct_s), last_s - phase_s, sum(job.preemptions for job in outcome.jobs))


def error(simulated_s: float, live_s: float) -> float:
    """Relative difference of the simulated figure from the live one, signed."""
    return simulated_s / live_s - 1.0
