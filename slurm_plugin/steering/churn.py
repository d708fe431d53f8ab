"""How often jobs may be interrupted."""

from __future__ import annotations

from msgspec import Struct

from explsched.preemption_record import PreemptionRecord

HOUR_S = 3600.0


class Churn(Struct, frozen=True):
    """What an admin allows: time for a checkpoint, and how often jobs are preempted.

    `most_per_job` is over a job's life, None for any number.
    """

    grace_s: float
    most_per_hour: int
    most_per_job_per_hour: int = 1_000_000
    most_per_job: int | None = None

    def is_spent(self, record: PreemptionRecord, now_s: float) -> bool:
        """Whether a job has been preempted as often as it may be, for now or for good."""
        in_all = self.most_per_job is not None and record.count >= self.most_per_job
        return in_all or record.since(now_s - HOUR_S) >= self.most_per_job_per_hour
