"""What a replica can do and how long it takes to start, measured: configured rates are only where it begins.

The time a request takes follows from what is counted anyway (Little's law): requests in flight, summed over the seconds
of a window, over the requests answered in it. It notices at once that answers have become longer, before the first long
one has ended, because fewer end.

A server with continuous batching is quicker with fewer requests, so a time measured at half load is not that of a full
replica. A step takes a + b n ms with n requests, and so does a request:

    S(u) = S(1) x (1 - SHARED + SHARED x u)        u: requests in flight as a share of all places

`SHARED` is between 0 (places that do not disturb each other) and 1 (everything is shared). It is not measured: where
the load is steady it cannot be told from longer answers. A wrong value corrects itself: who then runs too few replicas
measures nearer to u = 1, where it does not matter.

Of starts those that still go on count too, as censored observations: a replica in Slurm's queue waits longer than until
now. Leaving it out would make a full cluster look as quick as it was yesterday (Kaplan and Meier, Nonparametric
estimation from incomplete observations, 1958).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from inference_gateway.model import Capacity, Decision, Observation, ScaleRule

SHARED = 0.5
_WINDOWS_S = (30, 120, 600)
"""From quick to steady."""
_DOUBT = 3.0
_LEAST_ANSWERS = 10
_PRIOR_ANSWERS = 20
"""Weight of what was configured."""
_REFRESH_S = 5


@dataclass(frozen=True, slots=True)
class _Sum:
    """Since the start: seconds of requests in flight, as if replicas were full, and answers."""

    work_s: float = 0.0
    answered: int = 0


class ServiceTimes:
    """The time a request takes in a full replica. `prior` is what was configured."""

    def __init__(self, prior: Capacity) -> None:
        self.prior = prior
        self._sums = deque([_Sum()], maxlen=_WINDOWS_S[-1] + 1)

    def add(self, seen: Observation) -> None:
        """Take one more second."""
        last = self._sums[-1]
        places = (seen.ready + seen.leaving) * self.prior.concurrency
        share = min(1.0, seen.in_flight / places) if places else 1.0
        work_s = seen.in_flight / (1 - SHARED + SHARED * share)
        self._sums.append(_Sum(last.work_s + work_s, last.answered + seen.answered))

    def capacity(self) -> Capacity:
        """What a replica does, by what is known now."""
        return replace(self.prior, requests_per_s=self.prior.concurrency / self._seconds())

    def _seconds(self) -> float:
        """The mean over the longest window that no shorter one contradicts by three standard deviations.

        Service times are taken to vary as much as their mean (exponential).
        """
        prior_s = self.prior.concurrency / self.prior.requests_per_s
        long = self._window(_WINDOWS_S[-1])
        mean_s = (long.work_s + _PRIOR_ANSWERS * prior_s) / (long.answered + _PRIOR_ANSWERS)
        for window_s in reversed(_WINDOWS_S[:-1]):
            short = self._window(window_s)
            if short.answered >= _LEAST_ANSWERS:
                found_s = short.work_s / short.answered
                if abs(found_s - mean_s) > _DOUBT * mean_s / math.sqrt(short.answered):
                    mean_s = found_s
        return mean_s

    def _window(self, seconds: int) -> _Sum:
        now, before = self._sums[-1], self._sums[-min(seconds + 1, len(self._sums))]
        return _Sum(now.work_s - before.work_s, now.answered - before.answered)


class MeasuredRule:
    """A rule that plans with measured service times: itself a rule."""

    def __init__(self, rule: ScaleRule, prior: Capacity) -> None:
        self.rule = rule
        self.name = rule.name
        self.times = ServiceTimes(prior)
        self._seconds = 0

    def decide(self, seen: Observation) -> Decision:
        """What the rule wants with what is known of its replicas by now."""
        self.times.add(seen)
        self._seconds += 1
        if self._seconds % _REFRESH_S == 0:
            self.rule.calibrate(self.times.capacity())
        return self.rule.decide(seen)

    def calibrate(self, capacity: Capacity) -> None:
        """Take another start time, or other configured values."""
        self.times.prior = capacity
        self.rule.calibrate(self.times.capacity())


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
