"""The figures of a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.requests.engine import RequestOutcome
from simulation.requests.replicas import SimulatedReplica
from simulation.requests.requests import RequestReplayError
from simulation.requests.settings import RequestSettings


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The figures of one run; percentiles are over all requests, failed ones waited until the deadline.

    Attributes:
        rule: name of the rule.
        requests: requests replayed.
        slo_misses: requests that waited longer than the SLO, or failed.
        slo_miss_share: of all requests.
        failed: requests that reached the deadline.
        replica_seconds: from asking for a replica until it is gone, of all replicas.
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
