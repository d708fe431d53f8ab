import numpy as np
import pytest
from numpy.typing import ArrayLike

from sched_policy.curves import MIN_POINTS, CurveTable, LearningCurve, fit_all


def fit(x: ArrayLike, y: ArrayLike) -> LearningCurve | None:
    return fit_all([(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))])[0]


def improvement(curve: LearningCurve, x_from: float, x_to: float) -> tuple[float, float]:
    """Expected fall of the metric and its standard deviation."""
    mean, std = CurveTable([curve]).improvement([x_from], [x_to])
    return float(mean[0]), float(std[0])


@pytest.mark.parametrize("power", [0.4, 1.0, 2.5])
def test_power_law_is_extrapolated(power: float) -> None:
    x = np.linspace(5, 100, 20)
    y = 0.3 + 2.0 * (1 + x / 50) ** -power
    curve = fit(x, y)
    assert curve is not None
    truth = 2.0 * (1 + 100 / 50) ** -power - 2.0 * (1 + 200 / 50) ** -power
    assert improvement(curve, 100, 200)[0] == pytest.approx(truth, rel=0.25)


def test_exponential_is_extrapolated() -> None:
    x = np.linspace(2, 60, 30)
    curve = fit(x, 1.5 + 4 * np.exp(-x / 30))
    assert curve is not None
    assert improvement(curve, 60, 120)[0] == pytest.approx(4 * (np.exp(-2) - np.exp(-4)), rel=0.1)


def test_noise_widens_the_uncertainty() -> None:
    x = np.linspace(5, 100, 20)
    clean = 0.3 + 2.0 * (1 + x / 50) ** -1
    noise = np.random.default_rng(1).normal(0, 0.1, x.size)
    quiet, loud = fit(x, clean), fit(x, clean + noise)
    assert quiet is not None
    assert loud is not None
    assert improvement(loud, 100, 200)[1] > 5 * improvement(quiet, 100, 200)[1]


def test_more_reports_narrow_the_uncertainty() -> None:
    rng = np.random.default_rng(2)
    x = np.linspace(1, 100, 100)
    y = 0.3 + 2.0 * (1 + x / 50) ** -1 + rng.normal(0, 0.02, x.size)
    few, many = fit(x[::25], y[::25]), fit(x, y)
    assert few is not None
    assert many is not None
    assert improvement(many, 100, 200)[1] < improvement(few, 100, 200)[1]


def test_a_metric_that_rises_promises_nothing() -> None:
    x = np.linspace(1, 50, 10)
    curve = fit(x, 1 + x)
    assert curve is not None
    assert improvement(curve, 50, 100)[0] == 0.0


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([], []),
        ([1, 2], [3, 2]),
        ([1, 1, 1, 1], [4, 3, 2, 1]),
        ([0, 0, 0], [1, 1, 1]),
        ([1, 2, 3], [float("nan"), float("inf"), 1]),
    ],
)
def test_too_little_to_fit(x: list[float], y: list[float]) -> None:
    assert fit(x, y) is None


def test_a_constant_metric_is_no_error() -> None:
    curve = fit([1, 2, 3, 4], [2, 2, 2, 2])
    assert curve is not None
    assert improvement(curve, 4, 8)[0] == pytest.approx(0, abs=1e-9)


def history(reports: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(1, 500, reports))
    return x, rng.uniform(0.1, 3) * (1 + x / 50) ** -rng.uniform(0.2, 3) + rng.normal(0, 0.02, reports)


def test_many_curves_at_once_are_the_curves_one_by_one() -> None:
    histories = [history(reports, seed) for seed, reports in enumerate([3, 300, 2, 50, 7, 128, 0, 50, 129, 4])]
    together = fit_all(histories)
    assert [curve is None for curve in together] == [x.size < MIN_POINTS for x, _ in histories]
    for (x, y), curve in zip(histories, together, strict=True):
        alone = fit(x, y)
        assert (alone is None) == (curve is None)
        if alone is not None and curve is not None:
            assert curve.scale == alone.scale
            np.testing.assert_array_equal(curve.weights, alone.weights)  # to the last digit: plans are pure
            np.testing.assert_array_equal(curve.slope, alone.slope)
            np.testing.assert_array_equal(curve.slope_std, alone.slope_std)


def test_a_table_reads_each_curve_at_its_own_resources() -> None:
    curves = [curve for curve in fit_all([history(30, seed) for seed in (1, 2, 3)]) if curve is not None]
    x_from, x_to = np.array([10.0, 300.0, 0.0]), np.array([20.0, 900.0, 700.0])
    mean, std = CurveTable(curves).improvement(x_from, x_to)
    one_by_one = [improvement(c, a, b) for c, a, b in zip(curves, x_from, x_to, strict=True)]
    assert mean.tolist() == pytest.approx([mean for mean, _ in one_by_one])
    assert std.tolist() == pytest.approx([std for _, std in one_by_one])


def test_weighted_least_squares_is_exact_for_the_true_shape() -> None:
    x = np.linspace(1, 80, 40)
    noisy = 2.0 + 3.0 * np.exp(-3.0 * x / 80) + np.random.default_rng(3).normal(0, 0.05, x.size)
    curve = fit(x, noisy)
    assert curve is not None
    weights = 0.2 + 0.8 * x / x.max()
    shapes = np.exp(-np.geomspace(0.3, 30.0, 48)[:, None] * x / x.max())
    for shape, slope in zip(shapes, curve.slope[-48:], strict=True):
        root = np.sqrt(weights)
        design = np.column_stack([root, root * shape])
        expected = np.linalg.lstsq(design, root * noisy, rcond=None)[0][1]
        assert slope == pytest.approx(max(0.0, expected), rel=1e-6)
