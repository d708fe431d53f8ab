"""Learning curves: from a few noisy reports to the expected further improvement, with its uncertainty.

Two families are fitted, both with three parameters, as functions of the resource x spent so far (GPU-seconds):

    power law     y(x) = a + b * (1 + x/s)^-k      (Hestness et al. 2017, arXiv 1712.00409)
    exponential   y(x) = a + b * exp(-k * x/s)     (SLAQ, Zhang et al., SoCC 2017)

For a fixed shape k either is linear in (a, b), so weighted least squares is exact and cannot diverge. The shape
is integrated over a grid instead of searched: each grid point is weighted by its posterior probability, which
also yields the uncertainty that a handful of points leaves (Domhan et al., IJCAI 2015, average over families in
the same spirit).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_POINTS = 3
"""Fewer reports than this say nothing about the shape of a curve."""

_MAX_POINTS = 128
_POWERS = np.geomspace(0.2, 4.0, 16)
_POWER_SCALES = (1.0, 3.0, 10.0)
_RATES = np.geomspace(0.3, 30.0, 48)

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Improvement:
    """Expected fall of the metric and its standard deviation, both in the metric's unit."""

    mean: float
    std: float


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """A fitted curve of a metric that improves by falling.

    Attributes:
        scale: the largest x seen; the x axis is divided by it.
        weights: posterior probability of each grid point, shape (G,), sums to 1.
        slope: the coefficient b of each grid point, shape (G,), never negative.
        slope_std: its standard error, shape (G,).

    """

    scale: float
    weights: Vector
    slope: Vector
    slope_std: Vector

    def improvement(self, x_from: float, x_to: float) -> Improvement:
        """How far the metric is expected to fall between two amounts of resource (law of total variance)."""
        drop = _basis(np.array([x_from / self.scale])) - _basis(np.array([x_to / self.scale]))
        drop = drop[:, 0]
        mean_per_shape = self.slope * drop
        mean = float(self.weights @ mean_per_shape)
        variance = float(self.weights @ ((self.slope_std * drop) ** 2 + (mean_per_shape - mean) ** 2))
        return Improvement(mean, float(np.sqrt(max(variance, 0.0))))


def fit(x: ArrayLike, y: ArrayLike) -> LearningCurve | None:
    """Fit both families to reports `y` at resource `x` (both shape (N,)); lower y is better.

    Newer reports weigh more, because the start of training follows neither family. Returns None with fewer
    than `MIN_POINTS` distinct finite reports.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    finite = np.isfinite(xs) & np.isfinite(ys)
    xs, ys = xs[finite], ys[finite]
    if np.unique(xs).size < MIN_POINTS or xs.max() <= 0:
        return None
    if xs.size > _MAX_POINTS:
        chosen = np.unique(np.linspace(0, xs.size - 1, _MAX_POINTS).round().astype(int))
        xs, ys = xs[chosen], ys[chosen]
    scale = float(xs.max())
    point_weights = 0.2 + 0.8 * xs / scale
    basis = _basis(xs / scale)

    total = point_weights.sum()
    basis_mean = basis @ point_weights / total
    y_mean = float(ys @ point_weights / total)
    centred = basis - basis_mean[:, None]
    spread = (centred**2) @ point_weights
    slope = np.maximum(0.0, centred @ (point_weights * (ys - y_mean)) / np.maximum(spread, 1e-12))
    residual = ys - y_mean - slope[:, None] * centred
    square_error = (residual**2) @ point_weights

    # The noise is unknown: integrating it out leaves a Student-t likelihood (Gelman, BDA3, section 14.2).
    # The floor keeps noiseless test data from making one grid point certain.
    floor = 1e-6 * float((ys - y_mean) ** 2 @ point_weights) + 1e-300
    degrees = max(xs.size - 2, 1)
    log_posterior = -0.5 * degrees * np.log(square_error + floor)
    weights = np.exp(log_posterior - log_posterior.max())
    weights /= weights.sum()
    slope_std = np.sqrt((square_error + floor) / degrees / np.maximum(spread, 1e-12))
    return LearningCurve(scale, weights, slope, slope_std)


def _basis(x: Vector) -> Vector:
    """Both families' falling basis functions at scaled resource x; shape (G, N)."""
    powers = [(1.0 + scale * x[None, :]) ** -_POWERS[:, None] for scale in _POWER_SCALES]
    return np.concatenate([*powers, np.exp(-_RATES[:, None] * x[None, :])])
