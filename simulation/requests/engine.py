"""The event loop: requests arrive, wait in one queue and are served; a rule decides once a second.

The data plane is that of the gateway: one queue per service with a deadline, in the order of `queueing`, replicas that
take at most `concurrency` requests each, and the least loaded one first, or the one with the least to read. A replica
costs from the moment it is requested until it is gone: a job that waits or loads counts like one that serves, and a
draining one until its last answer. Events at the same time are handled in the order: answers, replicas that become
ready, re-checks of held requests, arrivals, the rule.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inference_gateway.model import Decision, Observation, ScaleRule
from inference_gateway.queueing import LOOK_S, Reading, Turns
from inference_gateway.scaling.rules import BoundedRule
from simulation.requests.service import FirstInFirstOut, InTurn, RequestQueue, SimulatedReplica, SimulatedReplicas
from simulation.requests.settings import RequestReplayError, RequestSettings, StepTime, Work, known_service_s

_STEP, _READY, _RECHECK = range(3)
_MEASURED_EVERY_S = 10
"""A replica reports what it has read, and the control plane reads that, every five seconds each."""
_Event = tuple[float, int, int, SimulatedReplica | None]
"""Time, kind, sequence number, replica."""


@dataclass(frozen=True, slots=True)
class Batching:
    """Replicas with continuous batching, and what each request asks of them."""

    step: StepTime
    work: Sequence[Work]


@dataclass(frozen=True, slots=True)
class Scaling:
    """One change of the number of replicas wanted."""

    at_s: float
    before: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of each request, in order of arrival, and of each replica.

    `wait_s` is the time until a replica took the request, `first_s` until its first token, `latency_s` until its last
    one; a request that failed waited until the deadline and is in `failed`. `end_s` is when the last request was
    answered or failed: replicas cost until then.
    """

    rule: str
    arrival_s: Sequence[float]
    steps: Sequence[float]
    wait_s: Sequence[float]
    first_s: Sequence[float]
    latency_s: Sequence[float]
    failed: frozenset[int]
    replicas: Sequence[SimulatedReplica]
    scalings: Sequence[Scaling]
    end_s: float


def simulate(
    arrival_s: Sequence[float],
    service_s: Sequence[float],
    rule: ScaleRule,
    settings: RequestSettings,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    queue: RequestQueue | None = None,
    batching: Batching | None = None,
) -> RequestOutcome:
    """Replay requests, with the gateway's queue or another order.

    Without `batching` a request takes its service time, however many a replica works on.

    Arrival times must rise from 0 or later. Raises `RequestReplayError` if there is no request.
    """
    if not arrival_s:
        raise RequestReplayError("no requests to replay")
    how = batching or Batching(StepTime(1000.0, 0.0, 0.0), [Work(0.0, seconds) for seconds in service_s])
    run = _Run(arrival_s, service_s, BoundedRule(rule, settings.bounds), settings, how)
    if queue is not None:
        run.queue = queue
    run.replicas.add_ready(settings.initial_replicas, 0.0)
    second = 1
    while run.open > 0:
        run.until(float(second))
        run.tick(float(second))
        progress(len(arrival_s) - run.open, len(arrival_s))
        second += 1
    return run.outcome()


@dataclass(slots=True)
class _Run:
    arrival_s: Sequence[float]
    service_s: Sequence[float]
    rule: BoundedRule
    settings: RequestSettings
    batching: Batching
    replicas: SimulatedReplicas = field(init=False)
    open: int = field(init=False)
    queue: RequestQueue = field(init=False)
    _wait_s: list[float] = field(init=False)
    _first_s: list[float] = field(init=False)
    _latency_s: list[float] = field(init=False)
    _failed: set[int] = field(default_factory=set)
    _events: list[_Event] = field(default_factory=list)
    _scalings: list[Scaling] = field(default_factory=list)
    _recheck_pending: bool = False
    _next: int = 0
    _sequence: int = 0
    _arrivals: int = 0
    _answered: int = 0
    _end_s: float = 0.0

    def __post_init__(self) -> None:
        settings = self.settings
        random_ = random.Random(settings.seed)  # noqa: S311
        reading = Reading(settings.prompt_tokens_per_s or 0.0)
        self.replicas = SimulatedReplicas(settings.start, settings.concurrency, random_, self.batching.step, reading)
        self.open = len(self.arrival_s)
        requests_per_s = settings.concurrency / known_service_s(self.service_s)
        turns = Turns(settings.queue_target_s, settings.deadline_s, requests_per_s, settings.concurrency)
        self.queue = InTurn(turns, self.arrival_s) if settings.queue_target_s else FirstInFirstOut()
        self._wait_s = [math.nan] * self.open
        self._first_s = [math.nan] * self.open
        self._latency_s = [math.nan] * self.open

    def until(self, now_s: float) -> None:
        """Handle all events up to this time."""
        while True:
            event_s = self._events[0][0] if self._events else math.inf
            arrival_s = self.arrival_s[self._next] if self._next < len(self.arrival_s) else math.inf
            if min(event_s, arrival_s) > now_s:
                break
            if event_s <= arrival_s:
                self._handle(heapq.heappop(self._events))
            else:
                self.queue.add(self._next, arrival_s, self.replicas.fleet)
                self._next += 1
                self._arrivals += 1
                self._dispatch(arrival_s, self.replicas.least_to_read)
                self._schedule_recheck(arrival_s)
        self._expire(now_s)

    def tick(self, now_s: float) -> None:
        """Let the rule decide, and apply its decision."""
        replicas = self.replicas
        if self.settings.prompt_tokens_per_s is None and now_s % _MEASURED_EVERY_S == 0:
            replicas.measure_reading()
        present = len(replicas.ready) + len(replicas.starting)
        seen = Observation(
            now_s=now_s,
            arrivals=self._arrivals,
            in_flight=replicas.in_flight,
            queued=len(self.queue),
            ready=len(replicas.ready),
            starting=len(replicas.starting),
            leaving=len(replicas.draining),
            answered=self._answered,
        )
        self._arrivals = self._answered = 0
        decision = self.rule.decide(seen)
        if decision.replicas == present:
            return
        self._scalings.append(Scaling(now_s, present, decision))
        for replica in replicas.add(max(0, decision.replicas - present), now_s):
            self._push(replica.ready_s, _READY, replica)
        replicas.release(max(0, present - decision.replicas), now_s)

    def outcome(self) -> RequestOutcome:
        """What became of everything. Called when no request is open."""
        for replica in self.replicas.every:
            replica.gone_s = self._end_s if replica.gone_s is None else min(replica.gone_s, self._end_s)
        return RequestOutcome(
            rule=self.rule.name,
            arrival_s=self.arrival_s,
            steps=[work.steps for work in self.batching.work],
            wait_s=self._wait_s,
            first_s=self._first_s,
            latency_s=self._latency_s,
            failed=frozenset(self._failed),
            replicas=[one for one in self.replicas.every if one.asked_s < self._end_s],
            scalings=self._scalings,
            end_s=self._end_s,
        )

    def _push(self, at_s: float, kind: int, replica: SimulatedReplica | None) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at_s, kind, self._sequence, replica))

    def _handle(self, event: _Event) -> None:
        at_s, kind, _sequence, replica = event
        if replica is None:
            self._recheck_pending = False
            self.queue.release_due(at_s, self.replicas.fleet)
            self._schedule_recheck(at_s)
            self._dispatch(at_s, self.replicas.least_to_read)
            return
        if kind == _READY:
            self.replicas.started(replica)
        elif event[2] == replica.event:
            self._advance(replica, at_s)
        else:
            return  # something has changed since this was foreseen
        self._dispatch(at_s, self._to_freed)

    def _advance(self, replica: SimulatedReplica, now_s: float) -> None:
        """Take the replica's steps until now."""
        first, done = replica.batch.advance(now_s)
        for request in first:
            self._first_s[request] = now_s - self.arrival_s[request]
            replica.timer.first(request, now_s)
        for request in done:
            self._latency_s[request] = now_s - self.arrival_s[request]
            self.replicas.finished(replica, now_s)
            self._answered += 1
            self._close(now_s)
        self._foresee(replica)

    def _foresee(self, replica: SimulatedReplica) -> None:
        """Push the replica's next event; what was foreseen before is void."""
        next_s = replica.batch.next_s()
        if next_s < math.inf:
            self._push(next_s, _STEP, replica)
            replica.event = self._sequence

    def _schedule_recheck(self, now_s: float) -> None:
        """Schedule a re-check of the held requests, if there are any and none is scheduled."""
        if self.queue.held and not self._recheck_pending:
            self._recheck_pending = True
            self._push(now_s + LOOK_S, _RECHECK, None)

    def _to_freed(self, _work: Work, _now_s: float) -> SimulatedReplica | None:
        """Where a request of HAProxy's own queue goes: a place is free again, and nobody else is asked."""
        return self.replicas.least_loaded()

    def _dispatch(self, now_s: float, choose: Callable[[Work, float], SimulatedReplica | None]) -> None:
        """Give waiting requests to replicas that have a free slot."""
        self._expire(now_s)
        while self.queue and self.replicas.least_loaded() is not None:
            request = self.queue.take(now_s)
            if request is None:
                break
            replica = choose(self.batching.work[request], now_s)
            if replica is None:
                raise RuntimeError("a free place has gone")
            self._wait_s[request] = now_s - self.arrival_s[request]
            replica.in_flight += 1
            self._advance(replica, now_s)
            replica.batch.add(request, self.batching.work[request], now_s)
            replica.timer.begin(request, self.batching.work[request].prompt_tokens, now_s)
            self._advance(replica, now_s)

    def _expire(self, now_s: float) -> None:
        """Fail the requests that reached their deadline. All have the same one, so the oldest is the first."""
        deadline_s = self.settings.deadline_s
        while self.queue and self.arrival_s[self.queue.oldest] + deadline_s <= now_s:
            request = self.queue.oldest
            self.queue.drop_oldest()
            self._wait_s[request] = self._first_s[request] = deadline_s
            self._failed.add(request)
            self._close(self.arrival_s[request] + deadline_s)

    def _close(self, at_s: float) -> None:
        self.open -= 1
        self._end_s = max(self._end_s, at_s)
