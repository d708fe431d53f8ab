"""Highest expected improvement per GPU-second first (ExplSched, CLUSTER 2023)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.columns import Bools, Floats, Ints
from sched_policy.order.base import Order
from sched_policy.order.shortest import Srsf
from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot
from sched_policy.utility import Utilities, Utility, estimate


class ByUtility(Struct, frozen=True):
    """Order by utility; jobs that report nothing are ranked by `fallback` and spread evenly among the others.

    Spreading: the k-th best of m silent jobs gets the utility at quantile 1 - (k + 1/2)/m of the reporting
    ones (of those with a prior, where none reports), so that neither kind can starve the other as a whole. In each
    scope by itself: what one user reports says nothing of another's silent jobs.

    Attributes:
        quantum_s: how far ahead a decision looks, in seconds of the job's run time.
        fallback: the order of jobs that take no part in exploration.

    """

    quantum_s: float = 600.0
    fallback: Order = Srsf()

    needs_durations: ClassVar[bool] = True

    def utilities(self, snapshot: Snapshot) -> Utilities:
        """Utilities of the jobs that take part in exploration."""
        return estimate(snapshot, self.quantum_s)

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Utility in percent of the sweep's known improvement per GPU-hour."""
        utilities = self.utilities(snapshot)
        job_id = snapshot.columns.job_id
        values = np.full(len(job_id), np.nan)
        rows, measured = utilities.known.rows, utilities.known.measured
        values[rows] = 100.0 * 3600.0 * utilities.value
        has_learned = np.zeros(len(job_id), dtype=np.bool_)
        has_learned[rows[measured]] = True
        fallback = self.fallback.rank(snapshot)
        place = np.empty(len(job_id), dtype=np.int64)
        place[fallback.rows] = np.arange(len(job_id))
        for members in snapshot.rows_by_scope:
            _spread_silent(values, has_learned, members[np.argsort(place[members])])

        def reason(row: int) -> str:
            utility = utilities.get(int(job_id[row]))
            if utility:
                return _reason(utility)
            shows = "reports no progress" if snapshot.jobs[row].exploration is None else "has shown no curve"
            return f"{shows}; {fallback[int(place[row])].reason}"

        return Ranking(snapshot, values, reason)


def _spread_silent(values: Floats, has_learned: Bools, members: Ints) -> None:
    """Give the silent jobs of a scope (those without a value) levels of its others; `members` in the silent order."""
    learned = values[members[has_learned[members]]]
    known = values[members]
    levels = -np.sort(-(learned if learned.size else known[~np.isnan(known)]))
    silent = members[np.isnan(known)]
    share = (np.arange(silent.size) + 0.5) / max(silent.size, 1)
    values[silent] = (
        levels[(share * levels.size).astype(np.int64)] if levels.size else silent.size - np.arange(silent.size)
    )


def _reason(utility: Utility) -> str:
    rate, spread = 100.0 * 3600.0 * utility.value, 100.0 * 3600.0 * utility.std
    if not utility.measured:
        return f"no curve yet, explored on its sweep's prior of {rate:.3g} %/GPU-h"
    return f"expected improvement {rate:.3g} +- {spread:.2g} %/GPU-h"
