"""One trace of requests, replayed under any scaling rule, and the figures of the run; a picture of several.

matplotlib is an optional dependency and slow to import; it is loaded when a picture is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from inference_gateway.model import Capacity
from inference_gateway.scaling.measured import MeasuredRule
from inference_gateway.scaling.rules import build
from simulation.requests.engine import Batching, RequestOutcome, simulate
from simulation.requests.service import SimulatedReplica
from simulation.requests.settings import (
    RequestReplayError,
    RequestSettings,
    ServiceTime,
    StepTime,
    Work,
    known_service_s,
    service_times,
)
from simulation.requests.trace import RequestTrace
from simulation.results.plots import check, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_LEAST_S = 1e-3
"""A request without tokens takes no time, and a capacity cannot be told from none."""


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Requests with their service times, the declared capacity of a replica, and how replicas and queue behave.

    `token_s` is the mean time per token after the first one of each request, empty if that depends on the `batching`.
    """

    arrival_s: Sequence[float]
    service_s: Sequence[float]
    capacity: Capacity
    settings: RequestSettings
    batching: Batching | None = None
    token_s: Sequence[float] = ()

    @classmethod
    def of(cls, trace: RequestTrace, model: ServiceTime | StepTime | None, settings: RequestSettings) -> RequestReplay:
        """A replay in which rules are told what the first requests need, and measure the rest themselves.

        With a `StepTime` replicas batch continuously; `service_s` is then that of a full replica.

        Raises `RequestReplayError` for service times that make no sense, for a trace without requests, and for a
        `StepTime` or an SLO on the time per token where the trace has no tokens.
        """
        if not trace.requests:
            raise RequestReplayError("no requests to replay")
        arrival_s = [request.arrival_s for request in trace.requests]
        if any(later < earlier for earlier, later in pairwise(arrival_s)):
            raise RequestReplayError("the requests are not in order of arrival")
        batching, token_s = None, list[float]()
        has_tokens = all(request.service_s is None for request in trace.requests)
        if settings.tpot_s < math.inf and not has_tokens:
            raise RequestReplayError("--tpot-s needs the tokens of each request, the trace has service times")
        if isinstance(model, StepTime):
            if not has_tokens:
                raise RequestReplayError("--step-time needs the tokens of each request, the trace has service times")
            service_s = [max(_LEAST_S, model.service_s(request, settings.concurrency)) for request in trace.requests]
            work = [Work(request.input_tokens, max(0.0, request.output_tokens - 1)) for request in trace.requests]
            batching = Batching(model, work)
        else:
            service_s = service_times(trace.requests, model)
            token_s = [model.token_s(request) for request in trace.requests] if model else []
        requests_per_s = settings.concurrency / known_service_s(service_s)
        capacity = Capacity(requests_per_s, settings.concurrency, settings.start.mean_s)
        return cls(arrival_s, service_s, capacity, settings, batching, token_s)

    def under(
        self,
        rule: str,
        options: Mapping[str, object],
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> RequestOutcome:
        """What becomes of the requests under a rule. Raises `ScalingError` for an unknown rule or option."""
        measured = MeasuredRule(build(rule, options, self.capacity), self.capacity)
        return simulate(self.arrival_s, self.service_s, measured, self.settings, progress, batching=self.batching)

    def measured(
        self,
        rule: str,
        options: Mapping[str, object],
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> RequestMetrics:
        """The figures of `under`."""
        return measure(self.under(rule, options, progress), self.settings, self.token_s)


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """The figures of one run; percentiles are over all requests, failed ones waited until the deadline.

    Attributes:
        rule: name of the rule.
        requests: requests replayed.
        slo_misses: requests whose first token came too late, that failed, or that were slow.
        slow: those among them whose first token was in time and whose mean time per token is over the SLO.
        slo_miss_share: of all requests.
        failed: requests that reached the deadline.
        replica_seconds: from requesting a replica until it is gone, of all replicas.
        queue_p50_s: median wait for a replica.
        queue_p99_s: 99th percentile of it.
        latency_p50_s: median of wait and service, of answered requests; None if there is none.
        latency_p99_s: 99th percentile of it.
        utilization: work done over replica_seconds x concurrency; None without replicas.
        peak_replicas: most replicas at once, starting and draining ones included.
        scale_outs: decisions for more replicas.
        scale_ins: decisions for fewer.
        span_s: from the end of the warm-up to the last answer.

    """

    rule: str
    requests: int
    slo_misses: int
    slow: int
    slo_miss_share: float
    failed: int
    replica_seconds: float
    queue_p50_s: float
    queue_p99_s: float
    latency_p50_s: float | None
    latency_p99_s: float | None
    utilization: float | None
    peak_replicas: int
    scale_outs: int
    scale_ins: int
    span_s: float


def measure(outcome: RequestOutcome, settings: RequestSettings, token_s: Sequence[float] = ()) -> RequestMetrics:
    """The figures of a run, from the end of the warm-up on: of requests that arrive and replicas that are there then.

    The mean times per token after the first one are `token_s`, or those of the run if it is empty.

    Raises `RequestReplayError` if no request arrives after the warm-up.
    """
    arrival_s = np.asarray(outcome.arrival_s)
    counted = arrival_s >= settings.warmup_s
    if not counted.any():
        raise RequestReplayError(f"warm-up {settings.warmup_s:g} s: the last request arrives at {arrival_s[-1]:g} s")
    answered = np.ones(arrival_s.size, dtype=bool)
    answered[list(outcome.failed)] = False
    answered = answered[counted]
    wait_s, first_s = np.asarray(outcome.wait_s)[counted], np.asarray(outcome.first_s)[counted]
    latency_s, steps = np.asarray(outcome.latency_s)[counted], np.asarray(outcome.steps)[counted]
    late = ~answered | (first_s > settings.slo_s)
    if token_s:
        slow = ~late & (np.asarray(token_s)[counted] > settings.tpot_s)
    else:
        slow = ~late & (latency_s - first_s > settings.tpot_s * np.maximum(steps, 1.0))
    misses = int((late | slow).sum())
    replica_seconds = replica_seconds_of(outcome, settings.warmup_s)
    scalings = [one for one in outcome.scalings if one.at_s >= settings.warmup_s]
    p50, p99 = np.percentile(wait_s, (50, 99))
    held_s = float((latency_s - wait_s)[answered].sum())
    latency_s = latency_s[answered]
    latency = np.percentile(latency_s, (50, 99)) if latency_s.size else (None, None)
    return RequestMetrics(
        rule=outcome.rule,
        requests=wait_s.size,
        slo_misses=misses,
        slow=int(slow.sum()),
        slo_miss_share=misses / wait_s.size,
        failed=int((~answered).sum()),
        replica_seconds=round(replica_seconds, 3),
        queue_p50_s=_rounded(p50),
        queue_p99_s=_rounded(p99),
        latency_p50_s=None if latency[0] is None else _rounded(latency[0]),
        latency_p99_s=None if latency[1] is None else _rounded(latency[1]),
        utilization=_rounded(held_s / (replica_seconds * settings.concurrency)) if replica_seconds > 0 else None,
        peak_replicas=_peak(outcome, settings.warmup_s),
        scale_outs=sum(one.decision.replicas > one.before for one in scalings),
        scale_ins=sum(one.decision.replicas < one.before for one in scalings),
        span_s=_rounded(outcome.end_s - settings.warmup_s),
    )


def replica_seconds_of(outcome: RequestOutcome, since_s: float = 0.0) -> float:
    """Seconds that replicas held their jobs from `since_s` on, summed."""
    return sum(max(0.0, _gone_s(one, outcome) - max(one.asked_s, since_s)) for one in outcome.replicas)


def _gone_s(replica: SimulatedReplica, outcome: RequestOutcome) -> float:
    return outcome.end_s if replica.gone_s is None else replica.gone_s


def _rounded(seconds: float) -> float:
    return round(float(seconds), 4)


def _peak(outcome: RequestOutcome, since_s: float) -> int:
    spans = ((max(one.asked_s, since_s), _gone_s(one, outcome)) for one in outcome.replicas)
    changes = sorted(change for from_s, to_s in spans if from_s < to_s for change in ((from_s, 1), (to_s, -1)))
    most = now = 0
    for _at_s, step in changes:
        now += step
        most = max(most, now)
    return most


# Okabe and Ito's palette, safe for colour-blind readers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP*"


@dataclass(frozen=True, slots=True)
class Point:
    """A run under a rule. `target` is the swept value, None for the rule's default."""

    target: float | None
    metrics: RequestMetrics


Curves = Mapping[str, Sequence[Point]]
"""Rule -> its runs."""


def draw(panels: Mapping[str, Curves], path: Path) -> None:
    """Write a picture with a panel per title. Raises `PlotError`."""
    check(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(6.0, 4.6 * len(panels)), 4.2), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        _panel(axes, curves)
        axes.set_title(title, fontsize="medium")
    save(figure, path)


def _panel(axes: Axes, curves: Curves) -> None:
    for at, (rule, points) in enumerate(curves.items()):
        colour, marker = _COLOURS[at % len(_COLOURS)], _MARKERS[at % len(_MARKERS)]
        swept = sorted((point for point in points if point.target is not None), key=lambda point: point.target or 0.0)
        axes.plot(*_coordinates(swept), color=colour, marker=marker, ms=3, lw=1, label=rule)
        default = [point for point in points if point.target is None]
        axes.plot(*_coordinates(default), color=colour, marker=marker, ms=9, ls="", mec="black")
    # Runs without a miss must stay visible: linear below 0.01 %.
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_ylim(-0.002, 101)
    axes.set(xlabel="replica-seconds (1000)", ylabel="requests over the SLO (%)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", title="large: defaults", title_fontsize="x-small")


def _coordinates(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return (
        [point.metrics.replica_seconds / 1000 for point in points],
        [100 * point.metrics.slo_miss_share for point in points],
    )
