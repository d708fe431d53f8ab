"""How long each user's trainings have lately run without showing a curve, those that have ended.

Without that a user could have one short training after the other looked at first, each in a sweep of a new name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from sched_policy.curves import MIN_POINTS
from sched_policy.model import Job
from sched_policy.prior import claims_a_prior

FADES_S = 86_400.0
"""After so long a silent second counts 1/e: about one quantum of trust a day."""

_LEAST_S = 1.0


class SilentRuns:
    """Kept by user, in memory: a restarted daemon trusts each user for one more quantum."""

    def __init__(self) -> None:
        self._silent_s: dict[str, float] = {}
        self._running_s: dict[int, tuple[str, float]] = {}
        self._now_s: float | None = None

    @property
    def by_user(self) -> Mapping[str, float]:
        """Run time in seconds, of users who have any."""
        return self._silent_s

    def note(self, jobs: Iterable[Job], now_s: float) -> None:
        """Take in what a pass sees: all jobs that wait or run, with what they have reported."""
        elapsed_s = 0.0 if self._now_s is None else max(0.0, now_s - self._now_s)
        self._now_s = now_s
        faded = math.exp(-elapsed_s / FADES_S)
        silent_s = {user: faded * past_s for user, past_s in self._silent_s.items() if faded * past_s >= _LEAST_S}
        present = {job.job_id: job for job in jobs}
        for job_id, (user, ran_s) in self._running_s.items():
            if job_id not in present:
                silent_s[user] = silent_s.get(user, 0.0) + ran_s
        self._silent_s = silent_s
        before = self._running_s
        self._running_s = {  # a job that waits again keeps what it had: its owner may have requeued it
            job.job_id: (job.user, max(job.executed_s(now_s), before.get(job.job_id, ("", 0.0))[1]))
            for job in present.values()
            if claims_a_prior(job) and len(job.points) < MIN_POINTS
        }
