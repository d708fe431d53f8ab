"""What the trainings of a sweep had reached at comparable points: at doublings of the share of their own length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sched_policy.snapshot import Bools, Floats, Ints
from sched_policy.sweep.trials import Sweep

LEVELS: Floats = np.ldexp(1.0, np.arange(-6, 1)).astype(np.float64)
"""Shares of a training's length, each twice the one before: 1/64 to 1."""

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Histories:
    """The best value that each training had reported so far, at several points. Lower is better.

    Values worse than the median training's first ones are cut off there: how far somebody diverged tells nothing of
    who will be best, and would drown what does.

    Attributes:
        progress: how far each training has come, as a share of its length, shape (N,).
        best: the best value of each training, shape (N,); infinity where it has reported nothing.
        recent: how much it improved since half of its progress, shape (N,).
        reports: how often it reported, shape (N,).
        at_level: the best value by each of `LEVELS`, shape (N, 7); not a number where it has not come so far. By a
            level before its first report it counts as what it reported first.
        cap: where values are cut off.

    """

    progress: Floats
    best: Floats
    recent: Floats
    reports: Ints
    at_level: Floats
    cap: float

    @classmethod
    def of(cls, sweep: Sweep) -> Histories:
        """The histories of a sweep's trainings, in their order."""
        count = len(sweep.trials)
        best, recent = np.full(count, np.inf), np.zeros(count)
        at_level = np.full((count, len(LEVELS)), np.nan)
        progress = sweep.progress
        for i, trial in enumerate(sweep.trials):
            if not trial.steps.size:
                continue
            lowest = np.minimum.accumulate(trial.values)
            points = np.append(LEVELS, progress[i] / 2) * (sweep.total_steps[i] * (1 + _ROUNDING))
            at = lowest[np.maximum(np.searchsorted(trial.steps, points, side="right") - 1, 0)]
            at_level[i] = np.where(progress[i] * (1 + _ROUNDING) >= LEVELS, at[:-1], np.nan)
            best[i], recent[i] = lowest[-1], at[-1] - lowest[-1]
        seen = np.isfinite(best)
        early = np.where(np.isnan(at_level[:, 1]), best, at_level[:, 1])
        cap = float(np.median(early[seen])) if seen.any() else 0.0
        shown = np.where(seen, best, 0.0)
        return cls(
            progress=progress,
            best=np.minimum(best, np.where(seen, cap, np.inf)),
            recent=np.where(best < cap, np.minimum(recent, cap - shown), 0.0),
            reports=np.array([trial.steps.size for trial in sweep.trials], dtype=np.int64),
            at_level=np.minimum(at_level, cap),
            cap=cap,
        )

    @cached_property
    def seen(self) -> Bools:
        """Which trainings have reported, shape (N,)."""
        return self.reports > 0
