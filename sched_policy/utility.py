"""The utility of a job: expected improvement of its metric per GPU-second; the largest first (ExplSched, 2023).

Raw improvements of different metrics do not compare, so each is divided by a scale: the largest improvement
that any job of the same sweep has shown so far (a job outside a sweep is its own sweep). So a utility is the share of
the sweep's known improvement per GPU-second, and a configuration that hardly learns has a low one beside its siblings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.improvement import RemainingImprovement, remaining_improvement
from sched_policy.order import Order, Srsf
from sched_policy.plan import Ranking
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot

Prior = Callable[[RemainingImprovement, Snapshot, float], Floats]
"""(figures, snapshot, quantum in seconds) -> what untried trainings are expected to do, as `Utility.value`, shape (E,);
not a number where a training is ranked as one that does not report."""


class Utility(Struct, frozen=True):
    """A job's expected share of improvement per GPU-second, over the next quantum.

    `std` is its standard deviation. `measured` is false if it is the sweep's prior.
    """

    value: float
    std: float
    measured: bool


class Utilities(Mapping[int, Utility]):
    """The utilities of the jobs that take part in exploration and can be judged, by job id.

    Attributes:
        known: the figures they were made from; it has the others, too.
        value: `Utility.value` of each of its jobs, shape (E,); NaN if it is unknown.
        std: `Utility.std` of each of its jobs, shape (E,).

    """

    def __init__(self, known: RemainingImprovement, value: Floats, std: Floats) -> None:
        self.known = known
        self.value = value
        self.std = std

    @cached_property
    def _position(self) -> Mapping[int, int]:
        judged = (~np.isnan(self.value)).tolist()
        return {job_id: i for i, job_id in enumerate(self.known.job_id.tolist()) if judged[i]}

    def __getitem__(self, job_id: int) -> Utility:
        i = self._position[job_id]
        return Utility(float(self.value[i]), float(self.std[i]), bool(self.known.measured[i]))

    def __iter__(self) -> Iterator[int]:
        return iter(self._position)

    def __len__(self) -> int:
        return len(self._position)


def estimate(snapshot: Snapshot, quantum_s: float, prior: Prior | None = None) -> Utilities:
    """Utilities of the jobs of a snapshot that take part in exploration.

    `quantum_s` is how far ahead a decision looks, in seconds of a job's run time. Jobs without an `Exploration` have no
    entry, nor has one that has shown nothing and has no prior: it counts as a job that does not report.
    """
    known = remaining_improvement(snapshot.jobs)
    on = known.measured
    ahead = (quantum_s * np.maximum(known.gpus, 1))[on]
    spent = known.spent_gpu_s[on]
    mean, std = known.curves.improvement(spent, spent + np.minimum(ahead, known.horizon_gpu_s[on]))
    value_std = prior(known, snapshot, quantum_s) if prior else np.full(known.rows.size, np.nan)
    value = value_std.copy()
    value[on] = mean / known.scale[on] / ahead
    value_std[on] = std / known.scale[on] / ahead
    return Utilities(known, value, value_std)


class ByUtility(Struct, frozen=True):
    """Order by utility; jobs that report nothing are ranked by `fallback` and spread evenly among the others.

    Spreading: the k-th best of m silent jobs gets the utility at quantile 1 - (k + 1/2)/m of the reporting ones (of
    those with a prior, if none reports), so that neither kind starves the other. Each scope is spread by itself: one
    user's reports say nothing about another's silent jobs.

    Attributes:
        quantum_s: how far ahead a decision looks, in seconds of the job's run time.
        fallback: the order of jobs that take no part in exploration.
        prior: the expected utility of untried trainings; None: unknown.

    """

    quantum_s: float = 600.0
    fallback: Order = Srsf()
    prior: Prior | None = None

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Utility in percent of the sweep's known improvement per GPU-hour."""
        utilities = estimate(snapshot, self.quantum_s, self.prior)
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
            shows = "reports no progress" if snapshot.jobs[row].exploration is None else "has not reported a curve"
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
