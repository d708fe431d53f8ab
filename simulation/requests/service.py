"""A simulated service: its replicas (starting, ready, draining, gone) and its queue.

The queue holds requests until it is their turn, as the gateway does; other orders can take its place.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from inference_gateway.queueing import Fleet, Reading, ReadingTimer, Turns, reading_rate
from simulation.requests.settings import StartTime, StepTime, Work

_ALMOST = 1e-7
"""Steps and tokens: what is left of a sum of floating-point numbers that is done."""


@dataclass(slots=True)
class RunningBatch:
    """The requests that one replica works on, in steps that take longer the more there are (continuous batching).

    Between two changes (a request comes, has been read, or is answered) all steps are alike, so whole stretches of them
    are taken at once. `steps` counts those so far: a request is answered when the count reaches its last one.
    """

    step: StepTime
    _at_s: float = 0.0
    _steps: float = 0.0
    _tokens: float = 0.0
    _decoding: list[tuple[float, int]] = field(default_factory=list)
    _reading: deque[tuple[float, int, float]] = field(default_factory=deque)
    _queued_tokens: float = 0.0
    _chunk: float = 0.0
    _step_s: float = 1.0

    def add(self, request: int, work: Work, now_s: float) -> None:
        """Take a request. `advance` to this time first."""
        self._queued_tokens += work.prompt_tokens
        self._reading.append((self._queued_tokens, request, work.steps))
        self._at_s = now_s

    def advance(self, now_s: float) -> tuple[list[int], list[int]]:
        """The requests whose first token is there, and those that are answered. Then the steps change."""
        passed = (now_s - self._at_s) / self._step_s
        self._at_s = now_s
        if self._decoding:
            self._steps += passed
        self._tokens += passed * self._chunk
        first: list[int] = []
        while self._reading and self._reading[0][0] <= self._tokens + _ALMOST:
            _, request, steps = self._reading.popleft()
            first.append(request)
            heapq.heappush(self._decoding, (self._steps + steps, request))
        done: list[int] = []
        while self._decoding and self._decoding[0][0] <= self._steps + _ALMOST:
            done.append(heapq.heappop(self._decoding)[1])
        left = self._queued_tokens - self._tokens if self._reading else 0.0
        self._tokens = self._queued_tokens if not self._reading else self._tokens
        self._chunk = min(left, self.step.chunk)
        self._step_s = self.step.seconds(len(self._decoding), self._chunk)
        return first, done

    def next_s(self) -> float:
        """When the next token is a first or a last one; infinite without a request."""
        steps = self._decoding[0][0] - self._steps if self._decoding else math.inf
        if self._reading and self._chunk:
            steps = min(steps, (self._reading[0][0] - self._tokens) / self._chunk)
        return self._at_s + max(0.0, steps) * self._step_s


@dataclass(slots=True, eq=False)
class SimulatedReplica:
    """One replica. `gone_s` is None while it holds its job; `event` is the number of its next event."""

    number: int
    asked_s: float
    ready_s: float
    batch: RunningBatch
    in_flight: int = 0
    gone_s: float | None = None
    event: int = 0
    timer: ReadingTimer = field(default_factory=ReadingTimer)


@dataclass(slots=True)
class SimulatedReplicas:
    """All replicas of a run. A replica is in one of three lists until it is gone."""

    start: StartTime
    concurrency: int
    random_: random.Random
    step: StepTime
    reading: Reading = field(default_factory=lambda: Reading(0.0))
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
        """Ready replicas and their free slots."""
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
        replica = SimulatedReplica(len(self.every), asked_s, ready_s, RunningBatch(self.step))
        self.every.append(replica)
        return replica

    def started(self, replica: SimulatedReplica) -> None:
        """A replica has become ready; nothing happens if it was cancelled before."""
        if replica.gone_s is None:
            self.starting.remove(replica)
            self.ready.append(replica)

    def release(self, count: int, now_s: float) -> None:
        """Release replicas: the newest starting ones first, then drain the ready ones with the fewest requests."""
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

    def least_to_read(self, work: Work, now_s: float) -> SimulatedReplica | None:
        """The ready replica that takes a new request: as `least_loaded` where prompts are short, see `Reading`."""
        if not self.reading.decides(work.prompt_tokens, now_s):
            return self.least_loaded()
        open_ = [one for one in self.ready if one.in_flight < self.concurrency]
        best = min(open_, key=lambda one: (self.reading.left_s(one.number, now_s), one.in_flight), default=None)
        if best is not None:
            self.reading.take(best.number, work.prompt_tokens, now_s)
        return best

    def measure_reading(self) -> None:
        """Take what the replicas have read in a second so far."""
        known = [stretch for one in (*self.ready, *self.draining) for stretch in one.timer.stretches]
        self.reading.prompt_tokens_per_s = reading_rate(known)

    def finished(self, replica: SimulatedReplica, now_s: float) -> None:
        """A replica has answered a request."""
        replica.in_flight -= 1
        if replica.in_flight == 0:
            self.reading.idle(replica.number)
        if replica in self.draining:
            self._gone_if_empty(replica, now_s)

    def _gone_if_empty(self, replica: SimulatedReplica, now_s: float) -> None:
        if replica.in_flight == 0:
            self.draining.remove(replica)
            replica.gone_s = now_s


class RequestQueue(Protocol):
    """Requests that wait, by number, which is their order of arrival."""

    def __len__(self) -> int: ...

    def add(self, request: int, now_s: float, fleet: Fleet) -> None:
        """Add a request that has just arrived."""

    def take(self, now_s: float) -> int | None:
        """Take the request whose turn it is; None if there is none."""

    def release_due(self, now_s: float, fleet: Fleet) -> None:
        """Release held requests whose turn has come. Called every `queueing.LOOK_S` while `held`."""

    @property
    def held(self) -> int:
        """Requests that are held until their turn."""

    @property
    def oldest(self) -> int:
        """The request that has waited longest. One has to wait."""

    def drop_oldest(self) -> None:
        """Remove `oldest`, at its deadline."""


@dataclass(slots=True)
class FirstInFirstOut:
    """HAProxy's own order."""

    held: int = 0
    _line: deque[int] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._line)

    def add(self, request: int, now_s: float, fleet: Fleet) -> None:  # noqa: ARG002  of no importance here
        """Add a request that has just arrived."""
        self._line.append(request)

    def take(self, now_s: float) -> int | None:  # noqa: ARG002
        """Take the first request."""
        return self._line.popleft() if self._line else None

    def release_due(self, now_s: float, fleet: Fleet) -> None:
        """No request is held."""

    @property
    def oldest(self) -> int:
        """The first request. Raises `IndexError` if none waits."""
        return self._line[0]

    def drop_oldest(self) -> None:
        """Remove the first request."""
        self._line.popleft()


@dataclass(slots=True)
class InTurn:
    """The gateway's order, see `queueing`. A request that finds HAProxy's queue empty goes there at once."""

    turns: Turns
    arrival_s: Sequence[float]
    _line: deque[int] = field(default_factory=deque)
    _in_time: deque[int] = field(default_factory=deque)
    _late: deque[int] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._line) + self.held

    def add(self, request: int, now_s: float, fleet: Fleet) -> None:
        """Add a request that has just arrived."""
        if not self._line or not fleet.ready:
            self._line.append(request)
            return
        self._in_time.append(request)
        self.release_due(now_s, fleet)

    def take(self, now_s: float) -> int | None:  # noqa: ARG002  other orders need the time
        """Take the first request of HAProxy's queue."""
        return self._line.popleft() if self._line else None

    def release_due(self, now_s: float, fleet: Fleet) -> None:
        """Release held requests whose turn has come."""
        while self._in_time and now_s - self.arrival_s[self._in_time[0]] > self.turns.in_time_s:
            self._late.append(self._in_time.popleft())
        while self._in_time and self.turns.room(self._now(fleet)) > 0:
            self._line.append(self._in_time.popleft())
        while self._late:
            waited_s = now_s - self.arrival_s[self._late[0]]
            if self.turns.room_for_late(self._now(fleet), len(self._in_time), waited_s) <= 0:
                break
            self._line.append(self._late.popleft())

    def _now(self, fleet: Fleet) -> Fleet:
        return replace(fleet, queued=len(self._line))

    @property
    def held(self) -> int:
        """Requests that are held until their turn."""
        return len(self._in_time) + len(self._late)

    @property
    def oldest(self) -> int:
        """The request that has waited longest. Raises `ValueError` if none waits."""
        return min(line[0] for line in self.lines if line)

    def drop_oldest(self) -> None:
        """Remove `oldest`."""
        min((line for line in self.lines if line), key=lambda line: line[0]).popleft()

    @property
    def lines(self) -> tuple[deque[int], ...]:
        """In HAProxy's queue; held, and in time; held, and late."""
        return self._line, self._in_time, self._late
