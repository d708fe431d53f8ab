"""The default rule, for replicas that take minutes to start: first Slurm's queue, then loading a model.

It counts starting replicas as capacity, forecasts as far ahead as a start takes, and stops a replica only when both
signals (forecast and requests in flight) have said for a while that it is not needed.

    work      m = max(forecast rate * S, mean of requests in flight)        concurrent requests, by Little's law
    need      (m + headroom * sqrt(z * m) + backlog) / (utilization * C)    in replicas

S is the service time of a request (C / requests per second of a replica), C a replica's concurrency. The headroom is
square-root staffing (Halfin and Whitt, Operations Research 29(3), 1981; for time-varying rates: Jennings, Mandelbaum,
Massey and Whitt, Management Science 42(10), 1996): waiting times depend on how many standard deviations of the work
are spare, so a large service needs a smaller fraction. z is the measured dispersion of arrivals, 1 for a Poisson
process. The forecast is the mean rate of the last minute plus, where a rise is fairly certain (`Arrivals.rise`), the
rise over the start time, at most half of that rate: a burst among quiet minutes looks like a rise, and with starts of
minutes it would be carried far. The backlog is the work of the queued requests, spread over `backlog_starts` start
times; in a panic, of those that were there before it.

out      the need was above N (ready and starting) for `out_after_s`: start all that are missing at once
panic    the last 3 s brought 5 standard deviations more than N can serve: scale out at once, for the burst's rate, but
         at most for the requests in flight and queued and as many again as the burst has brought: it may be a few long
         requests that came together
in       the need, with `in_margin` standard deviations added, was at most N - 1 for a whole window of `in_starts` start
         times without another action: stop half of the spare replicas, at least one. Both signals agree then, since
         the need is the larger of them. Because of the margin a need that hovers around a whole number does not cause
         starts again and again, so the window can be short.

The window is empty after a restart and after every action, so scale-in waits for a full one. The last replica is
stopped, if the bounds allow zero, after `zero_after_s` without a request.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Annotated

from msgspec import Meta

from inference_gateway.model import Capacity, Decision, Observation
from inference_gateway.scaling.arrivals import Arrivals, RecentMean
from inference_gateway.scaling.rules import Factor, Options, RuleKind, Seconds, Share, Window

_PANIC_S = 3
_PANIC_DEVIATIONS = 5.0
_LONGEST_PANIC_S = 18  # what lasts longer counts by the mean, so that a panic does not ask for ever more
_MEAN_S = 60
_LEAST_MEAN_S = 20  # seconds before the first one count as empty, so that a new rule does not act on three of them
_MOST_RISE = 0.5
_IN_FLIGHT_S = 120
_REFRESH_S = 10  # for the expensive estimates: a gateway runs the rules of many services every second
_SHORTEST_S = 10.0  # a shorter start time is no useful unit for a backlog
_SHORTEST_IN_S = 30.0  # a shorter lull says nothing about the next minute, however fast replicas start
_LONGEST_IN_S = 1800.0

Deviations = Annotated[float, Meta(ge=0, le=100)]
"""A number of standard deviations of the work."""


class SlurmOptions(Options, frozen=True):
    """The options of the rule.

    Attributes:
        utilization: fraction of a replica's concurrency to plan with.
        headroom: spare capacity, in standard deviations of the work.
        backlog_starts: time in which the queued requests are to be served, in start times.
        out_after_s: seconds for which the need must exceed the present replicas before scaling out.
        in_starts: length of the window for scaling in, in start times.
        in_margin: capacity that must be spare beyond the headroom for scaling in, in standard deviations of the work.
        zero_after_s: seconds without a request before the last replica is stopped.

    """

    utilization: Share = 1.0
    headroom: Deviations = 0.7
    backlog_starts: Factor = 1.0
    out_after_s: Window = 3
    in_starts: Factor = 5.0
    in_margin: Deviations = 0.5
    zero_after_s: Seconds = 600.0


class Slurm:
    """The rule for one service."""

    name = "slurm"

    def __init__(self, options: SlurmOptions, capacity: Capacity) -> None:
        self._options = options
        self._capacity = capacity
        self._arrivals = Arrivals()
        self._in_flight = RecentMean(_IN_FLIGHT_S)
        self._needs: deque[float] = deque()
        self._dispersion = 1.0
        self._short_dispersion = 1.0
        self._rise = 0.0
        self._panic_s = -math.inf
        self._short_s = 0
        self._requested: int | None = None
        self._busy_s = -math.inf

    def calibrate(self, capacity: Capacity) -> None:
        """Use this capacity and start time from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """The number of replicas that the rule wants, with its reason."""
        present = seen.ready + seen.starting
        if present == self._requested:
            self._needs.clear()  # the last decision has been carried out
        self._arrivals.add(seen.arrivals)
        self._in_flight.add(seen.in_flight)
        if self._busy_s == -math.inf or seen.arrivals + seen.in_flight + seen.queued > 0:
            self._busy_s = seen.now_s
        decision = self._judge(seen, present)
        self._requested = decision.replicas if decision.replicas != present else None
        return decision

    def _judge(self, seen: Observation, present: int) -> Decision:
        capacity = self._capacity
        service_s = capacity.concurrency / capacity.requests_per_s
        if self._arrivals.seconds % _REFRESH_S == 0:
            self._dispersion = self._arrivals.dispersion(max(1, round(service_s)))
            self._short_dispersion = self._arrivals.dispersion(_PANIC_S)
            self._rise = self._arrivals.rise()
        dispersion = self._dispersion
        forecast = self._forecast()
        of_queued = service_s / (self._options.backlog_starts * max(_SHORTEST_S, capacity.start_s))
        backlog = seen.queued * of_queued
        work = max(forecast * service_s, self._in_flight.value)
        need = self._replicas(work, self._options.headroom, dispersion, backlog)
        reason = (
            f"needs {need:.2f}: {forecast:.4g} requests/s ahead x {service_s:.4g} s, {self._in_flight.value:.4g} in "
            f"flight, {seen.queued} queued, dispersion {dispersion:.3g}"
        )
        ample = self._options.headroom + self._options.in_margin
        self._remember(self._replicas(work, ample, dispersion, backlog))
        self._short_s = self._short_s + 1 if need > present else 0
        burst_s = self._burst_s(seen.now_s, present)
        burst = self._arrivals.rate(burst_s)
        burst_work = min(burst * service_s, seen.in_flight + seen.queued + self._arrivals.count(burst_s))
        if burst_work > self._options.utilization * capacity.concurrency * present:
            older = max(0, seen.queued - self._arrivals.count(burst_s)) * of_queued
            now = self._replicas(burst_work, self._options.headroom, 1.0, older)
            return Decision(math.ceil(max(need, now)), f"panic: {burst:.4g} requests/s; {reason}")
        if present == 0:
            if seen.arrivals + seen.queued == 0:
                return Decision(0, "no request")
            return Decision(max(1, math.ceil(need)), f"first request; {reason}")
        if self._short_s >= self._options.out_after_s:
            return Decision(math.ceil(need), reason)
        return self._scale_in(seen, present, reason)

    def _forecast(self) -> float:
        """Requests per second when a replica that is started now will serve."""
        mean = self._arrivals.count(_MEAN_S) / max(_LEAST_MEAN_S, min(_MEAN_S, self._arrivals.seconds))
        return mean + min(self._rise * (_MEAN_S / 2 + self._capacity.start_s), _MOST_RISE * mean)

    def _replicas(self, work: float, headroom: float, dispersion: float, backlog: float) -> float:
        spare = headroom * math.sqrt(dispersion * work)
        return (work + spare + backlog) / (self._options.utilization * self._capacity.concurrency)

    def _burst_s(self, now_s: float, present: int) -> int:
        """Seconds since a burst began, 0 without one. A long one is found anew after `_LONGEST_PANIC_S`."""
        seconds = max(1, min(_PANIC_S, self._arrivals.seconds))
        usual = seconds * present * self._capacity.requests_per_s
        most = usual + _PANIC_DEVIATIONS * math.sqrt(self._short_dispersion * max(usual, 1.0))
        if now_s - self._panic_s > _LONGEST_PANIC_S:
            if self._arrivals.count(_PANIC_S) <= most:
                return 0
            self._panic_s = now_s
        # The first of the three seconds need not belong to the burst.
        return _PANIC_S - 1 + round(now_s - self._panic_s)

    def _remember(self, need: float) -> None:
        self._needs.append(need)
        while len(self._needs) > self._window:
            self._needs.popleft()

    @property
    def _window(self) -> int:
        window_s = max(_SHORTEST_IN_S, self._options.in_starts * self._capacity.start_s)
        return math.ceil(min(_LONGEST_IN_S, window_s))

    def _scale_in(self, seen: Observation, present: int, reason: str) -> Decision:
        if len(self._needs) < self._window:
            return Decision(present, reason)
        idle_s = seen.now_s - self._busy_s
        if present == 1 and idle_s >= self._options.zero_after_s:
            return Decision(0, f"no request for {idle_s:.0f} s")
        kept = max(1, math.ceil(max(self._needs)))
        if kept >= present:
            return Decision(present, reason)
        less = math.ceil((present - kept) / 2)
        return Decision(present - less, f"{kept} did for {self._window} s; {reason}")


SLURM = RuleKind(
    "slurm", "forecast over the start time, lazy in; for replicas that start in minutes", SlurmOptions, Slurm
)
