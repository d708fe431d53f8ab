"""What every order has in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from sched_policy.model import Job, Score, Snapshot


class Order(Protocol):
    """Ranks the jobs of a snapshot."""

    def scores(self, snapshot: Snapshot) -> tuple[Score, ...]:
        """One score per job, best first, ties broken by (submit time, job id)."""
        ...


def best_first(scores: Iterable[Score], jobs: Iterable[Job]) -> tuple[Score, ...]:
    """Sort scores by falling value; equal values by submit time, then job id."""
    submitted = {job.job_id: job.submit_s for job in jobs}
    return tuple(sorted(scores, key=lambda s: (-s.value, submitted[s.job_id], s.job_id)))
