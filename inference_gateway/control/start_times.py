"""How long a replica takes to start, from starts that have ended and those that still go on.

A replica that waits in Slurm's queue has not told yet how long it waits, but that it is more than until now: its age is
a censored observation. Leaving it out would make a full cluster look as quick as it was yesterday (Kaplan and Meier,
Nonparametric estimation from incomplete observations, 1958).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


def quantile(ended_s: Sequence[float], going_on_s: Sequence[float], share: float) -> float:
    """The time within which `share` of all have ended; the longest seen if so many have not. There must be one."""
    return _reached(ended_s, going_on_s, 1.0 - share) or max((*ended_s, *going_on_s))


def median_left_s(ended_s: Sequence[float], going_on_s: Sequence[float], age_s: float) -> float:
    """How long one of this age will still take: the median of those that took longer.

    Without any it may take as long again: nothing else is known of what has lasted longer than all before it.
    """
    longer = [found for found in ended_s if found > age_s]
    end_s = _reached(longer, [found for found in going_on_s if found > age_s], 0.5)
    return age_s if end_s is None else end_s - age_s


def _reached(ended_s: Sequence[float], going_on_s: Sequence[float], left: float) -> float | None:
    """When no more than this share is left (Kaplan-Meier); None if that was not seen."""
    survival = 1.0
    for time_s in sorted(set(ended_s)):
        at_risk = sum(found >= time_s for found in (*ended_s, *going_on_s))
        survival *= 1.0 - ended_s.count(time_s) / at_risk
        if survival <= left + 1e-9:
            return time_s
    return None


_LEAST_KNOWN = 3


@dataclass(frozen=True, slots=True)
class Start:
    """A replica on its way, now. `age_s` is since its job runs, else since it was asked for.

    `expected_in_s` is Slurm's own estimate for a job that waits, None while it has none: the backfill scheduler has not
    looked at the job yet. It is optimistic where jobs of higher priority may still come, and pessimistic where jobs end
    before their time limits.
    """

    running: bool
    age_s: float
    expected_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The latest times of one service: in Slurm's queue, and from the start of the job until it serves.

    `came_true` are waits as shares of what Slurm had first estimated for them: it reckons with time limits and without
    those who come later, and is wrong by about as much each time.
    """

    waits_s: Sequence[float]
    loads_s: Sequence[float]
    came_true: Sequence[float] = ()

    def next_in_s(self, starts: Iterable[Start], configured_s: float) -> float | None:
        """When the first of these will serve; None if there is none. `configured_s` stands for what is not measured."""
        known = tuple(starts)
        return min((self._left_s(start, known, configured_s) for start in known), default=None)

    def _wait_left_s(self, age_s: float, expected_in_s: float) -> float:
        """What is left of a wait for which Slurm has an estimate, which counts alone before anything was measured.

        Earlier waits stand for this one in two ways: as they were, and as shares of what Slurm says of this one. It is
        the median of those that are still possible. One that has outlasted them all may start at any moment.
        """
        if len(self.came_true) < _LEAST_KNOWN:
            return expected_in_s
        likely_s = (*self.waits_s, *(share * (age_s + expected_in_s) for share in self.came_true))
        possible_s = [wait_s for wait_s in likely_s if wait_s > age_s]
        return median(possible_s) - age_s if possible_s else min(age_s, expected_in_s) / 2

    def _left_s(self, start: Start, known: Sequence[Start], configured_s: float) -> float:
        loading = [other.age_s for other in known if other.running]
        if start.running:
            if not self.loads_s and start.age_s < configured_s:
                return configured_s - start.age_s
            return median_left_s(self.loads_s, loading, start.age_s)
        load_s = quantile(self.loads_s, loading, 0.5) if self.loads_s else configured_s
        if start.expected_in_s is not None:
            return self._wait_left_s(start.age_s, max(0.0, start.expected_in_s)) + load_s
        if not self.waits_s and start.age_s < configured_s:
            return max(load_s, configured_s - start.age_s)
        return median_left_s(self.waits_s, [other.age_s for other in known if not other.running], start.age_s) + load_s
