"""One trace of requests, replayed under any scaling rule, and the figures of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from inference_gateway.model import Capacity
from inference_gateway.scaling.rules import build
from simulation.requests.engine import RequestOutcome, simulate
from simulation.requests.service import SimulatedReplica
from simulation.requests.settings import RequestReplayError, RequestSettings, ServiceTime, service_times
from simulation.requests.trace import RequestTrace


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Requests with their service times, the declared capacity of a replica, and how replicas and queue behave."""

    arrival_s: Sequence[float]
    service_s: Sequence[float]
    capacity: Capacity
    settings: RequestSettings

    @classmethod
    def of(cls, trace: RequestTrace, model: ServiceTime | None, settings: RequestSettings) -> RequestReplay:
        """A replay in which rules know a replica's true capacity: concurrency / mean service time, in requests/s.

        Raises `RequestReplayError` for service times that make no sense and for a trace without requests.
        """
        if not trace.requests:
            raise RequestReplayError("no requests to replay")
        arrival_s = [request.arrival_s for request in trace.requests]
        if any(later < earlier for earlier, later in pairwise(arrival_s)):
            raise RequestReplayError("the requests are not in order of arrival")
        service_s = service_times(trace.requests, model)
        mean_s = sum(service_s) / len(service_s)
        capacity = Capacity(settings.concurrency / mean_s, settings.concurrency, settings.start.mean_s)
        return cls(arrival_s, service_s, capacity, settings)

    def under(
        self,
        rule: str,
        options: Mapping[str, object],
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> RequestOutcome:
        """What becomes of the requests under a rule. Raises `ScalingError` for an unknown rule or option."""
        return simulate(self.arrival_s, self.service_s, build(rule, options, self.capacity), self.settings, progress)

    def measured(
        self,
        rule: str,
        options: Mapping[str, object],
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> RequestMetrics:
        """The figures of `under`."""
        return measure(self.under(rule, options, progress), self.settings)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The figures of one run; percentiles are over all requests, failed ones waited until the deadline.

    Attributes:
        rule: name of the rule.
        requests: requests replayed.
        slo_misses: requests that waited longer than the SLO, or failed.
        slo_miss_share: of all requests.
        failed: requests that reached the deadline.
        replica_seconds: from requesting a replica until it is gone, of all replicas.
        queue_p50_s: median wait for a replica.
        queue_p99_s: 99th percentile of it.
        latency_p50_s: median of wait and service, of answered requests; None if there is none.
        latency_p99_s: 99th percentile of it.
        utilization: work done over replica_seconds x concurrency.
        peak_replicas: most replicas at once, starting and draining ones included.
        scale_outs: decisions for more replicas.
        scale_ins: decisions for fewer.
        span_s: from the first arrival's second 0 to the last answer.

    """

    rule: str
    requests: int
    slo_misses: int
    slo_miss_share: float
    failed: int
    replica_seconds: float
    queue_p50_s: float
    queue_p99_s: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    utilization: float
    peak_replicas: int
    scale_outs: int
    scale_ins: int
    span_s: float


def measure(outcome: RequestOutcome, settings: RequestSettings) -> RequestMetrics:
    """The figures of a run, from the end of the warm-up on: of requests that arrive and replica-seconds spent then.

    Raises `RequestReplayError` if no request arrives after the warm-up.
    """
    arrival_s = np.asarray(outcome.arrival_s)
    counted = arrival_s >= settings.warmup_s
    if not counted.any():
        raise RequestReplayError(f"warm-up {settings.warmup_s:g} s: the last request arrives at {arrival_s[-1]:g} s")
    answered = np.ones(arrival_s.size, dtype=bool)
    answered[list(outcome.failed)] = False
    answered = answered[counted]
    wait_s, service_s = np.asarray(outcome.wait_s)[counted], np.asarray(outcome.service_s)[counted]
    misses = int(((wait_s > settings.slo_s) | ~answered).sum())
    replica_seconds = replica_seconds_of(outcome, settings.warmup_s)
    p50, p99 = np.percentile(wait_s, (50, 99))
    latency_s = (wait_s + service_s)[answered]
    latency = np.percentile(latency_s, (50, 99)) if latency_s.size else (None, None)
    return RequestMetrics(
        rule=outcome.rule,
        requests=wait_s.size,
        slo_misses=misses,
        slo_miss_share=misses / wait_s.size,
        failed=int((~answered).sum()),
        replica_seconds=round(replica_seconds, 3),
        queue_p50_s=_rounded(p50),
        queue_p99_s=_rounded(p99),
        latency_p50_s=None if latency[0] is None else _rounded(latency[0]),
        latency_p99_s=None if latency[1] is None else _rounded(latency[1]),
        utilization=_rounded(service_s[answered].sum() / (replica_seconds * settings.concurrency)),
        peak_replicas=_peak(outcome),
        scale_outs=sum(one.decision.replicas > one.before for one in outcome.scalings),
        scale_ins=sum(one.decision.replicas < one.before for one in outcome.scalings),
        span_s=_rounded(outcome.end_s),
    )


def replica_seconds_of(outcome: RequestOutcome, since_s: float = 0.0) -> float:
    """Seconds that replicas held their jobs from `since_s` on, summed."""
    return sum(max(0.0, _gone_s(one, outcome) - max(one.asked_s, since_s)) for one in outcome.replicas)


def _gone_s(replica: SimulatedReplica, outcome: RequestOutcome) -> float:
    return outcome.end_s if replica.gone_s is None else replica.gone_s


def _rounded(seconds: float) -> float:
    return round(float(seconds), 4)


def _peak(outcome: RequestOutcome) -> int:
    changes = sorted(change for one in outcome.replicas for change in ((one.asked_s, 1), (_gone_s(one, outcome), -1)))
    most = now = 0
    for _at_s, step in changes:
        now += step
        most = max(most, now)
    return most
