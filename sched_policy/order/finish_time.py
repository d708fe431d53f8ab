"""Finish-time fairness as an order (Themis, NSDI 2020): shares of time first, then who has had least of its share."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.columns import Bools, Floats
from sched_policy.order.themis import Claims, central_shares, jitter
from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot

_NEW = 1e9  # jobs that have never run come first, among themselves by their shares (Gavel's priorities, OSDI 2020)


class FinishTimeFair(Struct, frozen=True):
    """By fair share of time over time received; ties broken by a hash of the job's id.

    A job's isolated time is what all of its work would take on an equal part of the GPUs, with as many jobs as there
    are now. A snapshot knows no history, so this does not follow how many there were before.

    Attributes:
        unknown_s: run time that is assumed to be left where nothing tells.

    """

    unknown_s: float = 86_400.0
    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Share over time received, in shares per day."""
        columns = snapshot.columns
        takes_part = (columns.gpus > 0) & (columns.holds | columns.waits)
        shares = np.zeros(columns.gpus.size)
        if takes_part.any():
            shares[takes_part] = self._shares(snapshot, takes_part)
        received_s = columns.executed_s
        values = np.where(received_s > 0, 86_400.0 * shares / np.maximum(received_s, 1.0), _NEW * shares)
        return Ranking(
            snapshot,
            values * jitter(columns.job_id),
            lambda row: f"fair share {shares[row]:.3f} of the time, {received_s[row]:.0f} s received",
        )

    def _shares(self, snapshot: Snapshot, takes_part: Bools) -> Floats:
        columns = snapshot.columns
        gpus = columns.gpus[takes_part].astype(np.float64)
        left_s = columns.left_s[takes_part]
        left_s = np.maximum(np.where(np.isfinite(left_s), left_s, self.unknown_s), 1.0)
        capacity = float(max(snapshot.nodes.capacity, 1))
        equal_part = np.minimum(1.0, np.ceil(capacity / gpus.size) / gpus)
        return central_shares(
            Claims(
                age_s=snapshot.now_s - columns.submit_s[takes_part],
                work_s=left_s,
                isolated_s=(columns.executed_s[takes_part] + left_s) / equal_part,
                gpus=gpus,
                capacity_gpus=capacity,
            )
        )
