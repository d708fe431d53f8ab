"""What was made of reports and of sweeps that have not changed since they were asked about last."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

import numpy as np

from sched_policy.model import Direction, ProgressPoint
from sched_policy.snapshot import Floats
from sched_policy.sweep.trials import SweepDecision

Points = tuple[ProgressPoint, ...]


class ReportMemory:
    """Steps and oriented values of points tuples, by their identity: a tuple never changes, so neither do these.

    Each entry holds its tuple, so that no other object can take over its id. `forget_all_but` keeps what is in use.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Direction], tuple[Points, Floats, Floats]] = {}

    def recall(self, points: Points, direction: Direction) -> tuple[Floats, Floats]:
        """Steps, rising, and values, lower is better. What is not finite, or goes back in steps, is passed over."""
        key = id(points), direction
        if key not in self._kept:
            self._kept[key] = points, *_oriented(points, direction)
        return self._kept[key][1:]

    def forget_all_but(self, in_use: Iterable[Points]) -> None:
        """Let go of reports that nobody asks about any more."""
        ids = {id(points) for points in in_use}
        self._kept = {key: entry for key, entry in self._kept.items() if key[0] in ids}


class DecisionMemory:
    """The last decision about each sweep, used again while nothing about the sweep has changed."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[object, SweepDecision]] = {}

    def recall(self, key: Hashable, state: object, decide: Callable[[], SweepDecision]) -> SweepDecision:
        """What was decided about the sweep of that key in that state, all that a decision depends on."""
        kept = self._kept.get(key)
        if kept is None or kept[0] != state:
            kept = self._kept[key] = state, decide()
        return kept[1]

    def forget_all_but(self, in_use: Iterable[Hashable]) -> None:
        """Let go of sweeps that are over."""
        keys = set(in_use)
        self._kept = {key: entry for key, entry in self._kept.items() if key in keys}


def _oriented(points: Points, direction: Direction) -> tuple[Floats, Floats]:
    sign = 1.0 if direction is Direction.MIN else -1.0
    steps: Floats = np.array([point.step for point in points], dtype=np.float64)
    values: Floats = np.array([point.value for point in points], dtype=np.float64)
    if np.isfinite(values).all() and (steps[1:] > steps[:-1]).all():  # nearly always; after a restart all are read anew
        return steps, sign * values
    table = np.array([(point.step, point.value) for point in points], dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    highest = np.maximum.accumulate(table[:, 0]) if len(table) else table[:, 0]
    rises = np.concatenate([[True], table[1:, 0] > highest[:-1]]) if len(table) else np.empty(0, dtype=np.bool_)
    return table[rises, 0], sign * table[rises, 1]
