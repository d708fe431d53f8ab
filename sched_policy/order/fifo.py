"""First in, first out."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot


class Fifo(Struct, frozen=True):
    """Order of submission."""

    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """The earlier a job was submitted, the higher its score (seconds since then)."""
        since_s = snapshot.now_s - snapshot.columns.submit_s
        return Ranking(snapshot, since_s, lambda row: f"submitted {since_s[row]:.0f} s ago")
