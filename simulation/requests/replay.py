"""One trace, replayed under any rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from inference_gateway.model import Capacity
from inference_gateway.scaling.registry import build
from simulation.requests.engine import RequestOutcome, simulate
from simulation.requests.metrics import RequestMetrics, measure
from simulation.requests.requests import RequestReplayError, RequestTrace, ServiceTime, service_times
from simulation.requests.settings import RequestSettings


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Requests with their service times, what a replica is said to do, and how replicas and queue behave."""

    arrival_s: Sequence[float]
    service_s: Sequence[float]
    capacity: Capacity
    settings: RequestSettings

    @classmethod
    def of(cls, trace: RequestTrace, model: ServiceTime | None, settings: RequestSettings) -> RequestReplay:
        """A replay in which rules are told a replica's true capacity: concurrency / mean service time, in requests/s.

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
