"""One service in the control plane: its history, what its rule is told of it, and what the rule decides."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from inference_gateway.accepted import retry_after_s
from inference_gateway.control.moves import ClassifiedReplicas, Moves, classify, moves
from inference_gateway.control.replica import Limits, Phase, Replica, Step
from inference_gateway.control.start_times import EstimateLog, ReplicaStart, StartTimes, WaitingLine, quantile
from inference_gateway.control.state import Attempts, ServiceMemory
from inference_gateway.model import Capacity, Decision, Observation, ReplicaLoad, StartForecast, Traffic
from inference_gateway.replicas import submission
from inference_gateway.scaling.measured import KV_CACHE_LIMIT, MeasuredRule
from inference_gateway.scaling.rules import BoundedRule, Bounds, build
from inference_gateway.sections import ServiceSection
from slurm_plugin.client.records import SlurmJob


class TrafficCounter:
    """Turns the counters of a service into counts per call."""

    def __init__(self) -> None:
        self._last: Traffic | None = None

    def since_last(self, traffic: Traffic) -> tuple[int, int]:
        """Requests that have arrived and that replicas have answered since the last call; (0, 0) at the first call.

        Client errors count as neither, and refused requests (5xx) not as answered.
        """
        last, self._last = self._last, traffic
        if last is None:
            return 0, 0
        came = traffic.load_since(last)
        if traffic.arrivals < last.arrivals:
            last = Traffic(traffic.service, 0, 0, 0, 0)
        refused = max(0, traffic.responses_5xx - last.responses_5xx)
        more = traffic.in_flight + traffic.queued - last.in_flight - last.queued
        return max(0, came), max(0, came - refused - more)


_NO_LOADS: Mapping[str, ReplicaLoad] = MappingProxyType({})
KEPT_STARTS = 50
KEPT_ESTIMATES = 400
_UNWRITTEN = 3
"""Files that cannot be written count as at most so many refusals: on a full disk the next try is within 20 s."""


class ServiceControl:
    """The state of one service: its rule, its failed starts, its start times.

    Attributes:
        decision: the latest decision, None before the first.
        observation: the observation from which it was made.
        next_in_s: seconds until the next replica serves; None if none is starting.

    """

    def __init__(self, name: str, section: ServiceSection, memory: ServiceMemory, now_s: float) -> None:
        scale = section.scale
        self.name = name
        self.section = section
        self.generation = section.generation()
        self._attempts = memory.attempts if memory.generation == self.generation else Attempts()
        self.decision: Decision | None = None
        self.observation: Observation | None = None
        self._starts_s = memory.starts_s
        self._waits_s = memory.waits_s
        self._loads_s = memory.loads_s
        self._foretold = memory.foretold
        self._estimates = EstimateLog()
        self._going_on_s: tuple[float, ...] = ()
        self.next_in_s: float | None = None
        self._estimated = False
        # Whoever was told that nothing will start is told otherwise; None: nothing has to be told yet.
        self._forecast = None if self._attempts == memory.attempts else StartForecast(0)
        self._queue_s: float | None = None
        self._traffic = TrafficCounter()
        self._adopted_s = self._decided_s = self._clock_s = now_s
        self._hold_until_s = now_s + scale.hold_s
        self._minimum = scale.min
        bounds = Bounds(scale.min, scale.max, scale.max_pending)
        rule = build(scale.rule, scale.options, self._capacity())
        limit = KV_CACHE_LIMIT if section.metrics is None else section.metrics.kv_cache_limit
        measured = MeasuredRule(rule, self._capacity(), limit)
        self._times = measured.times
        self._rule = BoundedRule(measured, bounds)

    @property
    def limits(self) -> Limits:
        """The time limits of its replicas."""
        section = self.section
        limits_s = (section.replica.start_limit_s, section.drain_deadline_s, section.health.down_limit_s)
        return Limits(*limits_s, adopted_s=self._adopted_s)

    @property
    def minimum(self) -> int:
        """The least number of replicas, as configured or set by command."""
        return self._minimum

    @property
    def attempts(self) -> Attempts:
        """The consecutive failed starts of this configuration."""
        return self._attempts

    @property
    def given_up(self) -> bool:
        """Whether so many starts have failed that no more are made until an operator intervenes."""
        return self._attempts.given_up(self.section.scale.attempts)

    @property
    def start_s(self) -> float:
        """The median of the latest start times, including starts in progress; the configured one before the first."""
        return self._start_quantile_s(0.5)

    @property
    def slow_start_s(self) -> float:
        """The 90th percentile of the start times: how early a successor has to be submitted."""
        return self._start_quantile_s(0.9)

    def forecast(self, *, closing: bool = False) -> StartForecast | None:
        """The forecast for refused clients; None while nothing is known beyond the configuration.

        Of a gateway that is `closing` no replica will start any more.
        """
        queue_s, given_up = self._queue_s, closing or self.given_up
        if not (self._starts_s or self._estimated or given_up or self._forecast or queue_s is not None):
            return None
        start_s = self.start_s if self.next_in_s is None else _coarse(self.next_in_s)
        self._forecast = StartForecast(retry_after_s(start_s if queue_s is None else queue_s), given_up)
        return self._forecast

    def _new_queue_s(self, seen: Observation) -> float | None:
        """How long the queue lasts where as many replicas serve as may; None where more may.

        As before while it differs by no more than half: each change is written to a file and sent to HAProxy.
        """
        if seen.ready < self._rule.bounds.maximum:
            return None
        queue_s = _coarse(seen.queued / (seen.ready * self._times.capacity().requests_per_s))
        queue_s, told_s = min(queue_s, self.section.queue_deadline_s), self._queue_s
        return queue_s if told_s is None or abs(queue_s - told_s) > told_s / 2 else told_s

    def expect(self, coming: Sequence[Replica], jobs: Mapping[str, SlurmJob], line: WaitingLine, now_s: float) -> None:
        """Estimate when the `coming` replicas will serve; `jobs` are their Slurm jobs, by replica name."""
        starts = [_start(replica, jobs.get(replica.name), line, now_s) for replica in coming]
        self._estimated = any(start.expected_in_s is not None or start.turn_in_s is not None for start in starts)
        self._compare_estimates(coming, starts, now_s)
        times = StartTimes(self._waits_s, self._loads_s, self._foretold)
        self.next_in_s = times.next_in_s(starts, self.section.scale.start_s)
        before_s = self.start_s
        self._going_on_s = tuple(now_s - replica.asked_s for replica in coming)
        if self.start_s != before_s:
            self._rule.calibrate(self._capacity())

    def memory(self) -> ServiceMemory:
        """The state to save."""
        known = (self._starts_s, self._waits_s, self._loads_s, self._foretold, self.generation)
        return ServiceMemory(self._attempts, *known)

    def _compare_estimates(self, coming: Sequence[Replica], starts: Sequence[ReplicaStart], now_s: float) -> None:
        """Record Slurm's estimates of each job's wait and, once it has started, its actual wait."""
        self._estimates.keep({replica.name for replica in coming})
        for replica, start in zip(coming, starts, strict=True):
            if start.running:
                came = self._estimates.started(replica.name, replica.since_s)
                self._foretold = (*self._foretold, *came)[-KEPT_ESTIMATES:]
            else:
                self._estimates.note(replica.name, now_s, start, self._foretold)

    def learn(self, replica: Replica, done: Step, now_s: float) -> bool:
        """Learn from a step of a replica, `replica` before it; returns whether the service has just given up.

        Start times of earlier configurations count too, their failures and successes do not.
        """
        if done.started:
            self._waits_s = (*self._waits_s, now_s - replica.asked_s)[-KEPT_STARTS:]
        if done.served_after_s is not None:
            self._starts_s = (*self._starts_s, done.served_after_s)[-KEPT_STARTS:]
            self._loads_s = (*self._loads_s, now_s - replica.since_s)[-KEPT_STARTS:]
            self._rule.calibrate(self._capacity())
        if replica.generation != self.generation:
            return False
        before = self.given_up
        if proved_s := done.replica.proved_s(now_s) if done.replica else None:
            self.proved(proved_s)
        if done.refused:
            self.refused(replica.asked_s, now_s)
        if done.failed:
            self._attempts = self._attempts.failed(replica.asked_s, now_s)
        return self.given_up and not before

    def refused(self, asked_s: float, now_s: float, *, by_slurm: bool = True) -> None:
        """Count a replica of `asked_s` that Slurm refused or, if not `by_slurm`, whose files could not be written."""
        self._attempts = self._attempts.refused(asked_s, now_s, sys.maxsize if by_slurm else _UNWRITTEN)

    def proved(self, at_s: float) -> None:
        """Record that a start has proved successful at `at_s`: it ends a row of earlier failures."""
        self._attempts = self._attempts.succeeded(at_s)

    def set_minimum(self, minimum: int) -> None:
        """Set the minimum, by command, up to the configured maximum."""
        scale = self.section.scale
        self._minimum = min(minimum, scale.max)
        self._rule.bounds = Bounds(self._minimum, scale.max, scale.max_pending)

    def try_again(self) -> None:
        """Forget failed starts, because an operator has intervened."""
        self._attempts = Attempts()

    def classify(self, replicas: Sequence[Replica], now_s: float) -> ClassifiedReplicas:
        """The service's replicas, classified."""
        # Its signal drains a replica, whether it has a successor or not.
        notice_s = max(self.section.drain_deadline_s, submission.EARLIEST_NOTICE_S)
        return classify(replicas, self.generation, self.slow_start_s, notice_s, now_s)

    def decide(
        self, found: ClassifiedReplicas, traffic: Traffic, now_s: float, loads: Mapping[str, ReplicaLoad] = _NO_LOADS
    ) -> Decision:
        """The rule's decision. For `hold_s` after a restart it does not scale in, because the history was lost.

        `loads` are the known loads of replicas, by name, from their metrics.
        """
        passed_s = now_s - self._decided_s
        self._decided_s = now_s
        self._clock_s += passed_s if passed_s >= 0 else 1.0  # rules need increasing times, also if a clock is set back
        # What has come while nothing was decided, as when the data plane did not answer, did not come in one second.
        came, answered = (math.ceil(count / max(1.0, passed_s)) for count in self._traffic.since_last(traffic))
        unreplaced = found.unreplaced(None if self.decision is None else self.decision.replicas)
        serving = (*found.serving, *found.outgoing)
        present = found.present + unreplaced
        ready = min(present, len(serving))  # the successor of one that serves does not count, until it serves itself
        self.observation = Observation(
            now_s=self._clock_s,
            arrivals=came,
            in_flight=traffic.in_flight,
            queued=traffic.queued,
            ready=ready,
            starting=present - ready,
            leaving=len(found.leaving) + len(found.outgoing) - unreplaced,
            answered=answered,
            loads=tuple(loads[replica.name] for replica in serving if replica.name in loads),
        )
        decision = self._rule.decide(self.observation)
        self._queue_s = self._new_queue_s(self.observation)
        if self._clock_s < self._hold_until_s and decision.replicas < present:
            held = f"{decision.reason}; held for {self._hold_until_s - self._clock_s:.0f} s more after a restart"
            decision = replace(decision, replicas=present, reason=held)
        self.decision = decision
        return decision

    def moves(self, found: ClassifiedReplicas, wanted: int, in_flight: Mapping[str, int], now_s: float) -> Moves:
        """The moves that reach the wanted number. Successors count for `max` and `max_pending` as any new replica."""
        bounds, coming = self._rule.bounds, len(found.coming)
        room = max(0, min(bounds.max_pending - coming, bounds.maximum - found.present))
        startable = self._attempts.startable(wanted, coming, self.section.scale.attempts, now_s)
        return moves(found, wanted, min(room, startable), in_flight)

    def _start_quantile_s(self, share: float) -> float:
        if not self._starts_s:
            return max((self.section.scale.start_s, *self._going_on_s))
        return quantile(self._starts_s, self._going_on_s, share)

    def _capacity(self) -> Capacity:
        return replace(self.section.capacity(), start_s=self.start_s)


def _start(replica: Replica, job: SlurmJob | None, line: WaitingLine, now_s: float) -> ReplicaStart:
    if replica.phase is Phase.STARTING:
        return ReplicaStart(running=True, age_s=now_s - replica.since_s)
    estimate = None if job is None or job.start_s is None else job.start_s - now_s
    turn_s = None if job is None else line.turn_s(job.job_id, now_s)
    return ReplicaStart(running=False, age_s=now_s - replica.asked_s, expected_in_s=estimate, turn_in_s=turn_s)


def _coarse(time_s: float) -> float:
    """Rounded up, in steps of 5 to 50 %, so that the value that clients see does not change every second."""
    step = max(1.0, 10.0 ** math.floor(math.log10(max(time_s, 1.0))) / 2)
    return math.ceil(time_s / step) * step
