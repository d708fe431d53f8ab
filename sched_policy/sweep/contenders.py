"""Who may still come to lead, and hence how far early ranks can be trusted.

A training is a contender if the leader, when it was as far, was ahead by no more than the training has improved since
half of its progress: improving once more as it just did would bring it level. Where values are far apart and hardly
anybody moves, few are contenders, early ranks tell who will win, and stopping pays. Where all make more progress than
lies between them, ranks will change, most are contenders, and only finishing tells who is best.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.snapshot import Bools
from sched_policy.sweep.trials import Sweep

LEAST_REPORTS = 3
"""Two reports have one difference, which is as much noise as progress."""

LEAST_PROGRESS = 1 / 27
"""Before this share of their length trainings are not compared: the lowest rung."""

_ROUNDING = 1e-9


class Contention(Struct, frozen=True, eq=False):
    """Who of a sweep's trainings may still come to lead.

    Attributes:
        may_lead: the contenders among those that are far enough to tell, shape (N,).
        share: the share of contenders, with one pseudo-observation of each kind: 1/2 while nothing is known.

    """

    may_lead: Bools
    share: float


def contention(sweep: Sweep) -> Contention:
    """Compare each training with the best that any had reached at its progress."""
    progress = sweep.progress
    may_lead = np.zeros(len(sweep.trials), dtype=np.bool_)
    far = [i for i, t in enumerate(sweep.trials) if t.steps.size >= LEAST_REPORTS and progress[i] >= LEAST_PROGRESS]
    # From the furthest to the nearest: who comes later in this order has been passed by all before it. The best of
    # these by a point is kept on a grid; reports between two of its points count from the next one on.
    order = sorted(far, key=lambda i: -progress[i])
    grid = np.sort(np.unique(progress[far])) if far else np.empty(0)
    ahead = np.full(len(grid), np.inf)
    for i in order:
        trial = sweep.trials[i]
        shares = trial.steps / (sweep.total_steps[i] * (1 + _ROUNDING))
        lowest = np.minimum.accumulate(trial.values)
        upto = int(np.searchsorted(grid, progress[i] * (1 + _ROUNDING), side="right"))
        reached = np.searchsorted(shares, grid[:upto], side="right") - 1
        there = np.where(reached >= 0, lowest[np.maximum(reached, 0)], np.inf)
        ahead[:upto] = np.minimum(ahead[:upto], there)
        half = int(np.searchsorted(shares, progress[i] / 2, side="right")) - 1
        improved = lowest[max(half, 0)] - lowest[-1]
        may_lead[i] = improved > 0 and lowest[-1] - ahead[upto - 1] <= improved
    return Contention(may_lead, (float(may_lead.sum()) + 1.0) / (len(far) + 2.0))
