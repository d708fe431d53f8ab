"""Requests in flight and queued against a target per replica, with delays: as Ray Serve and ServerlessLLM scale.

    wanted = ceil(N + factor * (mean of in-flight and queued / target - N))      (Ray Serve, autoscaling policy)

N counts ready and starting replicas. A change is made when it was wanted, in the same direction, for a whole delay;
the direct way from zero skips the delay. If rounding up holds the last step down, one less is taken. With factor 1 and
no delays this is ServerlessLLM's ceil(in-flight / target). Ray Serve's own defaults are target 2 with at most 5
requests in flight (`utilization` 0.4), a mean over 30 s, 30 s up and 600 s down.
"""

from __future__ import annotations

import math

from inference_gateway.model import Capacity, Decision, Observation
from inference_gateway.scaling.options import Factor, Options, Seconds, Share, Window
from inference_gateway.scaling.rule_kind import RuleKind
from inference_gateway.scaling.windows import RecentMean


class TargetOptions(Options, frozen=True):
    """What may be set; the defaults are Ray Serve's.

    Attributes:
        utilization: target requests per replica, as a share of its concurrency.
        look_back: seconds of the mean.
        up_delay_s: how long more must be wanted.
        down_delay_s: how long less must be wanted.
        up_factor: part of the way up to go at once.
        down_factor: part of the way down to go at once.

    """

    utilization: Share = 0.4
    look_back: Window = 30
    up_delay_s: Seconds = 30.0
    down_delay_s: Seconds = 600.0
    up_factor: Factor = 1.0
    down_factor: Factor = 1.0


class Target:
    """The rule for one service."""

    name = "target"

    def __init__(self, options: TargetOptions, capacity: Capacity) -> None:
        self._options = options
        self._capacity = capacity
        self._ongoing = RecentMean(options.look_back)
        self._up_since_s: float | None = None
        self._down_since_s: float | None = None

    def calibrate(self, capacity: Capacity) -> None:
        """Take another target from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """As many as the target asks for, once the delay is over."""
        self._ongoing.add(seen.in_flight + seen.queued)
        now = seen.ready + seen.starting
        target = self._options.utilization * self._capacity.concurrency
        if now == 0:
            waiting = seen.in_flight + seen.queued + seen.arrivals
            return Decision(math.ceil(waiting / target), f"{waiting} requests from zero, target {target:.4g}")
        wanted = self._scaled(now, self._ongoing.value / target)
        reason = f"mean {self._ongoing.value:.4g} ongoing, target {target:.4g} each"
        self._up_since_s = _since(self._up_since_s, seen.now_s) if wanted > now else None
        self._down_since_s = _since(self._down_since_s, seen.now_s) if wanted < now else None
        if self._up_since_s is not None and seen.now_s - self._up_since_s >= self._options.up_delay_s:
            self._up_since_s = None
            return Decision(wanted, reason)
        if self._down_since_s is not None and seen.now_s - self._down_since_s >= self._options.down_delay_s:
            self._down_since_s = None
            return Decision(wanted, reason)
        return Decision(now, reason if wanted == now else f"{reason}; {wanted} wanted, delay not over")

    def _scaled(self, now: int, desired: float) -> int:
        factor = self._options.up_factor if desired > now else self._options.down_factor
        scaled = math.ceil(now + factor * (desired - now))
        if scaled == now and math.ceil(desired) < now:
            return now - 1
        return scaled


def _since(earlier_s: float | None, now_s: float) -> float:
    return now_s if earlier_s is None else earlier_s


RULE = RuleKind("target", "requests in flight and queued per replica, with delays", TargetOptions, Target)
