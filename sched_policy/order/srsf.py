"""Shortest remaining service first (Tiresias, Gu et al., NSDI 2019; Muri's `shortest-gpu`)."""

from __future__ import annotations

from dataclasses import dataclass

from sched_policy.duration import remaining_s
from sched_policy.model import Score, Snapshot
from sched_policy.order.base import best_first


@dataclass(frozen=True, slots=True)
class Srsf:
    """Service is remaining run time times GPUs; a job without a time limit comes last."""

    def scores(self, snapshot: Snapshot) -> tuple[Score, ...]:
        """Minus the remaining GPU-seconds of each job."""
        scores = []
        for job in snapshot.jobs:
            service_gpu_s = remaining_s(job, snapshot.now_s) * max(job.request.total, 1)
            scores.append(Score(job.job_id, -service_gpu_s, f"{service_gpu_s:.0f} GPU-seconds remain"))
        return best_first(scores, snapshot.jobs)
