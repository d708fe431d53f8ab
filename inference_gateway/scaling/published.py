"""The scaling rules of published systems: Dilu, Knative, Ray Serve and ServerlessLLM."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal

from inference_gateway.model import Capacity, Decision, Observation
from inference_gateway.scaling.arrivals import RecentMean, RecentMost
from inference_gateway.scaling.rules import Factor, Options, RuleKind, Seconds, Share, Window


class DiluOptions(Options, frozen=True):
    """The options of the rule. Raises `ValueError` for thresholds that the window cannot reach.

    Attributes:
        utilization: fraction of a replica's requests/s that is used as T.
        window: n, the number of counts kept.
        out_of_window: k for scaling out.
        in_of_window: k for scaling in.

    """

    utilization: Share = 1.0
    window: Window = 40
    out_of_window: Window = 20
    in_of_window: Window = 30

    def __post_init__(self) -> None:
        most = max(self.out_of_window, self.in_of_window)
        if most > self.window:
            raise ValueError(f"out_of_window and in_of_window: found up to {most}, accepted are at most {self.window}")


class Dilu:
    """Dilu's lazy scaling: k of the last n one-second arrival counts (arXiv 2503.05130, ASPLOS'25, and its code).

    With N replicas (ready and starting), T requests/s each, and H the last <= 40 counts of arrivals per second:

        out (+1) if at least 20 counts in H are above N*T
        in  (-1) if at least 30 counts in H are below (N-1)*T, and N > 1
        after any action H is emptied

    So with a full window it scales out when the median exceeds capacity, and in when the upper quartile fits into one
    replica less. The earliest action is after 20 s (out) or 30 s (in), and it adds or removes one replica at a time.
    The constants are those of the published code. Two cases are ours because the code does not have them: a service
    with 0 replicas gets its first one on the first arrival, and a decision that the bounds prevent is no action, so H
    is kept.

    """

    name = "dilu"

    def __init__(self, options: DiluOptions, capacity: Capacity) -> None:
        self._options = options
        self._capacity = capacity
        self._counts: deque[int] = deque(maxlen=options.window)
        self._requested: int | None = None

    def calibrate(self, capacity: Capacity) -> None:
        """Use the T of this capacity from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """One replica more, one less, or as many as there are."""
        now = seen.ready + seen.starting
        if now == self._requested:
            self._counts.clear()  # the last decision has been carried out
        self._counts.append(seen.arrivals)
        decision = self._judge(seen, now)
        self._requested = decision.replicas if decision.replicas != now else None
        return decision

    def _judge(self, seen: Observation, now: int) -> Decision:
        if now == 0:
            asked = seen.arrivals + seen.in_flight + seen.queued > 0
            return Decision(1, "first request") if asked else Decision(0, "no request")
        each = self._options.utilization * self._capacity.requests_per_s
        above = sum(count > now * each for count in self._counts)
        if above >= self._options.out_of_window:
            return Decision(now + 1, self._reason(above, "above", now, each))
        below = sum(count < (now - 1) * each for count in self._counts)
        if below >= self._options.in_of_window and now > 1:
            return Decision(now - 1, self._reason(below, "below", now - 1, each))
        return Decision(now, f"{above} of {len(self._counts)} counts above {now * each:.4g}/s, {below} below one less")

    def _reason(self, matching: int, side: str, replicas: int, each: float) -> str:
        return f"{matching} of {len(self._counts)} counts {side} {replicas} x {each:.4g} = {replicas * each:.4g}/s"


DILU = RuleKind("dilu", "k of the last n one-second arrival counts, one replica at a time", DiluOptions, Dilu)


class KnativeOptions(Options, frozen=True):
    """The options of the rule; the defaults are Knative's. Windows and delays are in seconds.

    Attributes:
        metric: `concurrency` (in flight and queued) or `rps`.
        utilization: target utilisation of a replica.
        stable_window: length of the stable window.
        panic_share: length of the panic window, as a fraction of the stable one.
        panic_threshold: panic begins when this many times the ready replicas are wanted.
        max_up: largest factor by which one step scales out.
        max_down: largest divisor by which one step scales in.
        scale_down_delay_s: for this long the largest number wanted is kept.
        zero_grace_s: for this long zero must be wanted before scaling to zero.
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
    """The Knative Pod Autoscaler (KPA): a stable and a panic window (knative/serving, pkg/autoscaler; formulas only).

    Every 2 s, with ready := max(1, ready replicas) and the target of one replica = utilization * its capacity:

        wanted in the stable window  dS = ceil(mean over 60 s / target), within [floor(ready / 2), ceil(1000 * ready)]
        wanted in the panic window   dP = ceil(mean over 6 s / target), within the same
        panic begins when ceil(mean over 6 s / target) / ready >= 2, and ends a stable window after this was last true
        wanted = dS; in panic the maximum of dS, dP and all values since panic began: it never scales in
        with a scale-down delay: the maximum wanted within it

    The signal is the number of requests in flight and queued (`metric = concurrency`, Knative's default) or the
    arrivals per second (`metric = rps`). Like Knative, the rule counts ready replicas only. A new autoscaler that finds
    more than one ready replica starts in panic with that number, so that lost history never scales in. A service goes
    to zero after `zero_grace_s` without a request in the stable window.

    """

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
        """Use the target of this capacity from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """The KPA's decision; between its ticks, its last one."""
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
        """Keep one replica until zero has been wanted for the grace period."""
        if decision.replicas > 0 or seen.ready + seen.starting == 0:
            self._wanted_s = None
            return decision
        if self._wanted_s is None:
            self._wanted_s = seen.now_s
        if seen.now_s - self._wanted_s >= self._options.zero_grace_s:
            return decision
        return Decision(1, f"{decision.reason}; none wanted since {seen.now_s - self._wanted_s:.0f} s")


KNATIVE = RuleKind("knative", "stable and panic window of requests in flight", KnativeOptions, Knative)


class TargetOptions(Options, frozen=True):
    """The options of the rule; the defaults are Ray Serve's.

    Attributes:
        utilization: target requests per replica, as a fraction of its concurrency.
        look_back: length of the mean in seconds.
        up_delay_s: for this long more replicas must be wanted before scaling out.
        down_delay_s: for this long fewer replicas must be wanted before scaling in.
        up_factor: fraction of a scale-out that is done at once.
        down_factor: fraction of a scale-in that is done at once.

    """

    utilization: Share = 0.4
    look_back: Window = 30
    up_delay_s: Seconds = 30.0
    down_delay_s: Seconds = 600.0
    up_factor: Factor = 1.0
    down_factor: Factor = 1.0


class Target:
    """Requests in flight and queued against a target per replica, with delays: as Ray Serve and ServerlessLLM scale.

        wanted = ceil(N + factor * (mean of in-flight and queued / target - N))      (Ray Serve, autoscaling policy)

    N counts ready and starting replicas. A change is made once it was wanted, in the same direction, for a whole delay;
    starting from zero skips the delay. If rounding up prevents the last step down, one replica is removed. With factor
    1 and no delays this is ServerlessLLM's ceil(in-flight / target). Ray Serve's own defaults are target 2 with at most
    5 requests in flight (`utilization` 0.4), a mean over 30 s, and delays of 30 s up and 600 s down.

    """

    name = "target"

    def __init__(self, options: TargetOptions, capacity: Capacity) -> None:
        self._options = options
        self._capacity = capacity
        self._ongoing = RecentMean(options.look_back)
        self._up_since_s: float | None = None
        self._down_since_s: float | None = None

    def calibrate(self, capacity: Capacity) -> None:
        """Use the target of this capacity from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """The number of replicas by the target, once the delay is over."""
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


TARGET = RuleKind("target", "requests in flight and queued per replica, with delays", TargetOptions, Target)
