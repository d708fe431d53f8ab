"""When the schedulers look at the queue: each sleeps between two looks, in a rhythm of its own."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

from msgspec import Struct


class Rhythm(Struct, frozen=True):
    """Looks every `interval_s`, `offset_s` later than its multiples.

    With `measured_s`, times in rising order, it looks then, and every `interval_s` after the last of them.
    """

    interval_s: float
    offset_s: float = 0.0
    measured_s: tuple[float, ...] = ()

    def next_s(self, not_before_s: float, after_s: float) -> float:
        """The first look at `not_before_s` or later that is later than `after_s`, a look or minus infinity."""
        coming = max(bisect_left(self.measured_s, not_before_s), bisect_right(self.measured_s, after_s))
        if coming < len(self.measured_s):
            return self.measured_s[coming]
        base_s = self.measured_s[-1] if self.measured_s else self.offset_s
        number = math.ceil((not_before_s - base_s) / self.interval_s)
        if math.isfinite(after_s):
            number = max(number, round((after_s - base_s) / self.interval_s) + 1)
        return base_s + number * self.interval_s


class Alarm:
    """The look for which one scheduler has been asked, if any. It never looks twice at one moment."""

    def __init__(self, rhythm: Rhythm) -> None:
        self._rhythm = rhythm
        self._next_s = math.inf
        self._last_s = -math.inf

    def ask(self, not_before_s: float) -> float | None:
        """The time of the next look from then on; None if it is known already."""
        next_s = self._rhythm.next_s(not_before_s, self._last_s)
        if next_s >= self._next_s:
            return None
        self._next_s = next_s
        return next_s

    def rings(self, now_s: float) -> bool:
        """Whether the look that was asked for is now; then it is made."""
        if now_s != self._next_s:
            return False
        self._next_s, self._last_s = math.inf, now_s
        return True
