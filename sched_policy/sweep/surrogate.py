"""The promise of trainings that have hardly run, learnt from their hyper-parameters and the standing of the others.

A Gaussian process with the exponential kernel exp(-d / l) on the distance d between hyper-parameters. Numbers count by
their ranks in the sweep, so a rate and its logarithm are equivalent; words are equal or not. Length scale and noise are
the most likely of a small grid (Rasmussen & Williams 2006, 5.4.1; the scale of the values is set to its maximum
likelihood). A learning rate has four times the weight: no other hyper-parameter matters as much (Bengio 2012, arXiv
1206.5533, 3.1), which cannot be learnt from a few trainings. Its prior mean is worse the further a learning rate is
from 0.01, which works for most networks; usual ones are above 1e-6 (same place, 3.1.1). So it is for L1 and L2
penalties above 1e-3, the largest that are usual (Smith 2018, arXiv 1803.09820, 4.4).
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from itertools import chain, product
from typing import NamedTuple

import numpy as np

from sched_policy.snapshot import Floats, Ints
from sched_policy.sweep.trials import Sweep

_LEAST_SEEN = 6
_MOST_SEEN = 128  # the cost grows with the cube
_LEAST_PROGRESS = 1 / 64  # of a training's length: no result is less certain than one of so little
_SCALES = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.1, 0.4, 1.5)
_RATES_WEIGHT = 4.0  # of a learning rate in the distance
_RATE, _PENALTY = (-2.0, -2.0, 4.0), (-math.inf, -3.0, 2.0)  # the usual powers of 10, and how far away bad ones are
_MOST_UNUSUAL = 16.0  # what is further away is as bad: exponentials of the square would overflow


def promise(sweep: Sweep, seen: Ints, places: Floats) -> Floats | None:
    """The predicted logarithm of each training's place from hyper-parameters, shape (N,); lower is better.

    `places` are those of the `seen` trainings, 0 for the best; that of a training with little progress is less certain.
    A training's own result counts more for it than for others. Half a standard deviation is subtracted (a lower
    confidence bound). None if no hyper-parameters differ or too few trainings have been seen.
    """
    columns = _columns(sweep)
    if seen.size < _LEAST_SEEN or not columns:
        return None
    if seen.size > _MOST_SEEN:
        kept = np.argsort(places, kind="stable")[np.linspace(0, seen.size - 1, _MOST_SEEN).astype(np.int64)]
        seen, places = seen[kept], places[kept]
    values = np.log((places + 1.0) / (places.max() + 1.0))
    mean, scale = float(values.mean()), float(values.std()) or 1.0
    prior = unusual(sweep)
    prior -= prior[seen].mean()
    values = (values - mean) / scale - prior[seen]
    doubt = np.maximum(sweep.progress[seen], _LEAST_PROGRESS) ** -0.5
    doubt = np.diag(doubt / np.median(doubt))
    near = _distances(columns, seen, seen)
    likeliest, chosen = -np.inf, None
    for length, noise in product(_SCALES, _NOISES):
        lower = np.linalg.cholesky(np.exp(-near / length) + noise * doubt)
        whitened = np.linalg.solve(lower, values)
        variance = float(whitened @ whitened) / seen.size
        likelihood = -0.5 * seen.size * np.log(variance + 1e-12) - float(np.log(np.diag(lower)).sum())
        if likelihood > likeliest:
            likeliest, chosen = likelihood, (lower, whitened, length, variance)
    if chosen is None:
        return None
    lower, whitened, length, variance = chosen
    far = _distances(columns, seen, np.arange(len(sweep.trials)))
    part = np.linalg.solve(lower, np.exp(-far / length))
    std = np.sqrt(np.maximum(1.0 - (part**2).sum(axis=0), 0.0) * variance)
    expected: Floats = scale * (prior + part.T @ whitened - 0.5 * std)
    return expected


def unusual(sweep: Sweep) -> Floats:
    """How unusual rates and penalties are, shape (N,), in standard deviations of the logarithm of places."""
    found = np.zeros(len(sweep.trials))
    for name in filter(_usual, dict.fromkeys(chain.from_iterable(trial.params for trial in sweep.trials))):
        least, most, bad = _usual(name) or _RATE
        for i, trial in enumerate(sweep.trials):
            value = trial.params.get(name)
            if isinstance(value, (int, float)) and value is not True and 0 < value < math.inf:
                power = math.log10(value)
                found[i] += (max(0.0, least - power, power - most) / bad) ** 2
    return np.minimum(found, _MOST_UNUSUAL)


class _Column(NamedTuple):
    """One hyper-parameter that differs between trainings: ranks from 0 to 1, or codes of words; and its weight."""

    values: Floats
    is_number: bool
    weight: float


def _columns(sweep: Sweep) -> list[_Column]:
    columns = []
    for name in sweep.params:
        told = [trial.params.get(name) for trial in sweep.trials]
        there = np.array([value is not None for value in told], dtype=np.bool_)
        given = [value for value in told if value is not None]
        is_number = all(issubclass(kind, (int, float)) and kind is not bool for kind in set(map(type, given)))
        _, codes = np.unique(given if is_number else [*map(str, given)], return_inverse=True)
        values = np.full(len(told), 0.5 if is_number else -1.0)  # who has none: in the middle, or unlike all
        values[there] = codes / max(1, codes.max()) if is_number else codes
        columns.append(_Column(values, is_number, _RATES_WEIGHT if _usual(name) is _RATE else 1.0))
    return columns


@lru_cache(256)
def _usual(name: str) -> tuple[float, float, float] | None:
    """Of a learning rate (`lr`, `optim.learningRate`, `lr_init`; not `lr_decay`) or a penalty (`l2`, `l1_reg`)."""
    words = re.findall(r"l[12]|[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    words = words[:-1] if words[-1:] in (["init"], ["reg"], ["penalty"]) else words
    is_rate = words[-1:] in (["lr"], ["learningrate"]) or words[-2:] == ["learning", "rate"]
    return _RATE if is_rate else _PENALTY if words[-1:] in (["l1"], ["l2"]) and "lambda" not in words else None


def _distances(columns: list[_Column], these: Ints, those: Ints) -> Floats:
    """Sums over all hyper-parameters, shape (len(these), len(those))."""
    total = np.zeros((these.size, those.size))
    apart = np.empty_like(total)  # one for all: of large sweeps fresh memory would take longest
    for values, is_number, weight in columns:
        np.abs(np.subtract.outer(values[these], values[those], out=apart), out=apart)
        total += np.multiply(apart if is_number else (apart > 0), weight, out=apart)
    return total
