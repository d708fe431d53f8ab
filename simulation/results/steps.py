"""A count over time that changes in steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise


class Steps:
    """A count over time: `values[i]` holds from `times_s[i]` until `times_s[i + 1]`, the last one for good.

    Before the first time it is 0. Times must not fall; without any the count is 0 throughout.
    """

    __slots__ = ("_area", "_times_s", "_values")

    def __init__(self, times_s: Sequence[float], values: Sequence[float]) -> None:
        """A count from its steps; both sequences have the same length."""
        self._times_s = times_s
        self._values = values
        areas = (
            value * (until_s - from_s) for value, (from_s, until_s) in zip(values, pairwise(times_s), strict=False)
        )
        self._area = list(accumulate(areas, initial=0.0))

    @classmethod
    def of_changes(cls, changes: Iterable[tuple[float, float]]) -> Steps:
        """The count that changes at each (time, by how much), given in any order."""
        ordered = sorted(changes)
        return cls([time_s for time_s, _ in ordered], list(accumulate(by for _, by in ordered)))

    def integral(self, until_s: float) -> float:
        """The count summed over all time until then, in count x seconds."""
        step = bisect_right(self._times_s, until_s) - 1
        if step < 0:
            return 0.0
        return self._area[step] + self._values[step] * (until_s - self._times_s[step])

    def mean(self, from_s: float, until_s: float) -> float:
        """The mean count between two different times."""
        return (self.integral(until_s) - self.integral(from_s)) / (until_s - from_s)
