"""What a replica can do, measured while it serves: the configured requests per second are only where it begins.

The time a request takes follows from what is counted anyway (Little's law): requests in flight, summed over the seconds
of a window, over the requests answered in it. It notices at once that answers have become longer, before the first long
one has ended, because fewer end.

A server with continuous batching is quicker with fewer requests, so a time measured at half load is not that of a full
replica. A step takes a + b n ms with n requests, and so does a request:

    S(u) = S(1) x (1 - SHARED + SHARED x u)        u: requests in flight as a share of all places

`SHARED` is between 0 (places that do not disturb each other) and 1 (everything is shared). It is not measured: where
the load is steady it cannot be told from longer answers. A wrong value corrects itself: who then runs too few replicas
measures nearer to u = 1, where it does not matter.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

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
