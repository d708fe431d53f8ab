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

Where the metrics of the replicas' servers are known, two more things are. Requests that wait inside a replica are not
being served: they count as queued. And a replica takes no more requests than fit its KV cache:

    places = limit x running / usage        sums over the replicas, means of a minute; at most `concurrency`

so that a service with as many requests as places has caches filled to the limit: the ratio by which Kubernetes'
HorizontalPodAutoscaler scales. It holds for caches that are not full yet, too, and so does not jump when one is. A
replica in which requests wait is full, whatever its cache: its usage is at least the limit. One that does not say how
full its cache is, and in which none wait, has room for `concurrency`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inference_gateway.model import Capacity, Decision, Observation, ReplicaLoad, ScaleRule
from inference_gateway.scaling.arrivals import RecentMean

SHARED = 0.5
_WINDOWS_S = (30, 120, 600)
"""From quick to steady."""
_DOUBT = 3.0
_LEAST_ANSWERS = 10
_PRIOR_ANSWERS = 20
"""Weight of what was configured."""
_REFRESH_S = 5
_CACHE_S = 60
KV_CACHE_LIMIT = 0.9


def with_waiting_inside(seen: Observation) -> Observation:
    """The same second, with the requests that wait inside replicas among the queued ones.

    No more than are in flight: what servers say of themselves may be some seconds old.
    """
    waiting = min(seen.in_flight, sum(load.waiting for load in seen.loads))
    return replace(seen, in_flight=seen.in_flight - waiting, queued=seen.queued + waiting)


class ReplicaPlaces:
    """How many requests a replica takes, by its metrics. `limit` is the share of its KV cache to fill, above 0 to 1."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._running = RecentMean(_CACHE_S)
        self._usage = RecentMean(_CACHE_S)

    def add(self, loads: Sequence[ReplicaLoad], concurrency: int) -> None:
        """Take one more second: what is known of the replicas, which may have `concurrency` requests each."""
        self._running.add(sum(load.running for load in loads))
        self._usage.add(sum(self._usage_of(load, concurrency) for load in loads))

    def _usage_of(self, load: ReplicaLoad, concurrency: int) -> float:
        usage = self._limit * load.running / concurrency if load.kv_cache is None else load.kv_cache
        return max(usage, self._limit) if load.waiting else usage

    def of(self, concurrency: int) -> int:
        """The number, at most `concurrency`, which it is while nothing is known."""
        running, usage = self._running.value, self._usage.value
        if not running or not usage:
            return concurrency
        return max(1, min(concurrency, round(self._limit * running / usage)))


@dataclass(frozen=True, slots=True)
class _Sum:
    """Since the start: seconds of requests in flight, as if replicas were full, and answers."""

    work_s: float = 0.0
    answered: int = 0


class ServiceTimes:
    """The time a request takes in a full replica, and how many it takes. `prior` is what was configured."""

    def __init__(self, prior: Capacity, kv_cache_limit: float = KV_CACHE_LIMIT) -> None:
        self.prior = prior
        self._places = ReplicaPlaces(kv_cache_limit)
        self._sums = deque([_Sum()], maxlen=_WINDOWS_S[-1] + 1)

    def add(self, seen: Observation) -> None:
        """Take one more second."""
        last = self._sums[-1]
        self._places.add(seen.loads, self.prior.concurrency)
        places = (seen.ready + seen.leaving) * self.concurrency
        share = min(1.0, seen.in_flight / places) if places else 1.0
        work_s = seen.in_flight / (1 - SHARED + SHARED * share)
        self._sums.append(_Sum(last.work_s + work_s, last.answered + seen.answered))

    def capacity(self) -> Capacity:
        """What a replica does, by what is known now."""
        places = self.concurrency
        return replace(self.prior, concurrency=places, requests_per_s=places / self._seconds())

    @property
    def concurrency(self) -> int:
        """Requests that a replica serves at once."""
        return self._places.of(self.prior.concurrency)

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
    """A rule that plans with measured service times, and what replicas say of themselves: itself a rule."""

    def __init__(self, rule: ScaleRule, prior: Capacity, kv_cache_limit: float = KV_CACHE_LIMIT) -> None:
        self.rule = rule
        self.name = rule.name
        self.times = ServiceTimes(prior, kv_cache_limit)
        self._seconds = 0

    def decide(self, seen: Observation) -> Decision:
        """What the rule wants with what is known of its replicas by now."""
        inside = with_waiting_inside(seen)
        waiting = inside.queued - seen.queued
        self.times.add(inside)
        self._seconds += 1
        if self._seconds % _REFRESH_S == 0:
            self.rule.calibrate(self.times.capacity())
        decision = self.rule.decide(inside)
        told = f"; {waiting} of the queued wait inside replicas" if waiting else ""
        if (places := self.times.concurrency) < self.times.prior.concurrency:
            told += f"; replicas take {places} requests each by their metrics"
        return replace(decision, reason=decision.reason + told) if told else decision

    def calibrate(self, capacity: Capacity) -> None:
        """Take another start time, or other configured values."""
        self.times.prior = capacity
        self.rule.calibrate(self.times.capacity())
