"""Early stopping of exploratory jobs that have nothing left to learn."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.model import Job, JobState
from sched_policy.outlook import outlook
from sched_policy.plan import Stop
from sched_policy.snapshot import Snapshot

MIN_REPORTS = 8
"""A job with fewer reports is never stopped."""


class EarlyStop(Struct, frozen=True):
    """Stop a job that opted in when it has nothing left to learn.

    What it may still improve, even in the optimistic case (mean + 2 standard deviations), is less than a share of its
    sweep's known improvement: `threshold` for a job that would still end behind the best value of its sweep, and
    `leader_threshold` for one that may lead it.

    Attributes:
        threshold: 0 never stops a job that is behind.
        leader_threshold: 0 never stops a job that leads, however flat its curve has become.
        least_share: a job is left alone until it has done this share of its steps. Many trainings stay on a plateau
            before they begin to learn, which no falling curve family can foresee.

    """

    threshold: float = 0.05
    leader_threshold: float = 0.0
    least_share: float = 0.1

    def stops(self, snapshot: Snapshot) -> tuple[Stop, ...]:
        """Jobs of the snapshot that should end now."""
        open_to_it = {job.job_id for job in snapshot.running if _may_stop(job, self.least_share)}
        known = outlook(snapshot.jobs)
        hope = known.remaining + 2 * known.remaining_std
        behind = known.best - hope * known.scale > known.best_of_sweep()
        exhausted = known.measured & (hope < np.where(behind, self.threshold, self.leader_threshold))
        stops = []
        for i in exhausted.nonzero()[0].tolist():
            job = snapshot.jobs[known.rows[i]]
            if job.job_id in open_to_it:
                learns = f"expected to improve by {100 * known.remaining[i]:.2g} % of its sweep"
                stops.append(Stop(job.job_id, f"{learns} and to end behind its best" if behind[i] else learns))
        return tuple(stops)


def _may_stop(job: Job, least_share: float) -> bool:
    exploration = job.exploration
    return (
        exploration is not None
        and exploration.may_stop
        and exploration.sweep is not None
        and job.state is JobState.RUNNING
        and len(job.points) >= MIN_REPORTS
        and job.points[-1].step >= least_share * (job.total_steps or 0)
    )
