"""What every order has in common."""

from __future__ import annotations

from typing import ClassVar, Protocol

from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot


class Order(Protocol):
    """Ranks the jobs of a snapshot. `needs_durations` tells whether it looks at how long jobs will run."""

    needs_durations: ClassVar[bool]

    def rank(self, snapshot: Snapshot) -> Ranking:
        """All jobs, best first, ties broken by (submit time, job id)."""
        ...
