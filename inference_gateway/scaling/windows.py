"""Means over the last seconds of a signal."""

from __future__ import annotations

from collections import deque


class RecentMean:
    """The mean of the last `seconds` values; of fewer while there are fewer. All sums are of the values kept."""

    def __init__(self, seconds: int) -> None:
        self._values: deque[float] = deque(maxlen=seconds)

    def add(self, value: float) -> None:
        """Take the value of one more second."""
        self._values.append(value)

    @property
    def value(self) -> float:
        """The mean; 0 while there is no value."""
        return sum(self._values) / len(self._values) if self._values else 0.0

    @property
    def full(self) -> bool:
        """Whether the window is filled."""
        return len(self._values) == self._values.maxlen


class RecentMost:
    """The largest of the last `seconds` values."""

    def __init__(self, seconds: int) -> None:
        self._values: deque[int] = deque(maxlen=max(1, seconds))

    def add(self, value: int) -> int:
        """Take the value of one more second, and return the largest."""
        self._values.append(value)
        return max(self._values)
