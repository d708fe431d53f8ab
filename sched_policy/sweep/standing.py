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

_DOUBLING = 2  # levels; below the first doubling values tell nothing yet
_ROUNDING = 1e-9


class Standing(Struct, frozen=True, eq=False):
    """How the trainings of one sweep stand.

    Attributes:
        ahead: how many others were better at the furthest level that both have reached, shape (N,).
        is_known: who is far enough for a comparison to tell anything, and has run for longer than its start took,
            shape (N,).
        may_lead: the contenders, shape (N,).
        contenders: their share, with half a pseudo-observation of each kind: 1/2 while nothing is known.

    """

    ahead: Ints
    is_known: Bools
    may_lead: Bools
    contenders: float


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
    compared = int((level >= _DOUBLING).sum())
    has_paid = sweep.progress * sweep.length_s >= sweep.restart_s
    has_paid |= np.array([trial.has_ended for trial in sweep.trials], dtype=np.bool_)
    return Standing(
        ahead=ahead,
        is_known=(level >= _DOUBLING) & has_paid,
        may_lead=may_lead,
        contenders=(float(may_lead.sum()) + 0.5) / (compared + 1.0),
    )


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
