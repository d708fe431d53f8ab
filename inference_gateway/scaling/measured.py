"""The capacity of a replica, measured while it serves; the configured requests per second are only the initial value.

The service time of a request follows from existing counters by Little's law: the requests in flight, summed over the
seconds of a window, divided by the mean of those begun and those answered in it. Longer answers show at once, before
the first of them has ended, because fewer requests end. By the answers alone a burst of long requests, or each replica
that has just become ready and filled up, would look like longer answers, and so cause the next scale-out.

A server with continuous batching is faster with fewer requests, so a time measured at half load is not that of a full
replica. A step with n requests takes a + b n ms, and so a request takes:

    S(u) = S(1) x (1 - SHARED + SHARED x u)        u: requests in flight as a share of all places

`SHARED` is between 0 (requests do not slow each other down) and 1 (they share everything). It is not measured: under
steady load it cannot be told from longer answers. A wrong value corrects itself: a service with too few replicas
measures closer to u = 1, where `SHARED` does not matter.

The metrics of the replicas' servers, where they are known, tell two more things. Requests that wait inside a replica
are not being served and count as queued. And a replica takes no more requests than fit into its KV cache:

    places = limit x running / usage        sums over the replicas, means over a minute; at most `concurrency`

so that with one request per place the caches are filled to the limit, which is the ratio by which Kubernetes'
HorizontalPodAutoscaler scales. The formula also holds for caches that are not full, so the result does not jump when
one fills up. A replica with waiting requests counts as full: its usage is taken to be at least the limit. One whose
server does not report its cache, and in which no request waits, has `concurrency` places.
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
"""From fast to smooth."""
_DOUBT = 3.0
_LEAST_REQUESTS = 10
_PRIOR_REQUESTS = 20
"""Weight of the configured value, in requests."""
_SURE_S = 10
"""Without a request that waits inside a replica: the replicas' metrics may be as old."""
_REFRESH_S = 5
_CACHE_S = 60
KV_CACHE_LIMIT = 0.9


def with_waiting_inside(seen: Observation) -> Observation:
    """The observation with the requests that wait inside replicas counted as queued.

    At most as many as are in flight: the servers' metrics may be a few seconds old.
    """
    waiting = min(seen.in_flight, sum(load.waiting for load in seen.loads))
    return replace(seen, in_flight=seen.in_flight - waiting, queued=seen.queued + waiting)


class ReplicaPlaces:
    """How many requests a replica takes, by its metrics. `limit` is the fraction of its KV cache to fill, in (0, 1]."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._running = RecentMean(_CACHE_S)
        self._usage = RecentMean(_CACHE_S)

    def add(self, loads: Sequence[ReplicaLoad], concurrency: int) -> None:
        """Add the next second: the known loads of the replicas, which take at most `concurrency` requests each."""
        self._running.add(sum(load.running for load in loads))
        self._usage.add(sum(self._usage_of(load, concurrency) for load in loads))

    def _usage_of(self, load: ReplicaLoad, concurrency: int) -> float:
        usage = self._limit * load.running / concurrency if load.kv_cache is None else load.kv_cache
        return max(usage, self._limit) if load.waiting else usage

    def of(self, concurrency: int) -> int:
        """The number of places, at most `concurrency`; `concurrency` itself while nothing is known."""
        running, usage = self._running.value, self._usage.value
        if not running or not usage:
            return concurrency
        return max(1, min(concurrency, round(self._limit * running / usage)))


@dataclass(frozen=True, slots=True)
class _Sum:
    """Totals since the start: request-seconds in flight, scaled to full replicas, and requests: mean of both ends."""

    work_s: float = 0.0
    requests: float = 0.0


class ServiceTimes:
    """Measured service time in a full replica, and its number of places. `prior` is the configured capacity."""

    def __init__(self, prior: Capacity, kv_cache_limit: float = KV_CACHE_LIMIT) -> None:
        self.prior = prior
        self._places = ReplicaPlaces(kv_cache_limit)
        self._sums = deque([_Sum()], maxlen=_WINDOWS_S[-1] + 1)
        self._in_flight = 0
        self._free_s = 0

    def add(self, seen: Observation, waiting: int = 0) -> None:
        """Add the next second. `waiting` of the queued requests wait inside replicas, some seconds ago."""
        last = self._sums[-1]
        self._places.add(seen.loads, self.prior.concurrency)
        places = (seen.ready + seen.leaving) * self.concurrency
        share = min(1.0, seen.in_flight / places) if places else 1.0
        work_s = seen.in_flight / (1 - SHARED + SHARED * share)
        # At first, and in full replicas, as many begin as are answered: what waits in these is known too late to tell.
        self._free_s = 0 if waiting else self._free_s + 1
        more = seen.in_flight - self._in_flight if self._free_s > _SURE_S else 0
        self._in_flight = seen.in_flight
        begun = max(0, more + seen.answered)  # below 0: some have failed
        self._sums.append(_Sum(last.work_s + work_s, last.requests + (begun + seen.answered) / 2))

    def capacity(self) -> Capacity:
        """The capacity of a replica as measured so far."""
        places = self.concurrency
        return replace(self.prior, concurrency=places, requests_per_s=places / self._seconds())

    @property
    def concurrency(self) -> int:
        """The number of requests that a replica serves at once."""
        return self._places.of(self.prior.concurrency)

    def _seconds(self) -> float:
        """Mean service time over the longest window that no shorter one contradicts by three standard deviations.

        The standard deviation of a service time is taken to equal its mean (exponential distribution).
        """
        prior_s = self.prior.concurrency / self.prior.requests_per_s
        long = self._window(_WINDOWS_S[-1])
        mean_s = (long.work_s + _PRIOR_REQUESTS * prior_s) / (long.requests + _PRIOR_REQUESTS)
        for window_s in reversed(_WINDOWS_S[:-1]):
            short = self._window(window_s)
            # Requests that are too short to be seen in flight tell nothing but that.
            if short.requests >= _LEAST_REQUESTS and short.work_s:
                found_s = short.work_s / short.requests
                if abs(found_s - mean_s) > _DOUBT * mean_s / math.sqrt(short.requests):
                    mean_s = found_s
        return mean_s

    def _window(self, seconds: int) -> _Sum:
        now, before = self._sums[-1], self._sums[-min(seconds + 1, len(self._sums))]
        return _Sum(now.work_s - before.work_s, now.requests - before.requests)


class MeasuredRule:
    """A rule that runs another rule with measured service times and the replicas' own metrics."""

    def __init__(self, rule: ScaleRule, prior: Capacity, kv_cache_limit: float = KV_CACHE_LIMIT) -> None:
        self.rule = rule
        self.name = rule.name
        self.times = ServiceTimes(prior, kv_cache_limit)
        self._seconds = 0

    def decide(self, seen: Observation) -> Decision:
        """The inner rule's decision, with the capacity measured so far."""
        inside = with_waiting_inside(seen)
        waiting = inside.queued - seen.queued
        self.times.add(inside, waiting)
        self._seconds += 1
        if self._seconds % _REFRESH_S == 0:
            self.rule.calibrate(self.times.capacity())
        decision = self.rule.decide(inside)
        added = f"; {waiting} of the queued wait inside replicas" if waiting else ""
        if (places := self.times.concurrency) < self.times.prior.concurrency:
            added += f"; replicas take {places} requests each by their metrics"
        return replace(decision, reason=decision.reason + added) if added else decision

    def calibrate(self, capacity: Capacity) -> None:
        """Take a new start time or new configured values."""
        self.times.prior = capacity
        self.rule.calibrate(self.times.capacity())
