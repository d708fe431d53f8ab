"""The probability that a sweep's best model is still to come, estimated from the sweep itself.

Values are followed from one doubling of a training's progress to the next. The improvement over a doubling is regressed
on the improvement over the one before and on the distance from the leader, by Bayesian linear regression over all
doublings that any training of the sweep has made; those at similar progress have the largest weights (curves are alike
on a logarithmic axis of progress: power laws improve by a constant ratio per doubling). The residuals are noise, larger
for trainings that improve. Paths of all trainings to their ends are drawn from it; they give the probability that one
beats the present best. Ended trainings give an upper bound for each, from how far the best of them are apart and from
what places at equal progress said of those at the end. The draws are the same every time, so the same sweep has the
same forecast.

In the spirit of freeze-thaw Bayesian optimisation (Swersky et al. 2014, arXiv 1406.3896), with a linear model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from sched_policy.model import LARGEST_VALUE
from sched_policy.snapshot import Bools, Floats, Ints
from sched_policy.sweep.trials import Sweep

LEVELS: Floats = np.ldexp(1.0, np.arange(-6, 1)).astype(np.float64)
"""Fractions of a training's length, each twice the one before: 1/64 to 1."""

ROUNDING = 1e-9
_DOUBLINGS = len(LEVELS) - 1
_PRIOR_MEAN = np.array([0.0, 0.7, 0.0])  # improvements shrink by t^-1/2 per doubling
_PRIOR_STD = np.array([0.05, 0.4, 0.15])
_STILL_STD, _MOVING_STD = 0.05, 0.5  # noise: fraction of the sweep's spread, and of a training's last improvement
_PRIOR_COUNT = 4.0
_LOCALITY = 4.0
_EXPONENTS = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0])
_LEAST_ENDED = 3  # trainings; fewer tell nothing of how far a better one would go
_NUMBERS = 1 << 18  # paths times trainings


@dataclass(frozen=True)
class Histories:
    """The best value that each training had reported by several points of its progress. Lower is better.

    Values worse than the median training's first value are clipped to it: how far a training diverged says nothing
    about which will be best, and would dominate the regression.

    Attributes:
        progress: progress of each training, as a fraction of its length, shape (N,).
        best: the best value of each training, shape (N,); infinity where it has reported nothing.
        recent: how much it improved since half of its progress, shape (N,).
        seen: which trainings have reported, shape (N,).
        at_level: the best value by each of `LEVELS`, shape (N, 7); NaN where it has not come so far. At levels before
            its first report the first value counts.
        cap: the value at which values are clipped.

    """

    progress: Floats
    best: Floats
    recent: Floats
    seen: Bools
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
            points = np.append(LEVELS, progress[i] / 2) * (sweep.total_steps[i] * (1 + ROUNDING))
            at = lowest[np.maximum(np.searchsorted(trial.steps, points, side="right") - 1, 0)]
            at_level[i] = np.where(progress[i] * (1 + ROUNDING) >= LEVELS, at[:-1], np.nan)
            best[i], recent[i] = lowest[-1], at[-1] - lowest[-1]
        seen = np.isfinite(best)
        early = np.where(np.isnan(at_level[:, 1]), best, at_level[:, 1])
        sound = early[early < LARGEST_VALUE]
        cap = float(np.median(sound)) if sound.size else LARGEST_VALUE
        return cls(
            progress=progress,
            best=np.minimum(best, np.where(seen, cap, np.inf)),
            recent=np.where(best < cap, np.minimum(recent, cap - best), 0.0),
            seen=seen,
            at_level=np.minimum(at_level, cap),
            cap=cap,
        )


class Forecast(Struct, frozen=True, eq=False):
    """The forecast for a sweep.

    Attributes:
        open: probability that the best value of all trainings, run to their ends, beats the present best by more
            than the tolerance.
        chance: probability that this training does so and ends within the tolerance of the best, shape (N,).

    """

    open: float
    chance: Floats


def forecast(sweep: Sweep, histories: Histories, tolerance: float) -> Forecast:
    """Draw the paths of all trainings to their ends. Before the first report everything is open."""
    count = len(sweep.trials)
    seen = histories.seen
    if not seen.any():
        return Forecast(1.0, np.full(count, 1.0 / max(count, 1)))
    best = float(min(t.values.min() for t in sweep.trials if t.values.size))
    spread = max(histories.cap - best, 1e-9 * abs(best)) or 1.0
    ended = sweep.has_ended
    paths = int(np.clip(_NUMBERS // max(count, 1), 32, 128))
    rng = np.random.default_rng(0)  # common random numbers: the same draws at every call
    weights, still, moving = _regressions((histories.at_level - best) / spread, rng.standard_normal((3, paths)))
    value, moved = _present(histories, best, spread, paths, rng)
    progress = np.where(seen, np.clip(histories.progress, LEVELS[0], 1.0), LEVELS[1])
    left = np.where(ended, 0.0, -np.log2(progress))
    while (rows := np.flatnonzero(left > 1e-6)).size:
        part = np.minimum(1.0, left[rows])[:, None]
        level = np.clip(np.round(_DOUBLINGS - left[rows]).astype(np.int64), 0, _DOUBLINGS - 1)
        mean = weights[level, 0] + weights[level, 1] * moved[rows] + weights[level, 2] * value[rows]
        std = np.sqrt(still[level, None] + moving[level, None] * moved[rows] ** 2)
        drawn = part * mean + np.sqrt(part) * std * rng.standard_normal((rows.size, paths))
        improved = np.maximum(0.0, drawn)
        value[rows] -= improved
        moved[rows] = np.where(part >= 1.0, improved, moved[rows])
        left[rows] -= part[:, 0]
    final = best + spread * value
    winner = np.minimum(final.min(axis=0), best)
    target = winner + tolerance * np.abs(winner)
    is_open = best > target
    drawn = ((final <= target) & is_open & ~ended[:, None]).mean(axis=1)
    likeliest = _records(histories, ended, best, tolerance, spread)
    return Forecast(min(float(is_open.mean()), 1.0 - float(np.prod(1.0 - likeliest))), np.minimum(drawn, likeliest))


def _records(histories: Histories, ended: Bools, best: float, tolerance: float, spread: float) -> Floats:
    """An upper bound, from ended trainings, for each training's probability to beat the present best, shape (N,).

    It must end as the best of all ended trainings and itself, and by enough. The lead of the best over the others is
    modelled as exponential, as are the tails of many distributions; with its scale estimated from m differences of sum
    s, it exceeds x with probability (1 + x / s)^-m. How far a training is ahead of all ended ones at equal progress,
    in units of s there, counts as part of x. No bound while ended trainings are worse than one that still runs.
    """
    likeliest = np.where(ended, 0.0, 1.0)
    shown = np.flatnonzero(ended & histories.seen)
    final = np.sort(histories.best[shown])
    enough = tolerance * abs(best)
    if len(final) < _LEAST_ENDED or final[0] > best + enough:
        return likeliest
    count = max(_LEAST_ENDED, -(-len(final) // 4))
    needed = (final[0] - best + enough) / _lead(final, count, spread)
    then = np.where(np.isnan(histories.at_level[shown]), histories.best[shown, None], histories.at_level[shown])
    then = then[np.argsort(histories.best[shown], kind="stable")]
    level = (~np.isnan(histories.at_level)).sum(axis=1) - 1
    likeliest[~ended & (level < 0)] = (1.0 + needed) ** (1.0 - count) / (int(histories.seen.sum()) + 1.0)
    for k in range(len(LEVELS)):
        here = np.flatnonzero(~ended & (level == k))
        at, value = np.sort(then[:, k]), histories.at_level[here, k]
        ahead = np.maximum(at[0] - value, 0.0) / _lead(at, count, spread)
        wins = _wins(then[:, k], np.searchsorted(at, value))
        likeliest[here] = wins * (1.0 + np.maximum(needed - ahead, 0.0)) ** (1.0 - count)
    return likeliest


def _lead(ordered: Floats, count: int, spread: float) -> float:
    """The sum of the distances of the best from those next to it, `count` with the best. Never 0 beside `spread`."""
    return max(float((ordered[count - 1] - ordered[:count]).sum()), 1e-12 * spread)


def _wins(then: Floats, better: Ints) -> Floats:
    """The probability to end as the best of n ended trainings and itself, by the number of those that were ahead.

    `then` are values of the ended trainings at equal progress, shape (n,), the best at the end first. By Luce's choice
    rule (1959) the r-th of n + 1 wins with a probability proportional to r^-a: a is 0 where places say nothing of those
    at the end, and large where they stay. The result is the mean over `_EXPONENTS`, weighted by the likelihood of the
    order at the end (Plackett 1975).
    """
    at = np.sort(then)
    place = (np.searchsorted(at, then, side="left") + np.searchsorted(at, then, side="right") + 1.0) / 2.0
    weight = place ** -_EXPONENTS[:, None]
    left = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    likelihood = (np.log(weight) - np.log(left)).sum(axis=1)
    posterior = np.exp(likelihood - likelihood.max())
    places = np.arange(1.0, len(then) + 2.0) ** -_EXPONENTS[:, None]
    first: Floats = (posterior / posterior.sum()) @ (places / places.sum(axis=1, keepdims=True))
    return first[better]


def _present(
    histories: Histories, best: float, spread: float, paths: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Scaled value and last improvement of each training on each path, both (N, paths).

    A training without reports is drawn like a reported one at the lowest level. With n of these, it is better than all
    of them with probability 1 / (n + 1), by about the spread of their best quarter.
    """
    value = np.repeat(((histories.best - best) / spread)[:, None], paths, axis=1)
    moved = np.repeat((histories.recent / spread)[:, None], paths, axis=1)
    fresh, pool = np.flatnonzero(~histories.seen), np.flatnonzero(histories.seen)
    if fresh.size:
        low = np.where(np.isnan(histories.at_level[:, 1]), histories.best, histories.at_level[:, 1])
        lower = np.where(np.isnan(histories.at_level[:, 0]), low, histories.at_level[:, 0])
        alike = pool[rng.integers(0, pool.size, (fresh.size, paths))]
        is_new_best = rng.random((fresh.size, paths)) < 1.0 / (pool.size + 1.0)
        top = np.sort(low[pool])[: max(2, pool.size // 4)]
        jump = float((top[1:] - top[0]).sum() / max(top.size - 1, 1)) * rng.exponential(1.0, (fresh.size, paths))
        value[fresh] = (np.where(is_new_best, top[0] - jump, low[alike]) - best) / spread
        moved[fresh] = (np.where(is_new_best, jump, 0.0) + lower[alike] - low[alike]) / spread
    return value, moved


def _regressions(at_level: Floats, normals: Floats) -> tuple[Floats, Floats, Floats]:
    """Coefficients per doubling and path, (6, 3, paths), and two variances of the noise per doubling, as `_noise`."""
    steps = []
    for k in range(1, _DOUBLINGS):
        there = ~np.isnan(at_level[:, k + 1])
        before, now, then = at_level[there, k - 1], at_level[there, k], at_level[there, k + 1]
        steps.append(np.column_stack([np.full(now.size, float(k)), before - now, now, now - then]))
    table = np.concatenate(steps)
    inputs, improved = np.column_stack([np.ones(len(table)), table[:, 1:3]]), table[:, 3]
    moves = inputs[:, 1] ** 2 * _MOVING_STD**2 > _STILL_STD**2
    prior = np.diag(_PRIOR_STD**-2.0)
    # All doublings at once: of a small sweep most of the time goes into calls.
    nearness = _LOCALITY ** -np.abs(table[:, 0] - np.arange(_DOUBLINGS)[:, None])
    still, moving = np.full(_DOUBLINGS, _STILL_STD**2), np.full(_DOUBLINGS, _MOVING_STD**2)
    for _ in range(3):
        weight = nearness / (still[:, None] + moving[:, None] * inputs[:, 1] ** 2)
        weighted = (inputs * weight[:, :, None]).swapaxes(1, 2)
        precision = prior + weighted @ inputs
        mean = np.linalg.solve(precision, (prior @ _PRIOR_MEAN)[:, None] + weighted @ improved[:, None])
        still, moving = _noise(nearness, (improved - (inputs @ mean)[:, :, 0]) ** 2, inputs[:, 1], moves)
    return mean + np.linalg.cholesky(np.linalg.inv(precision)) @ normals, still, moving


def _noise(nearness: Floats, squared: Floats, moved: Floats, moves: Bools) -> tuple[Floats, Floats]:
    """Moments of the residuals: of trainings that hardly improve, and per squared improvement of those that do."""
    near, near_still = np.compress(moves, nearness, 1), np.compress(~moves, nearness, 1)
    few = _PRIOR_COUNT / 4
    still = few * _STILL_STD**2 + (near_still * np.compress(~moves, squared, 1)).sum(axis=1)
    still /= few + near_still.sum(axis=1)
    beyond = np.maximum(np.compress(moves, squared, 1) - still[:, None], 0.0) / np.maximum(moved[moves] ** 2, 1e-12)
    moving = _PRIOR_COUNT * _MOVING_STD**2 + (near * beyond).sum(axis=1)
    return still, moving / (_PRIOR_COUNT + near.sum(axis=1))
