"""The default rule, for replicas that take minutes to start: a Slurm queue, then loading a model.

It counts starting replicas as capacity, looks as far ahead as a start takes, and gives a replica up only when both
signals have said for a while that it is not needed.

    work      m = max(forecast rate * S, mean of requests in flight)        in requests at once, by Little's law
    need      (m + headroom * sqrt(z * m) + backlog) / (utilization * C)    in replicas

S is the time a request takes (C / requests per second of a replica), C a replica's concurrency. The headroom is
square-root staffing (Halfin and Whitt, Operations Research 29(3), 1981; for rates that change: Jennings, Mandelbaum,
Massey and Whitt, Management Science 42(10), 1996): waits depend on how many standard deviations of the work are
spare, so a large service needs a smaller share. z is the measured dispersion of arrivals, 1 if they are Poisson. The
forecast is the present rate plus its rise, where there surely is one, over the start time; see `arrivals`. The backlog
is the work of the queued requests, spread over `backlog_starts` start times.

out      the need was above N (ready and starting) for `out_after_s`: all that is missing at once
panic    the last 3 s brought more than N can take by 5 standard deviations: the same at once, and for the burst's rate
in       the need, with `in_margin` standard deviations more, was at most N - 1 for a whole window of `in_starts` start
         times that holds no other action: half of what was spare, at least one. Both signals agree then, since the
         need is the larger of them. The margin keeps a need that hovers about a whole number from paying for a start
         again and again, so that the window can be short.

The window is empty after a restart and after every action, so scale-in waits for a whole one. The last replica goes,
if the bounds allow none, after `zero_after_s` without a request.
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
_LONGEST_PANIC_S = 18  # with the 2 s before: the shortest window of the level
_IN_FLIGHT_S = 120
_REFRESH_S = 10  # of the slow estimates: a gateway asks the rules of many services every second
_SHORTEST_S = 10.0  # a start time below it is too short to measure a backlog or a lull against
_SHORTEST_IN_S = 30.0  # a shorter lull says nothing about the next minute, however quickly replicas start
_LONGEST_IN_S = 1800.0

Deviations = Annotated[float, Meta(ge=0, le=100)]
"""Standard deviations of the work."""


class SlurmOptions(Options, frozen=True):
    """What may be set.

    Attributes:
        utilization: share of a replica's concurrency to plan with.
        headroom: spare capacity in standard deviations of the work.
        backlog_starts: time in which queued requests are to be worked off, in start times.
        out_after_s: seconds the need must be above what there is.
        in_starts: length of the window for scaling in, in start times.
        in_margin: what must be spare beyond the headroom for scaling in, in standard deviations of the work.
        zero_after_s: seconds without a request before the last replica goes.

    """

    utilization: Share = 1.0
    headroom: Deviations = 0.7
    backlog_starts: Factor = 2.0
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
        self._asked: int | None = None
        self._busy_s = -math.inf

    def calibrate(self, capacity: Capacity) -> None:
        """Take another capacity and start time from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """As many replicas as the need asks for."""
        present = seen.ready + seen.starting
        if present == self._asked:
            self._needs.clear()  # the action was taken
        self._arrivals.add(seen.arrivals)
        self._in_flight.add(seen.in_flight)
        if self._busy_s == -math.inf or seen.arrivals + seen.in_flight + seen.queued > 0:
            self._busy_s = seen.now_s
        decision = self._judge(seen, present)
        self._asked = decision.replicas if decision.replicas != present else None
        return decision

    def _judge(self, seen: Observation, present: int) -> Decision:
        capacity = self._capacity
        service_s = capacity.concurrency / capacity.requests_per_s
        if self._arrivals.seconds % _REFRESH_S == 0:
            self._dispersion = self._arrivals.dispersion(max(1, round(service_s)))
            self._short_dispersion = self._arrivals.dispersion(_PANIC_S)
            self._rise = self._arrivals.rise()
        dispersion = self._dispersion
        level = self._arrivals.level(dispersion)
        forecast = level.requests_per_s + self._rise * (level.age_s + capacity.start_s)
        backlog = seen.queued * service_s / (self._options.backlog_starts * max(_SHORTEST_S, capacity.start_s))
        work = max(forecast * service_s, self._in_flight.value)
        need = self._replicas(work, self._options.headroom, dispersion, backlog)
        reason = (
            f"needs {need:.2f}: {forecast:.4g} requests/s ahead x {service_s:.4g} s, {self._in_flight.value:.4g} in "
            f"flight, {seen.queued} queued, dispersion {dispersion:.3g}"
        )
        ample = self._options.headroom + self._options.in_margin
        self._remember(self._replicas(work, ample, dispersion, backlog))
        self._short_s = self._short_s + 1 if need > present else 0
        burst = self._burst(seen.now_s, present)
        if burst * service_s > self._options.utilization * capacity.concurrency * present:
            now = self._replicas(burst * service_s, self._options.headroom, 1.0, backlog)
            return Decision(math.ceil(max(need, now)), f"panic: {burst:.4g} requests/s; {reason}")
        if present == 0:
            asked = seen.arrivals + seen.queued > 0
            return Decision(max(1, math.ceil(need)), f"first request; {reason}") if asked else Decision(0, "no request")
        if self._short_s >= self._options.out_after_s:
            return Decision(math.ceil(need), reason)
        return self._in(seen, present, reason)

    def _replicas(self, work: float, headroom: float, dispersion: float, backlog: float) -> float:
        spare = headroom * math.sqrt(dispersion * work)
        return (work + spare + backlog) / (self._options.utilization * self._capacity.concurrency)

    def _burst(self, now_s: float, present: int) -> float:
        """Requests per second since a burst began, 0 if there is none. After `_LONGEST_PANIC_S` the level knows it."""
        seconds = max(1, min(_PANIC_S, self._arrivals.seconds))
        usual = seconds * present * self._capacity.requests_per_s
        most = usual + _PANIC_DEVIATIONS * math.sqrt(self._short_dispersion * max(usual, 1.0))
        if now_s - self._panic_s > _LONGEST_PANIC_S:
            if self._arrivals.count(_PANIC_S) <= most:
                return 0.0
            self._panic_s = now_s
        # The first of the three seconds need not belong to the burst.
        return self._arrivals.rate(_PANIC_S - 1 + round(now_s - self._panic_s))

    def _remember(self, need: float) -> None:
        self._needs.append(need)
        while len(self._needs) > self._window:
            self._needs.popleft()

    @property
    def _window(self) -> int:
        window_s = max(_SHORTEST_IN_S, self._options.in_starts * self._capacity.start_s)
        return math.ceil(min(_LONGEST_IN_S, window_s))

    def _in(self, seen: Observation, present: int, reason: str) -> Decision:
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
