"""One service in the control plane: what is seen of it, what its rule wants, and what that means for its replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference_gateway.control import fleet
from inference_gateway.control.fleet import ClassifiedReplicas, Moves
from inference_gateway.control.replica import Limits, Replica
from inference_gateway.control.start_backoff import Attempts
from inference_gateway.control.state import ServiceMemory
from inference_gateway.model import Capacity, Decision, Observation, Traffic
from inference_gateway.scaling.bounds import BoundedRule, Bounds
from inference_gateway.scaling.registry import build
from inference_gateway.sections import ServiceSection


class ArrivalCounter:
    """Remembers the last counter of each service."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def since_last(self, traffic: Traffic) -> int:
        """ArrivalCounter since the last call for this service; none at the first.

        A counter that has fallen was reset by a restart of the data plane: what it shows has arrived since.
        """
        last = self._last.get(traffic.service)
        self._last[traffic.service] = traffic.arrivals
        if last is None:
            return 0
        return traffic.arrivals - last if traffic.arrivals >= last else traffic.arrivals


KEPT_STARTS = 50


class ServiceControl:
    """The memory of one service: its rule, its failed starts, how long starts took.

    Attributes:
        attempts: failed starts in a row.
        decision: the latest decision, None before the first.
        observation: what it was made from.

    """

    def __init__(self, name: str, section: ServiceSection, memory: ServiceMemory, now_s: float) -> None:
        scale = section.scale
        self.name = name
        self.section = section
        self.generation = section.generation()
        self.attempts: Attempts = memory.attempts
        self.decision: Decision | None = None
        self.observation: Observation | None = None
        self._starts_s = list(memory.starts_s)
        self._arrivals = ArrivalCounter()
        self._hold_until_s = now_s + scale.hold_s
        self._minimum = scale.min
        bounds = Bounds(scale.min, scale.max, scale.max_pending)
        self._rule = BoundedRule(build(scale.rule, scale.options, self._capacity()), bounds)

    @property
    def limits(self) -> Limits:
        """How long a replica may take."""
        section = self.section
        return Limits(section.replica.start_limit_s, section.drain_deadline_s, section.health.down_limit_s)

    @property
    def minimum(self) -> int:
        """Replicas at least, as configured or set by command."""
        return self._minimum

    @property
    def given_up(self) -> bool:
        """Whether so many starts failed that no more are made until a person acts."""
        return self.attempts.given_up(self.section.scale.attempts)

    @property
    def measured(self) -> bool:
        """Whether a start time has been measured."""
        return bool(self._starts_s)

    @property
    def start_s(self) -> float:
        """The median of the latest start times; the configured one while there are none."""
        return _quantile(self._starts_s, 0.5) if self._starts_s else self.section.scale.start_s

    @property
    def slow_start_s(self) -> float:
        """Their 90th percentile: how early a successor has to be asked for."""
        return _quantile(self._starts_s, 0.9) if self._starts_s else self.section.scale.start_s

    def memory(self) -> ServiceMemory:
        """What is to be remembered."""
        return ServiceMemory(self.attempts, tuple(self._starts_s))

    def served(self, after_s: float) -> None:
        """A replica has begun to serve, so long after it was asked for."""
        self._starts_s = [*self._starts_s, after_s][-KEPT_STARTS:]
        self.attempts = self.attempts.succeeded()
        self._rule.calibrate(self._capacity())

    def set_minimum(self, minimum: int) -> None:
        """Take the minimum that a person has set, within the configured maximum."""
        scale = self.section.scale
        self._minimum = min(minimum, scale.max)
        self._rule.bounds = Bounds(self._minimum, scale.max, scale.max_pending)

    def try_again(self) -> None:
        """Forget failed starts: a person has acted."""
        self.attempts = Attempts()

    def classify(self, replicas: Sequence[Replica], now_s: float) -> ClassifiedReplicas:
        """The service's replicas, sorted."""
        return fleet.classify(replicas, self.generation, self.slow_start_s, self.section.drain_deadline_s, now_s)

    def decide(self, found: ClassifiedReplicas, traffic: Traffic, now_s: float) -> Decision:
        """What the rule wants now; no fewer than there are for a while after a restart, for history is lost."""
        self.observation = Observation(
            now_s=now_s,
            arrivals=self._arrivals.since_last(traffic),
            in_flight=traffic.in_flight,
            queued=traffic.queued,
            ready=len(found.serving),
            starting=len(found.coming),
            leaving=len(found.leaving),
        )
        decision = self._rule.decide(self.observation)
        if now_s < self._hold_until_s and decision.replicas < found.present:
            held = f"{decision.reason}; held for {self._hold_until_s - now_s:.0f} s more after a restart"
            decision = replace(decision, replicas=found.present, reason=held)
        self.decision = decision
        return decision

    def moves(self, found: ClassifiedReplicas, wanted: int, in_flight: Mapping[str, int], now_s: float) -> Moves:
        """What to do to reach the wanted number."""
        startable = self.attempts.startable(wanted, len(found.coming), self.section.scale.attempts, now_s)
        return fleet.moves(found, wanted, startable, in_flight)

    def _capacity(self) -> Capacity:
        return replace(self.section.capacity(), start_s=self.start_s)


def _quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
