"""How a sweep's trainings stand against each other, and how far that can be trusted.

Two trainings are compared by their best values at the furthest point that both have reached, never by what one
reported early with what the other did late: who has just started is not behind because he has just started. Points are
half doublings of the share of a training's own length.

How far early ranks can be trusted is told by who may still come to lead. A training is a contender if the leader, when
it was as far, was ahead by no more than the training has improved since half of its progress: improving once more as it
just did would bring it level. Where values are far apart and hardly anybody moves, few are contenders: stopping pays.
Where all make more progress than lies between them, ranks will change, and only finishing tells who is best.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.snapshot import Bools, Floats, Ints
from sched_policy.sweep.trials import Sweep

LEVELS: Floats = np.exp2(np.arange(-6.0, 0.25, 0.5))
"""Shares of a training's length at which trainings are compared: 1/64 to 1, two for each doubling."""

_DOUBLING = 2  # levels
_ROUNDING = 1e-9


class Standing(Struct, frozen=True, eq=False):
    """How the trainings of one sweep stand.

    Attributes:
        level: the highest of `LEVELS` that each has reached, -1 below the first, shape (N,).
        ahead: how many others were better at the furthest level that both have reached, shape (N,).
        may_lead: the contenders, shape (N,).
        contenders: their share, with half a pseudo-observation of each kind: 1/2 while nothing is known.

    """

    level: Ints
    ahead: Ints
    may_lead: Bools
    contenders: float

    @property
    def is_known(self) -> Bools:
        """Who is far enough for a comparison to tell anything: one doubling above the lowest level, shape (N,)."""
        known: Bools = self.level >= _DOUBLING
        return known


def standing(sweep: Sweep) -> Standing:
    """Compare all trainings of a sweep."""
    best_at = _best_at(sweep)
    level = np.isfinite(best_at).sum(axis=1) - 1
    ahead = np.zeros(len(level), dtype=np.int64)
    may_lead = np.zeros(len(level), dtype=np.bool_)
    for k in range(len(LEVELS)):
        value = best_at[:, k]
        here, beyond = np.flatnonzero(level == k), np.flatnonzero(level > k)
        if not here.size:
            continue
        all_there, ended_here = np.sort(value[level >= k]), np.sort(value[here])
        ahead[here] += np.searchsorted(all_there, value[here], side="left")
        ahead[beyond] += np.searchsorted(ended_here, value[beyond], side="left")
        if k >= _DOUBLING:
            improved = best_at[here, k - _DOUBLING] - value[here]
            may_lead[here] = (improved > 0) & (value[here] - all_there[0] <= improved)
    known = int((level >= _DOUBLING).sum())
    return Standing(level, ahead, may_lead, (float(may_lead.sum()) + 0.5) / (known + 1.0))


def _best_at(sweep: Sweep) -> Floats:
    """The best value by each training's first report at or after each level, shape (N, K); infinity above its last.

    An ended training stays what it was: it counts at all levels.
    """
    best_at = np.full((len(sweep.trials), len(LEVELS)), np.inf)
    for i, trial in enumerate(sweep.trials):
        if trial.steps.size:
            lowest = np.minimum.accumulate(trial.values)
            at = np.searchsorted(trial.steps, LEVELS * (sweep.total_steps[i] * (1 - _ROUNDING)))
            there = at < trial.steps.size
            best_at[i, there] = lowest[at[there]]
            if trial.has_ended:
                best_at[i, ~there] = lowest[-1]
    return best_at
