"""A policy of our own: the largest gangs first, everybody else backfills around them."""

from dataclasses import dataclass
from typing import ClassVar

from sched_policy.backfill import Backfill
from sched_policy.catalog import PolicyOptions
from sched_policy.plan import Ranking
from sched_policy.policy import Policy
from sched_policy.snapshot import Snapshot


@dataclass(frozen=True)
class LargestFirst:
    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        gpus = snapshot.columns.gpus
        return Ranking(snapshot, gpus.astype(float), lambda row: f"asks for {gpus[row]} GPUs")


def make(options: PolicyOptions) -> Policy:
    depth = 1 if options.reservation_depth is None else options.reservation_depth
    return Policy("largest-first", "largest gangs first, EASY backfill", LargestFirst(), backfill=Backfill(depth))
