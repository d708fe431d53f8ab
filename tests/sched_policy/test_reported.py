"""Curves are fitted when something new was reported, and only then."""

import numpy as np
import pytest
from msgspec.structs import replace

from sched_policy import curves
from sched_policy import improvement as module
from sched_policy.improvement import remaining_improvement, reported
from sched_policy.model import Direction, ProgressPoint
from tests.sched_policy.builders import EXPLORING, curve, job, running, snapshot


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many curves each call has fitted."""
    counts: list[int] = []
    fit_all = curves.fit_all

    def counting(histories: list[tuple[np.ndarray, np.ndarray]]) -> object:
        counts.append(len(histories))
        return fit_all(histories)

    monkeypatch.setattr(module, "fit_all", counting)
    return counts


def test_only_new_reports_are_fitted(fitted: list[int]) -> None:
    first, second = curve(0.1, 1.0, 200), curve(0.3, 0.5, 300)
    before = reported([(first, Direction.MIN), (second, Direction.MIN)])
    longer = (*second, ProgressPoint(13, 310.0, 0.2))
    after = reported([(first, Direction.MIN), (longer, Direction.MIN)])
    assert fitted == [2, 1]
    assert after[0] is before[0]
    assert after[1].best == 0.2


def test_equal_points_say_the_same_whoever_holds_them() -> None:
    points = curve(0.1, 1.0, 200)
    copied = tuple(replace(point) for point in points)
    (one,), (other,) = reported([(points, Direction.MIN)]), reported([(copied, Direction.MIN)])
    assert one.curve is not None
    assert other.curve is not None
    assert one is not other
    np.testing.assert_array_equal(one.curve.weights, other.curve.weights)


def test_the_same_points_in_the_other_direction_say_something_else() -> None:
    points = (ProgressPoint(1, 1.0, 5.0), ProgressPoint(2, 2.0, 3.0), ProgressPoint(3, 3.0, 4.0))
    low, high = reported([(points, Direction.MIN), (points, Direction.MAX)])
    assert (low.best, low.shown, low.largest) == (3.0, 2.0, 2.0)
    assert (high.best, high.shown, high.largest) == (-5.0, 0.0, 1.0)


def test_not_a_number_is_passed_over() -> None:
    values = (float("nan"), 2.0, 1.0, float("inf"))
    points = tuple(ProgressPoint(i, float(i), value) for i, value in enumerate(values))
    (said,) = reported([(points, Direction.MIN)])
    assert (said.best, said.shown, said.spent_gpu_s) == (1.0, 1.0, 2.0)
    (silent,) = reported([((points[0],), Direction.MIN)])
    assert silent.best is None


def test_one_snapshot_is_looked_at_once(fitted: list[int]) -> None:
    snap = snapshot(running(1, "n1", exploration=EXPLORING, points=curve(0.1, 1.0, 200)), job(2, exploration=EXPLORING))
    assert remaining_improvement(snap.jobs) is remaining_improvement(snap.jobs)
    assert fitted == [1]
