"""Dilu's lazy scaling: k of the last n one-second arrival counts (arXiv 2503.05130, ASPLOS'25, and its router's code).

With N replicas (ready and starting), T requests/s each, and H the last <= 40 counts of arrivals per second:

    out (+1) if at least 20 counts in H are above N*T
    in  (-1) if at least 30 counts in H are below (N-1)*T, and N > 1
    after any action H is emptied

So with a full window it scales out when the median exceeds capacity, and in when the upper quartile fits into one
replica less. The earliest action is after 20 s (out) or 30 s (in), and it takes one replica at a time. The constants
are those of the published code. Two things differ, where it has no behaviour to copy: a service with 0 replicas (it
never has) gets its first one on the first arrival, and what the bounds hold back is no action, so H stays.
"""

from __future__ import annotations

from collections import deque

from inference_gateway.model import Capacity, Decision, Observation
from inference_gateway.scaling.options import Options, Share, Window
from inference_gateway.scaling.rule_kind import RuleKind


class DiluOptions(Options, frozen=True):
    """What may be set. Raises `ValueError` for thresholds that the window cannot reach.

    Attributes:
        utilization: share of the replica's requests/s that counts as T.
        window: n, counts kept.
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
    """The rule for one service."""

    name = "dilu"

    def __init__(self, options: DiluOptions, capacity: Capacity) -> None:
        self._options = options
        self._capacity = capacity
        self._counts: deque[int] = deque(maxlen=options.window)
        self._asked: int | None = None

    def calibrate(self, capacity: Capacity) -> None:
        """Take another T from now on."""
        self._capacity = capacity

    def decide(self, seen: Observation) -> Decision:
        """One more, one less or as many as there are."""
        now = seen.ready + seen.starting
        if now == self._asked:
            self._counts.clear()  # the action was taken
        self._counts.append(seen.arrivals)
        decision = self._judge(seen, now)
        self._asked = decision.replicas if decision.replicas != now else None
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


RULE = RuleKind("dilu", "k of the last n one-second arrival counts, one replica at a time", DiluOptions, Dilu)
