"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass

from sched_policy.model import Score, Snapshot
from sched_policy.order.base import best_first


@dataclass(frozen=True, slots=True)
class Fifo:
    """Order of submission."""

    def scores(self, snapshot: Snapshot) -> tuple[Score, ...]:
        """The earlier a job was submitted, the higher its score (seconds of waiting, running included)."""
        jobs = snapshot.jobs
        scores = (
            Score(
                job.job_id,
                snapshot.now_s - job.submit_s,
                f"submitted {snapshot.now_s - job.submit_s:.0f} s ago",
            )
            for job in jobs
        )
        return best_first(scores, jobs)
