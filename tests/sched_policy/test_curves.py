import numpy as np
import pytest

from sched_policy.curves import fit


@pytest.mark.parametrize("power", [0.4, 1.0, 2.5])
def test_power_law_is_extrapolated(power: float) -> None:
    x = np.linspace(5, 100, 20)
    y = 0.3 + 2.0 * (1 + x / 50) ** -power
    curve = fit(x, y)
    assert curve is not None
    truth = 2.0 * (1 + 100 / 50) ** -power - 2.0 * (1 + 200 / 50) ** -power
    assert curve.improvement(100, 200).mean == pytest.approx(truth, rel=0.25)


def test_exponential_is_extrapolated() -> None:
    x = np.linspace(2, 60, 30)
    curve = fit(x, 1.5 + 4 * np.exp(-x / 30))
    assert curve is not None
    assert curve.improvement(60, 120).mean == pytest.approx(4 * (np.exp(-2) - np.exp(-4)), rel=0.1)


def test_noise_widens_the_uncertainty() -> None:
    x = np.linspace(5, 100, 20)
    clean = 0.3 + 2.0 * (1 + x / 50) ** -1
    noise = np.random.default_rng(1).normal(0, 0.1, x.size)
    quiet, loud = fit(x, clean), fit(x, clean + noise)
    assert quiet is not None
    assert loud is not None
    assert loud.improvement(100, 200).std > 5 * quiet.improvement(100, 200).std


def test_more_reports_narrow_the_uncertainty() -> None:
    rng = np.random.default_rng(2)
    x = np.linspace(1, 100, 100)
    y = 0.3 + 2.0 * (1 + x / 50) ** -1 + rng.normal(0, 0.02, x.size)
    few, many = fit(x[::25], y[::25]), fit(x, y)
    assert few is not None
    assert many is not None
    assert many.improvement(100, 200).std < few.improvement(100, 200).std


def test_a_metric_that_rises_promises_nothing() -> None:
    x = np.linspace(1, 50, 10)
    curve = fit(x, 1 + x)
    assert curve is not None
    assert curve.improvement(50, 100).mean == 0.0


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
    assert curve.improvement(4, 8).mean == pytest.approx(0, abs=1e-9)
