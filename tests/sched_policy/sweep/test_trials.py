"""Reports as strategies read them, and what is remembered of sweeps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sched_policy.model import Direction, ProgressPoint
from sched_policy.sweep.trials import Memory, oriented


@pytest.mark.parametrize(("direction", "sign"), [(Direction.MIN, 1.0), (Direction.MAX, -1.0)])
def test_reports_that_are_not_finite_or_go_back_are_skipped(direction: Direction, sign: float) -> None:
    told = [(1, 0.9), (2, math.nan), (3, math.inf), (4, 0.5), (4, 0.4), (2, 0.3), (5, 0.2)]
    steps, values = oriented(tuple(ProgressPoint(step, 10.0 * step, value) for step, value in told), direction)
    assert steps.tolist() == [1, 4, 5]
    assert (sign * values).tolist() == [0.9, 0.5, 0.2]


def test_differences_of_values_are_finite() -> None:
    told = [(1, 1.7e308), (2, 0.5), (3, -1.7e308)]
    steps, values = oriented(tuple(ProgressPoint(step, 10.0 * step, value) for step, value in told), Direction.MIN)
    assert steps.tolist() == [1, 2, 3]
    assert np.isfinite(np.diff(values) ** 2).all()
    assert values[1] == 0.5


def test_no_reports_are_no_numbers() -> None:
    steps, values = oriented((), Direction.MIN)
    assert steps.size == values.size == 0


def test_a_value_is_kept_while_its_state_is_and_until_it_is_forgotten() -> None:
    memory: Memory[int] = Memory()
    made = iter(range(10))

    def recall(key: str, state: int) -> int:
        return memory.recall(key, state, lambda: next(made))

    assert [recall("a", 1), recall("a", 1), recall("b", 1), recall("a", 2)] == [0, 0, 1, 2]
    memory.forget_all_but(["b"])
    assert [recall("b", 1), recall("a", 2)] == [1, 3]
