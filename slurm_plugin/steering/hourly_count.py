"""How many preemptions have begun within an hour, which `preemption.max_per_hour` bounds for the site."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from slurm_plugin.config import HOUR_S


class HourlyCount:
    """The times at which preemptions have begun, of the last hour."""

    def __init__(self) -> None:
        self._begun_s: deque[float] = deque()

    def of(self, now_s: float) -> int:
        """How many have begun within the last hour."""
        while self._begun_s and now_s - self._begun_s[0] >= HOUR_S:
            self._begun_s.popleft()
        return len(self._begun_s)

    def add(self, at_s: float) -> None:
        """One begins."""
        self._begun_s.append(at_s)

    def take_back(self, at_s: float) -> None:
        """One that has been added with this time has not begun after all."""
        self._begun_s.remove(at_s)

    def restore(self, begun_s: Iterable[float]) -> None:
        """Take over those of an earlier daemon, before any is added."""
        self._begun_s.extend(sorted(begun_s))
