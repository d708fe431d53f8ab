"""What hyper-parameters tell of trainings that have not shown anything yet.

A Gaussian process with the exponential kernel exp(-d / l) on the distance d between hyper-parameters: numbers by their
ranks in the sweep, so that it does not matter whether a rate is given as itself or as its logarithm; words as equal or
not. Length scale and noise are the likeliest of a small grid (Rasmussen & Williams 2006, 5.4.1; the scale of the values
is integrated out by its maximum).
"""

from __future__ import annotations

from itertools import product

import numpy as np

from sched_policy.snapshot import Floats, Ints
from sched_policy.sweep.trials import Sweep

LEAST_SEEN = 6
_MOST_SEEN = 128  # the cost grows with the cube
_SCALES = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.1, 0.4, 1.5)


def hopeful(sweep: Sweep, seen: Ints, places: Floats, fresh: Ints) -> Floats:
    """Which of the `fresh` trainings promise most by their hyper-parameters: lower is better, shape (F,).

    `places` are those of the `seen` trainings, 0 for the best. The best half standard deviation counts (a lower
    confidence bound). All 0 without hyper-parameters that differ, or while too few have been seen.
    """
    columns = _columns(sweep)
    if seen.size < LEAST_SEEN or not fresh.size or not columns:
        return np.zeros(fresh.size)
    if seen.size > _MOST_SEEN:
        kept = np.argsort(places, kind="stable")[np.linspace(0, seen.size - 1, _MOST_SEEN).astype(np.int64)]
        seen, places = seen[kept], places[kept]
    values = np.log((places + 1.0) / (places.max() + 1.0))
    mean, scale = float(values.mean()), float(values.std()) or 1.0
    values = (values - mean) / scale
    near, far = _distances(columns, seen, seen), _distances(columns, seen, fresh)
    likeliest, chosen = -np.inf, None
    for length, noise in product(_SCALES, _NOISES):
        lower = np.linalg.cholesky(np.exp(-near / length) + noise * np.eye(seen.size))
        whitened = np.linalg.solve(lower, values)
        variance = float(whitened @ whitened) / seen.size
        likelihood = -0.5 * seen.size * np.log(variance + 1e-12) - float(np.log(np.diag(lower)).sum())
        if likelihood > likeliest:
            likeliest, chosen = likelihood, (lower, whitened, length, variance)
    if chosen is None:
        return np.zeros(fresh.size)
    lower, whitened, length, variance = chosen
    part = np.linalg.solve(lower, np.exp(-far / length))  # once: there may be many that are fresh
    std = np.sqrt(np.maximum(1.0 - (part**2).sum(axis=0), 0.0) * variance)
    promise: Floats = part.T @ whitened - 0.5 * std
    return promise


def _columns(sweep: Sweep) -> list[tuple[Floats, bool]]:
    """Each hyper-parameter that differs between trainings: ranks from 0 to 1, or codes of words; and whether ranks."""
    columns = []
    for name in sorted({name for trial in sweep.trials for name in trial.params}):
        given = [trial.params.get(name) for trial in sweep.trials]
        is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given)
        _, codes = np.unique(np.array(given if is_number else [str(v) for v in given]), return_inverse=True)
        if codes.max() > 0:
            columns.append((codes / codes.max() if is_number else codes.astype(np.float64), is_number))
    return columns


def _distances(columns: list[tuple[Floats, bool]], these: Ints, those: Ints) -> Floats:
    """Sums over all hyper-parameters, shape (len(these), len(those))."""
    total = np.zeros((these.size, those.size))
    for column, is_number in columns:
        apart = np.abs(column[these][:, None] - column[those][None, :])
        total += apart if is_number else (apart > 0)
    return total
