"""One trace, replayed under any rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from inference_gateway.model import Capacity
from inference_gateway.scaling.registry import build
from simulation.requests.engine import Outcome, simulate
from simulation.requests.metrics import Metrics, measure
from simulation.requests.requests import RequestTrace, ServiceTime, SimulationError, service_times
from simulation.requests.settings import Settings


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests with their service times, what a replica is said to do, and how replicas and queue behave."""

    arrival_s: Sequence[float]
    service_s: Sequence[float]
    capacity: Capacity
    settings: Settings

    @classmethod
    def of(cls, trace: RequestTrace, model: ServiceTime | None, settings: Settings) -> Replay:
        """A replay in which rules are told a replica's true capacity: concurrency / mean service time, in requests/s.

        Raises `SimulationError` for service times that make no sense and for a trace without requests.
        """
        if not trace.requests:
            raise SimulationError("no requests to replay")
        arrival_s = [request.arrival_s for request in trace.requests]
        if any(later < earlier for earlier, later in pairwise(arrival_s)):
            raise SimulationError("the requests are not in order of arrival")
        service_s = service_times(trace.requests, model)
        mean_s = sum(service_s) / len(service_s)
        capacity = Capacity(settings.concurrency / mean_s, settings.concurrency, settings.start.mean_s)
        return cls(arrival_s, service_s, capacity, settings)

    def under(
        self,
        rule: str,
        options: Mapping[str, object],
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Outcome:
        """What becomes of the requests under a rule. Raises `ScalingError` for an unknown rule or option."""
        return simulate(self.arrival_s, self.service_s, build(rule, options, self.capacity), self.settings, progress)

    def measured(
        self,
        rule: str,
        options: Mapping[str, object],
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Metrics:
        """The figures of `under`."""
        return measure(self.under(rule, options, progress), self.settings)
