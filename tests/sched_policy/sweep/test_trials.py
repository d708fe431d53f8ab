"""Reports as strategies read them, and what is remembered of sweeps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sched_policy.model import LARGEST_VALUE, Direction, ProgressPoint
from sched_policy.sweep.trials import Cache, oriented

SIDES = pytest.mark.parametrize(("direction", "sign"), [(Direction.MIN, 1.0), (Direction.MAX, -1.0)])


def told(*reports: tuple[int, float]) -> tuple[ProgressPoint, ...]:
    return tuple(ProgressPoint(step, 10.0 * step, value) for step, value in reports)


@SIDES
def test_reports_that_go_back_or_are_not_finite_before_one_that_is_are_skipped(
    direction: Direction, sign: float
) -> None:
    steps, values = oriented(
        told((1, 0.9), (2, math.nan), (3, math.inf), (4, 0.5), (4, 0.4), (2, 0.3), (5, 0.2)), direction
    )
    assert steps.tolist() == [1, 4, 5]
    assert (sign * values).tolist() == [0.9, 0.5, 0.2]


@SIDES
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_latest_reports_that_are_not_finite_are_progress_without_improvement(
    direction: Direction, sign: float, odd: float
) -> None:
    steps, values = oriented(told((1, 0.9), (2, 0.5), (3, odd), (4, odd)), direction)
    assert steps.tolist() == [1, 2, 3, 4]
    assert (sign * values[:2]).tolist() == [0.9, 0.5]
    assert (values[2:] == LARGEST_VALUE).all()


@SIDES
def test_no_value_of_a_diverged_training_counts(direction: Direction, sign: float) -> None:
    del sign
    steps, values = oriented(told((1, 0.9), *((step, math.nan) for step in (2, 3, 4))), direction)
    assert steps.tolist() == [1, 2, 3, 4]
    assert (values == LARGEST_VALUE).all()


def test_a_training_that_goes_on_from_before_it_diverged_has_recovered() -> None:
    """The steps of its former run that it has not reached again do not count."""
    steps, values = oriented(told((1, 0.9), *((step, math.nan) for step in (2, 3, 4, 5)), (2, 0.5)), Direction.MIN)
    assert (steps.tolist(), values.tolist()) == ([1, 2], [0.9, 0.5])


def test_differences_of_values_are_finite() -> None:
    steps, values = oriented(told((1, 1.7e308), (2, 0.5), (3, -1.7e308)), Direction.MIN)
    assert steps.tolist() == [1, 2, 3]
    assert np.isfinite(np.diff(values) ** 2).all()
    assert values[1] == 0.5


def test_no_reports_are_no_numbers() -> None:
    steps, values = oriented((), Direction.MIN)
    assert steps.size == values.size == 0


def test_a_value_is_kept_while_its_state_is_and_until_it_is_forgotten() -> None:
    cache: Cache[int] = Cache()
    made = iter(range(10))

    def recall(key: str, state: int) -> int:
        return cache.recall(key, state, lambda: next(made))

    assert [recall("a", 1), recall("a", 1), recall("b", 1), recall("a", 2)] == [0, 0, 1, 2]
    cache.forget_all_but(["b"])
    assert [recall("b", 1), recall("a", 2)] == [1, 3]
