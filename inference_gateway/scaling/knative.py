"""The Knative Pod Autoscaler (KPA): a stable and a panic window (knative/serving, pkg/autoscaler; formulas only).

Every 2 s, with ready := max(1, ready replicas) and the target of one replica = utilization * its capacity:

    wanted in the stable window  dS = ceil(mean over 60 s / target), within [floor(ready / 2), ceil(1000 * ready)]
    wanted in the panic window   dP = ceil(mean over 6 s / target), within the same
    panic begins when ceil(mean over 6 s / target) / ready >= 2, and ends a stable window after that last held
    wanted = dS; in panic the most of dS, dP and all that was wanted since panic began: never down
    with a scale-down delay: the most that was wanted within it

The signal is the number of requests in flight and queued (`metric = concurrency`, Knative's default) or the arrivals
per second (`metric = rps`). Knative counts ready replicas only, and so does this rule. A fresh autoscaler that finds
more than one ready replica starts in panic with that many: lost history never scales down. A service goes to zero
after `zero_grace_s` without a request in the stable window.
"""

from __future__ import annotations

import math
from typing import Literal

from inference_gateway.model import Capacity, Decision, Observation
from inference_gateway.scaling.options import Factor, Options, Seconds, Share, Window
from inference_gateway.scaling.rule_kind import RuleKind
from inference_gateway.scaling.windows import RecentMean, RecentMost


class KnativeOptions(Options, frozen=True):
    """What may be set; the defaults are Knative's. Windows and delays in seconds.

    Attributes:
        metric: `concurrency` (in flight and queued) or `rps`.
        utilization: target utilisation of a replica.
        stable_window: of the stable mean.
        panic_share: panic window as a share of the stable one.
        panic_threshold: times the ready replicas that start panic.
        max_up: most times the ready replicas in one step.
        max_down: least, as a divisor of the ready replicas.
        scale_down_delay_s: how long the most wanted is kept.
        zero_grace_s: how long zero must be wanted.
        tick_s: time between decisions.

    """

    metric: Literal["concurrency", "rps"] = "concurrency"
    utilization: Share = 0.7
    stable_window: Window = 60
    panic_share: Share = 0.1
    panic_threshold: Factor = 2.0
    max_up: Factor = 1000.0
    max_down: Factor = 2.0
    scale_down_delay_s: Seconds = 0.0
    zero_grace_s: Seconds = 30.0
    tick_s: Seconds = 2.0


class Knative:
    """The rule for one service."""

    name = "knative"

    def __init__(self, options: KnativeOptions, capacity: Capacity) -> None:
        self._options = options
        self._capacity = capacity
        self._stable = RecentMean(options.stable_window)
        self._panic = RecentMean(max(1, round(options.stable_window * options.panic_share)))
        self._most = RecentMost(round(options.scale_down_delay_s / max(options.tick_s, 1.0)))
        self._panic_s: float | None = None
        self._most_in_panic = 0
        self._wanted_s: float | None = None
        self._last: Decision | None = None
        self._next_s = -math.inf

    def calibrate(self, capacity: Capacity) -> None:
        """Take another target from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """What the KPA wants; between its ticks, what it wanted last."""
        rps = self._options.metric == "rps"
        signal = seen.arrivals if rps else seen.in_flight + seen.queued
        self._stable.add(signal)
        self._panic.add(signal)
        if self._last is None and seen.ready > 1:
            self._panic_s, self._most_in_panic = seen.now_s, seen.ready
        if self._last is None or seen.now_s >= self._next_s:
            self._next_s = seen.now_s + self._options.tick_s
            self._last = self._tick(seen, self._capacity.requests_per_s if rps else self._capacity.concurrency)
        return self._last

    def _tick(self, seen: Observation, each: float) -> Decision:
        options = self._options
        target = options.utilization * each
        ready = max(1, seen.ready)
        stable, panic = (math.ceil(mean / target) for mean in (self._stable.value, self._panic.value))
        least, most = math.floor(ready / options.max_down), math.ceil(options.max_up * ready)
        if panic / ready >= options.panic_threshold:
            self._panic_s = seen.now_s
        elif self._panic_s is not None and seen.now_s > self._panic_s + options.stable_window:
            self._panic_s, self._most_in_panic = None, 0
        wanted = min(max(stable, least), most)
        reason = f"stable mean {self._stable.value:.4g}, panic mean {self._panic.value:.4g}, target {target:.4g}"
        if self._panic_s is not None:
            self._most_in_panic = max(self._most_in_panic, wanted, min(max(panic, least), most))
            wanted = self._most_in_panic
            reason += "; in panic"
        return self._grace(Decision(self._most.add(wanted), reason), seen)

    def _grace(self, decision: Decision, seen: Observation) -> Decision:
        """Keep one replica until none has been wanted for the grace time."""
        if decision.replicas > 0 or seen.ready + seen.starting == 0:
            self._wanted_s = None
            return decision
        if self._wanted_s is None:
            self._wanted_s = seen.now_s
        if seen.now_s - self._wanted_s >= self._options.zero_grace_s:
            return decision
        return Decision(1, f"{decision.reason}; none wanted since {seen.now_s - self._wanted_s:.0f} s")


RULE = RuleKind("knative", "stable and panic window of requests in flight", KnativeOptions, Knative)
