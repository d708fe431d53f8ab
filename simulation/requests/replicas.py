"""The simulated replicas of a service: starting, ready, draining, gone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from inference_gateway.queueing import Fleet
from simulation.requests.settings import StartTime


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """One replica. `gone_s` is None while it holds its job."""

    number: int
    asked_s: float
    ready_s: float
    in_flight: int = 0
    gone_s: float | None = None


@dataclass(slots=True)
class SimulatedReplicas:
    """All replicas of a run. A replica is in one of three lists until it is gone."""

    start: StartTime
    concurrency: int
    random_: random.Random
    starting: list[SimulatedReplica] = field(default_factory=list)
    ready: list[SimulatedReplica] = field(default_factory=list)
    draining: list[SimulatedReplica] = field(default_factory=list)
    every: list[SimulatedReplica] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        """Requests that replicas work on."""
        return sum(replica.in_flight for replica in self.ready) + sum(replica.in_flight for replica in self.draining)

    @property
    def fleet(self) -> Fleet:
        """Those that serve, and their free places."""
        free = sum(self.concurrency - replica.in_flight for replica in self.ready)
        return Fleet(len(self.ready), free)

    def add(self, count: int, now_s: float) -> list[SimulatedReplica]:
        """Start replicas, and return them."""
        added = [self._new(now_s, now_s + self.start.draw_s(self.random_)) for _ in range(count)]
        self.starting += added
        return added

    def add_ready(self, count: int, now_s: float) -> None:
        """Add replicas that are ready already."""
        self.ready += [self._new(now_s, now_s) for _ in range(count)]

    def _new(self, asked_s: float, ready_s: float) -> SimulatedReplica:
        replica = SimulatedReplica(len(self.every), asked_s, ready_s)
        self.every.append(replica)
        return replica

    def started(self, replica: SimulatedReplica) -> None:
        """A replica has become ready; nothing happens if it was cancelled before."""
        if replica.gone_s is None:
            self.starting.remove(replica)
            self.ready.append(replica)

    def release(self, count: int, now_s: float) -> None:
        """Give replicas up: the newest starting ones first, then drain the ready ones with the fewest requests."""
        for replica in sorted(self.starting, key=lambda one: -one.number)[:count]:
            self.starting.remove(replica)
            replica.gone_s = now_s
            count -= 1
        for replica in sorted(self.ready, key=lambda one: (one.in_flight, -one.number))[:count]:
            self.ready.remove(replica)
            self.draining.append(replica)
            self._gone_if_empty(replica, now_s)

    def least_loaded(self) -> SimulatedReplica | None:
        """The ready replica with the fewest requests (HAProxy's leastconn), None if all are full."""
        best = min(self.ready, key=lambda one: one.in_flight, default=None)
        return best if best is not None and best.in_flight < self.concurrency else None

    def finished(self, replica: SimulatedReplica, now_s: float) -> None:
        """A replica has answered a request."""
        replica.in_flight -= 1
        if replica in self.draining:
            self._gone_if_empty(replica, now_s)

    def _gone_if_empty(self, replica: SimulatedReplica, now_s: float) -> None:
        if replica.in_flight == 0:
            self.draining.remove(replica)
            replica.gone_s = now_s
