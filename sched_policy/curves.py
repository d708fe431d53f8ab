"""Learning curves: from a few noisy reports to the expected further improvement, with its uncertainty.

Two families are fitted, both with three parameters, as functions of the resource x spent so far (GPU-seconds):

    power law     y(x) = a + b * (1 + x/s)^-k      (Hestness et al. 2017, arXiv 1712.00409)
    exponential   y(x) = a + b * exp(-k * x/s)     (SLAQ, Zhang et al., SoCC 2017)

For a fixed shape k either is linear in (a, b), so weighted least squares is exact and cannot diverge. The shape
is integrated over a grid instead of searched: each grid point is weighted by its posterior probability, which
also yields the uncertainty that a handful of points leaves (Domhan et al., IJCAI 2015, average over families in
the same spirit).

Many curves are fitted and read at once: the arrays below have one row per curve.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

MIN_POINTS = 3
"""Fewer reports than this say nothing about the shape of a curve."""

_MAX_POINTS = 128
_POWERS = np.geomspace(0.2, 4.0, 16)
_POWER_SCALES = (1.0, 3.0, 10.0)
_RATES = np.geomspace(0.3, 30.0, 48)
_GRID = len(_POWERS) * len(_POWER_SCALES) + len(_RATES)
_CHUNK = 65_536  # numbers in the working array of a fit: it should stay in the cache

Vector = NDArray[np.float64]


class LearningCurve(Struct, frozen=True, eq=False, dict=True):
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


class CurveTable:
    """Fitted curves as arrays, one row each, to read them all at once."""

    def __init__(self, curves: Iterable[LearningCurve]) -> None:
        rows = tuple(curves)
        self._scale = np.array([curve.scale for curve in rows], dtype=np.float64)
        self._weights = np.array([curve.weights for curve in rows], dtype=np.float64).reshape(-1, _GRID)
        self._slope = np.array([curve.slope for curve in rows], dtype=np.float64).reshape(-1, _GRID)
        self._variance = np.array([curve.slope_std for curve in rows], dtype=np.float64).reshape(-1, _GRID) ** 2

    def improvement(self, x_from: ArrayLike, x_to: ArrayLike) -> tuple[Vector, Vector]:
        """How far each metric is expected to fall between two amounts of resource, and the standard deviation.

        All shapes are (J,). The law of total variance joins the noise of each shape and the doubt between shapes.
        """
        drop = _basis(np.asarray(x_from) / self._scale)
        drop -= _basis(np.asarray(x_to) / self._scale)
        expected = self._slope * drop
        mean = np.einsum("jg,jg->j", self._weights, expected)
        spread = self._variance * drop**2 + (expected - mean[:, None]) ** 2
        return mean, np.sqrt(np.einsum("jg,jg->j", self._weights, spread))


def fit_all(histories: Sequence[tuple[Vector, Vector]]) -> list[LearningCurve | None]:
    """Both families fitted to reports y at resource x, lower y is better, for each of many histories (x, y), both (N,).

    Newer reports weigh more, because the start of training follows neither family. None with fewer than `MIN_POINTS`
    distinct finite reports.
    """
    by_length: defaultdict[int, list[tuple[int, Vector, Vector]]] = defaultdict(list)
    for i, (x, y) in enumerate(histories):
        usable = _usable(x, y)
        if usable is not None:
            by_length[usable[0].size].append((i, *usable))
    fitted: list[LearningCurve | None] = [None] * len(histories)
    # Only curves of one length go together: no curve's last digits may depend on which others are fitted with it.
    for length, alike in by_length.items():
        count = max(1, _CHUNK // (_GRID * length))
        for start in range(0, len(alike), count):
            chunk = alike[start : start + count]
            curves = _fit_chunk(np.stack([x for _, x, _ in chunk]), np.stack([y for _, _, y in chunk]))
            for (i, _, _), curve in zip(chunk, curves, strict=True):
                fitted[i] = curve
    return fitted


def _usable(x: Vector, y: Vector) -> tuple[Vector, Vector] | None:
    """The finite reports, thinned out where there are many; None if they are too few."""
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        x, y = x[finite], y[finite]
    if x.size < MIN_POINTS or x.max() <= 0 or len(set(x.tolist())) < MIN_POINTS:
        return None
    if x.size > _MAX_POINTS:
        chosen = np.unique(np.linspace(0, x.size - 1, _MAX_POINTS).round().astype(int))
        x, y = x[chosen], y[chosen]
    return x, y


def _fit_chunk(xs: Vector, ys: Vector) -> list[LearningCurve]:
    """Weighted least squares for every grid point of every history; both shapes (J, N)."""
    scale = xs.max(axis=1)
    xs = xs / scale[:, None]
    point_weights = 0.2 + 0.8 * xs
    total = point_weights.sum(axis=1)

    centred = _basis(xs)
    centred -= (_along(centred, point_weights) / total[:, None])[:, :, None]
    ys = ys - (np.einsum("jn,jn->j", ys, point_weights) / total)[:, None]
    weighted = point_weights * ys
    along = _along(centred, weighted)
    np.square(centred, out=centred)
    spread = _along(centred, point_weights)
    slope = np.maximum(0.0, along / np.maximum(spread, 1e-12))
    variation = np.einsum("jn,jn->j", ys, weighted)[:, None]
    square_error = np.maximum(0.0, variation - slope * (2.0 * along - slope * spread))

    # The noise is unknown: integrating it out leaves a Student-t likelihood (Gelman, BDA3, section 14.2).
    # The floor keeps noiseless test data from making one grid point certain.
    square_error += 1e-6 * variation + 1e-300
    degrees = max(xs.shape[1] - 2, 1)
    log_posterior = -0.5 * degrees * np.log(square_error)
    weights = np.exp(log_posterior - log_posterior.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    slope_std = np.sqrt(square_error / degrees / np.maximum(spread, 1e-12))
    return [LearningCurve(*row) for row in zip(scale.tolist(), weights, slope, slope_std, strict=True)]


def _along(basis: Vector, values: Vector) -> Vector:
    """Inner products of (J, G, N) and (J, N) over the reports, shape (J, G)."""
    products: Vector = np.einsum("jgn,jn->jg", basis, values)
    return products


def _basis(x: Vector) -> Vector:
    """Both families' falling basis functions at scaled resource x (J,) or (J, N); shape (J, G) or (J, G, N).

    Powers are taken as exponentials of one logarithm per scale, which is several times faster.
    """
    flat = x if x.ndim == 2 else x[:, None]
    exponent = np.empty((len(flat), _GRID, flat.shape[1]))
    powers = len(_POWERS)
    for i, scale in enumerate(_POWER_SCALES):
        part = exponent[:, i * powers : (i + 1) * powers]
        np.multiply(np.log1p(scale * flat)[:, None, :], -_POWERS[:, None], out=part)
    np.multiply(flat[:, None, :], -_RATES[:, None], out=exponent[:, -len(_RATES) :])
    basis = np.exp(exponent, out=exponent)
    return basis if x.ndim == 2 else basis[:, :, 0]
