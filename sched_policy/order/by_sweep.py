"""Jobs of sweeps in the order in which their sweeps' strategy wants them, among all other jobs."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.order import Order
from sched_policy.order.utility import ByUtility
from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot
from sched_policy.sweep.choice import Sweeps, chosen


class BySweep(Struct, frozen=True):
    """Jobs of sweeps by their place; the other jobs by another order, spread evenly among them.

    Spread, so that neither kind can starve the other as a whole, in each scope by itself. Scores are places counted
    from the end: they compare within one ranking and scope only.
    """

    sweeps: Sweeps
    others: Order = ByUtility()

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Higher is earlier."""
        wishes = chosen(self.sweeps, snapshot).wishes
        if not wishes:
            return self.others.rank(snapshot)
        places = {row: wish for row, job in enumerate(snapshot.jobs) if (wish := wishes.get(job.job_id)) is not None}
        # By themselves: nobody asks what the others' order would say of the jobs of sweeps, and it takes as long.
        other_rows = [row for row in range(len(snapshot.jobs)) if row not in places]
        rest = self.others.rank(Snapshot.of(snapshot.now_s, snapshot.nodes, [snapshot.jobs[row] for row in other_rows]))
        position = {other_rows[row]: place for place, row in enumerate(rest.rows.tolist())}
        values = np.zeros(len(snapshot.jobs))
        for members in (rows.tolist() for rows in snapshot.rows_by_scope):
            wanted = sorted(
                (row for row in members if row in places and places[row].place is not None),
                key=lambda row: places[row].place or 0,
            )
            silent = sorted((row for row in members if row not in places), key=position.__getitem__)
            for queue in (wanted, silent):
                for place, row in enumerate(queue):
                    values[row] = 1.0 + len(members) * (1.0 - (place + 0.5) / len(queue))

        def reason(row: int) -> str:
            return places[row].reason if row in places else rest[position[row]].reason

        return Ranking(snapshot, values, reason, rest.stable_until_s)
