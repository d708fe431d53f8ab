"""Early stopping of exploratory jobs that have nothing left to learn."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from sched_policy.model import Job, JobState
from sched_policy.plan import Stop
from sched_policy.snapshot import Snapshot
from sched_policy.utility import Utility, estimate

MIN_REPORTS = 8
MIN_SHARE = 1 / 3
"""A job with fewer reports, or with a smaller share of its steps behind it, is never stopped.

Many trainings stay on a plateau before they begin to learn, which no falling curve family can foresee.
"""

_ANY_QUANTUM = 1.0  # what a job may still learn until its end does not depend on the quantum


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Stop a job that opted in when it is beyond hope.

    Two things must hold even in the optimistic case (mean + 2 standard deviations):

    * what it may still improve is less than `threshold` of its sweep's known improvement, and
    * it would still end behind the best value of its sweep.

    `threshold` 0 never stops anything.
    """

    threshold: float = 0.01

    def stops(self, snapshot: Snapshot) -> tuple[Stop, ...]:
        """Jobs of the snapshot that should end now."""
        utilities = estimate(snapshot.jobs, _ANY_QUANTUM)
        best: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
        for job in snapshot.jobs:
            utility = utilities.get(job.job_id)
            if utility is not None and utility.best is not None:
                best[_sweep(job)].append(utility.best)
        stops = []
        for job in snapshot.jobs:
            utility = utilities.get(job.job_id)
            if utility is not None and _may_stop(job) and self._exhausted(utility, min(best[_sweep(job)])):
                reason = (
                    f"expected to improve by {100 * utility.remaining:.2g} % of its sweep and to end behind its best"
                )
                stops.append(Stop(job.job_id, reason))
        return tuple(stops)

    def _exhausted(self, utility: Utility, best_of_sweep: float) -> bool:
        if utility.best is None:
            return False
        hope = utility.remaining + 2 * utility.remaining_std
        return hope < self.threshold and utility.best - hope * utility.scale > best_of_sweep


def _sweep(job: Job) -> tuple[str, str | None]:
    return job.user, job.exploration.sweep if job.exploration else None


def _may_stop(job: Job) -> bool:
    exploration = job.exploration
    return (
        exploration is not None
        and exploration.may_stop
        and exploration.sweep is not None
        and job.state is JobState.RUNNING
        and len(job.points) >= MIN_REPORTS
        and job.points[-1].step >= MIN_SHARE * (job.total_steps or 0)
    )
