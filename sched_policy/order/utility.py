"""Highest expected improvement per GPU-second first (ExplSched, CLUSTER 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sched_policy.model import Score, Snapshot
from sched_policy.order.base import Order, best_first
from sched_policy.order.srsf import Srsf
from sched_policy.utility import Utility, estimate


@dataclass(frozen=True, slots=True)
class ByUtility:
    """Order by utility; jobs that report nothing are ranked by `fallback` and spread evenly among the others.

    Spreading: the k-th best of m silent jobs gets the utility at quantile 1 - (k + 1/2)/m of the reporting
    ones, so that neither kind can starve the other as a whole.

    Attributes:
        quantum_s: how far ahead a decision looks, in seconds of the job's run time.
        fallback: the order of jobs that take no part in exploration.

    """

    quantum_s: float = 600.0
    fallback: Order = Srsf()

    def utilities(self, snapshot: Snapshot) -> Mapping[int, Utility]:
        """Utilities of the jobs that take part in exploration."""
        return estimate(snapshot.jobs, self.quantum_s)

    def scores(self, snapshot: Snapshot) -> tuple[Score, ...]:
        """Utility in percent of the sweep's known improvement per GPU-hour."""
        utilities = self.utilities(snapshot)
        scores = [Score(job_id, _percent_per_gpu_h(u), _reason(u)) for job_id, u in utilities.items()]
        levels = sorted((score.value for score in scores), reverse=True)
        silent = [score for score in self.fallback.scores(snapshot) if score.job_id not in utilities]
        for position, score in enumerate(silent):
            level = _quantile(levels, (position + 0.5) / len(silent)) if levels else float(len(silent) - position)
            scores.append(Score(score.job_id, level, f"reports no progress; {score.reason}"))
        return best_first(scores, snapshot.jobs)


def _percent_per_gpu_h(utility: Utility) -> float:
    return 100.0 * 3600.0 * utility.value


def _quantile(falling: Sequence[float], share: float) -> float:
    """The element at `share` (0..1) of a falling sequence."""
    return falling[min(len(falling) - 1, int(share * len(falling)))]


def _reason(utility: Utility) -> str:
    rate, spread = _percent_per_gpu_h(utility), 100.0 * 3600.0 * utility.std
    if not utility.measured:
        return f"no curve yet, explored on its sweep's prior of {rate:.3g} %/GPU-h"
    return f"expected improvement {rate:.3g} +- {spread:.2g} %/GPU-h"
