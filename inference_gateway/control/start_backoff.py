"""Failed starts: how long to wait before the next, and when to give up.

Replicas that were asked for before the last failure was known belong to the same attempt: eight that fail together are
one failure. After the first failure replicas are started one at a time, until one serves. Submissions that Slurm
refuses (a limit on jobs, a partition that is gone) are repeated ever more rarely, but not given up: they leave no job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_WAIT_S = 5.0
LONGEST_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Attempts:
    """The failed starts and refused submissions of a service in a row, and when the last one was (since the epoch)."""

    failures: int = 0
    last_s: float = 0.0
    refusals: int = 0

    def failed(self, asked_s: float, now_s: float) -> Attempts:
        """After the failure of a replica that was asked for at `asked_s`."""
        if self.failures and asked_s <= self.last_s:
            return self
        return replace(self, failures=self.failures + 1, last_s=now_s)

    def refused(self, asked_s: float, now_s: float) -> Attempts:
        """After Slurm has refused the submission of a replica that was asked for at `asked_s`."""
        if self.refusals and asked_s <= self.last_s:
            return self
        return replace(self, refusals=self.refusals + 1, last_s=now_s)

    def succeeded(self) -> Attempts:
        """After a replica has begun to serve."""
        return Attempts()

    @property
    def wait_s(self) -> float:
        """Time from the last failure to the next start."""
        count = self.failures + self.refusals
        return min(FIRST_WAIT_S * 2.0 ** min(count - 1, 30), LONGEST_WAIT_S) if count else 0.0

    def given_up(self, most: int) -> bool:
        """Whether there were `most` failures in a row: a person has to look."""
        return self.failures >= most

    def startable(self, wanted: int, coming: int, most: int, now_s: float) -> int:
        """How many of `wanted` replicas may be started now, while `coming` are on their way."""
        if not self.failures and not self.refusals:
            return wanted
        if self.given_up(most) or now_s < self.last_s + self.wait_s:
            return 0
        return min(wanted, max(0, 1 - coming))
