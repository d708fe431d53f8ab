"""Jobs of sweeps in the order in which their sweeps' strategy wants them, among all other jobs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.order.base import Order
from sched_policy.order.utility import ByUtility
from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot
from sched_policy.sweep.choice import Sweeps, chosen


class BySweep(Struct, frozen=True):
    """Jobs of sweeps by their place; the other jobs by another order, spread evenly among them.

    Spread, so that neither kind can starve the other as a whole. Scores are places counted from the end: they compare
    within one ranking only.
    """

    sweeps: Sweeps
    others: Order = ByUtility()

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Higher is earlier."""
        wishes = chosen(self.sweeps, snapshot).wishes
        rest = self.others.rank(snapshot)
        if not wishes:
            return rest
        count = len(snapshot.jobs)
        values = np.zeros(count)
        places = {row: wish for row, job in enumerate(snapshot.jobs) if (wish := wishes.get(job.job_id)) is not None}
        wanted = sorted(
            (row for row, wish in places.items() if wish.place is not None), key=lambda r: places[r].place or 0
        )
        silent = [row for row in rest.rows.tolist() if row not in places]
        for queue in (wanted, silent):
            for place, row in enumerate(queue):
                values[row] = 1.0 + count * (1.0 - (place + 0.5) / len(queue))
        position = {row: place for place, row in enumerate(rest.rows.tolist())}

        def reason(row: int) -> str:
            return places[row].reason if row in places else rest[position[row]].reason

        return Ranking(snapshot, values, reason, rest.stable_until_s)
