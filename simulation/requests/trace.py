"""Requests of a trace, and the files they are read from: Azure's LLM traces, Mooncake's, and our own CSV.

A file is known by its first line. Every reader gives arrivals in seconds from the earliest one; requests may stand in
any order. A row that cannot be used is rejected with its line and reason; a file without a usable row is an error.

`generate` makes traces with a known shape, for tests and benchmarks that need no recorded one. Arrivals are a Poisson
process whose rate changes over time, drawn by thinning (Lewis and Shedler, Naval Research Logistics 26(3), 1979). Token
counts are lognormal with given medians; their sigmas are near those of public traces of chat services (Azure LLM 2023:
about 1.2 for input, 0.8 for output).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Self

import msgspec
import numpy as np
from msgspec import Meta

from simulation.traces.formats.table import (
    LONGEST_S,
    RowError,
    collect,
    number,
    open_lines,
    shown,
    table_of,
    whole,
)
from simulation.traces.trace import Rejected, TraceError, first_reasons


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace. `service_s` is None where the trace has tokens instead of a service time."""

    arrival_s: float
    input_tokens: int = 0
    output_tokens: int = 0
    service_s: float | None = None


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests in order of arrival, the first at 0, and the rows that could not be read."""

    requests: tuple[Request, ...]
    rejected: tuple[Rejected, ...] = ()


ACCEPTED = (
    "accepted: CSV with TIMESTAMP,ContextTokens,GeneratedTokens (Azure), CSV with arrival_s,service_s, "
    "and JSON lines with timestamp,input_length,output_length (Mooncake)"
)
_MOST_TOKENS = 100_000_000
_LONGEST_SERVICE_S = 86_400.0
_FASTEST_RPS = 1e6
_LONGEST_TRACE_S = 366 * 86_400.0
"""A replay takes time for every second."""
_Lines = Iterator[tuple[int, str]]


class _MooncakeLine(msgspec.Struct, frozen=True):
    """One request of a Mooncake trace (Qin et al., FAST 2025); other keys are not used. Timestamps are ms."""

    timestamp: Annotated[float, Meta(ge=0, le=LONGEST_S * 1000)]
    input_length: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)]
    output_length: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)]


def read(path: Path) -> RequestTrace:
    """The requests of a file.

    Raises `TraceError` if it is none of the formats, no row can be used, or the requests lie more than 366 days apart.
    """
    with open_lines(path) as lines:
        first = next(((line, text) for line, text in lines if text.strip()), None)
        if first is None:
            raise TraceError(f"{path}: empty; {ACCEPTED}")
        rows = chain((first,), lines)
        requests, rejected = _json_lines(rows) if first[1].lstrip().startswith("{") else _csv(rows, str(path))
    if not requests:
        raise TraceError(f"{path}: no row can be used{first_reasons(rejected)}")
    in_order = _from_zero(requests)
    last_s = in_order[-1].arrival_s
    if last_s > _LONGEST_TRACE_S:
        raise TraceError(
            f"{path}: requests come within {last_s / 86_400:,.0f} days, accepted: 366 (is a time in another unit?)"
        )
    return RequestTrace(in_order, tuple(rejected))


def spread(trace: RequestTrace, seconds: float) -> RequestTrace:
    """Requests with one and the same time, spread evenly over the seconds after it.

    For traces whose clock is coarser than their traffic: Mooncake's arrivals are recorded about every 3 s. Raises
    `TraceError` for more than a day.
    """
    if not 0 <= seconds <= _LONGEST_SERVICE_S:
        raise TraceError(f"spread over {seconds:g} s, accepted: 0 to {_LONGEST_SERVICE_S:,.0f}")
    batches = (list(batch) for _at_s, batch in groupby(trace.requests, key=lambda request: request.arrival_s))
    moved = [
        replace(request, arrival_s=request.arrival_s + seconds * place / len(batch))
        for batch in batches
        for place, request in enumerate(batch)
    ]
    return replace(trace, requests=tuple(sorted(moved, key=lambda request: request.arrival_s)))


def read_curve(path: Path) -> tuple[float, ...]:
    """Relative rates, one number a line for one second each, as Dilu publishes its workloads. Raises `TraceError`."""
    rates: list[float] = []
    with open_lines(path) as lines:
        for line, text in lines:
            if not text.strip():
                continue
            try:
                rates.append(number("rate", text.strip(), 0, _FASTEST_RPS))
            except RowError as error:
                raise TraceError(
                    f"{path}: line {line}: {error}; one number a line is accepted, a rate per second"
                ) from error
    if not rates or not any(rates):
        raise TraceError(f"{path}: no second has any requests; one number a line is accepted, a rate per second")
    return tuple(rates)


@dataclass(frozen=True, slots=True)
class Idling:
    """When to let an idle instance go, and when to have one again, in seconds after the last request."""

    pre_warm_s: float
    keep_alive_s: float

    @classmethod
    def of(cls, busy: Sequence[float], long_s: int = 858, short_s: int = 200, long_weight: float = 0.5) -> Self:
        """From what came in each second: Dilu's rule, after the hybrid histograms of INFless (ASPLOS 2022).

        Idle gaps are runs of seconds without a request, within the first `long_s` seconds and the first `short_s`;
        pre-warm is the weighted mean of their 5th percentiles, keep-alive of their 90th. A part without any gap does
        not count; without gaps in either, both are 0.
        """
        weighted = [
            (weight, found)
            for weight, part in ((long_weight, busy[:long_s]), (1 - long_weight, busy[:short_s]))
            if (found := _gaps_s(part))
        ]
        total = sum(weight for weight, _ in weighted)
        if not total:
            return cls(0.0, 0.0)
        at = [sum(w * float(np.percentile(gaps, p)) for w, gaps in weighted) / total for p in (5, 90)]
        return cls(*at)


def _gaps_s(busy: Sequence[float]) -> list[int]:
    return [len(list(run)) for idle, run in groupby(busy, key=lambda rate: rate <= 0) if idle]


def per_second(trace: RequestTrace) -> tuple[float, ...]:
    """How many requests came in each second."""
    counts = [0.0] * (int(trace.requests[-1].arrival_s) + 1)
    for request in trace.requests:
        counts[int(request.arrival_s)] += 1
    return tuple(counts)


def _csv(lines: _Lines, name: str) -> tuple[list[Request], list[Rejected]]:
    table = table_of(lines, name)
    for required, parser in _TABLES.items():
        if all(table.index(column) is not None for column in required):
            return collect(table, parser(*(table.position(column) for column in required)))
    raise TraceError(f"{table.where}: the header {shown(','.join(table.header))} is of no known format; {ACCEPTED}")


def _azure(timestamp: int, context: int, generated: int) -> Callable[[int, list[str]], Request]:
    def parse(_line: int, fields: list[str]) -> Request:
        return Request(
            arrival_s=_moment_s("TIMESTAMP", fields[timestamp]),
            input_tokens=whole("ContextTokens", fields[context], 0, _MOST_TOKENS),
            output_tokens=whole("GeneratedTokens", fields[generated], 0, _MOST_TOKENS),
        )

    return parse


def _own(arrival: int, service: int) -> Callable[[int, list[str]], Request]:
    def parse(_line: int, fields: list[str]) -> Request:
        return Request(
            arrival_s=number("arrival_s", fields[arrival], 0, LONGEST_S),
            service_s=number("service_s", fields[service], 1e-6, _LONGEST_SERVICE_S),
        )

    return parse


_TABLES: dict[tuple[str, ...], Callable[..., Callable[[int, list[str]], Request]]] = {
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"): _azure,
    ("arrival_s", "service_s"): _own,
}


def _json_lines(lines: Iterable[tuple[int, str]]) -> tuple[list[Request], list[Rejected]]:
    good: list[Request] = []
    rejected: list[Rejected] = []
    for line, text in lines:
        if not text.strip():
            continue
        try:
            row = msgspec.json.decode(text, type=_MooncakeLine)
        except msgspec.MsgspecError as error:
            rejected.append(Rejected(line, f"{error}; found {shown(text.strip())}"))
            continue
        good.append(Request(row.timestamp / 1000, row.input_length, row.output_length))
    return good, rejected


def _moment_s(column: str, text: str) -> float:
    """Seconds since 1970 of a time such as `2023-11-16 18:15:46.6805900`, to the microsecond; UTC if it has no zone."""
    try:
        if text.isascii() and text[4:5] == text[7:8] == "-" and text[10:11] in (" ", "T") and len(text) >= 19:
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        pass
    raise RowError(f"{column}: found {shown(text)}, accepted: times such as 2023-11-16 18:15:46.6805900")


def _from_zero(requests: list[Request]) -> tuple[Request, ...]:
    requests.sort(key=lambda request: request.arrival_s)
    first_s = requests[0].arrival_s
    return tuple(replace(request, arrival_s=request.arrival_s - first_s) for request in requests)


Rate = Callable[[float], float]
"""Requests per second at a time in seconds."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Lognormal token counts per request, at most `most` each."""

    input_median: float = 1000.0
    input_sigma: float = 1.2
    output_median: float = 150.0
    output_sigma: float = 0.8
    most: int = 100_000


def diurnal(mean_rps: float, swing: float, period_s: float) -> Rate:
    """A sine: `swing` is the share of the mean by which the rate rises and falls, 0 to 1. It starts at the trough."""
    return lambda at_s: mean_rps * (1 - swing * math.cos(2 * math.pi * at_s / period_s))


def bursty(base_rps: float, factor: float, burst_s: float, gap_s: float, seed: int) -> Rate:
    """A base rate, times `factor` in bursts; bursts and the gaps between them are exponential with these means."""
    draw = random.Random(seed)  # noqa: S311
    edges = [draw.expovariate(1 / gap_s)]

    def rate(at_s: float) -> float:
        while edges[-1] <= at_s:
            mean_s = burst_s if len(edges) % 2 else gap_s
            edges.append(edges[-1] + draw.expovariate(1 / mean_s))
        return base_rps * (factor if bisect_right(edges, at_s) % 2 else 1.0)

    return rate


def sporadic(mean_rps: float, burst_share: float, period_s: float, seed: int) -> Rate:
    """Nothing but one burst in each period, at a random place within it, which takes this share of the period."""
    draw = random.Random(seed)  # noqa: S311
    begins: list[float] = []

    def rate(at_s: float) -> float:
        period, place = divmod(at_s / period_s, 1.0)
        while len(begins) <= period:
            begins.append(draw.uniform(0.0, 1.0 - burst_share))
        return mean_rps / burst_share if 0.0 <= place - begins[int(period)] < burst_share else 0.0

    return rate


def stepwise(rates_rps: Sequence[float]) -> Rate:
    """A rate for each second, the last one ever after."""
    return lambda at_s: rates_rps[min(int(at_s), len(rates_rps) - 1)]


def step(before_rps: float, after_rps: float, at_s: float, until_s: float) -> Rate:
    """One rate, another between two times."""
    return lambda now_s: after_rps if at_s <= now_s < until_s else before_rps


def generate(
    rate: Rate, peak_rps: float, duration_s: float, seed: int, tokens: TokenCounts | None = None
) -> RequestTrace:
    """Requests with this rate, which must stay at or below `peak_rps`. The same arguments give the same trace."""
    shape = tokens or TokenCounts()
    arrivals, lengths = random.Random(2 * seed), random.Random(2 * seed + 1)  # noqa: S311
    requests: list[Request] = []
    at_s = arrivals.expovariate(peak_rps)
    while at_s < duration_s:
        if arrivals.random() * peak_rps < rate(at_s):
            requests.append(_request(at_s, lengths, shape))
        at_s += arrivals.expovariate(peak_rps)
    return RequestTrace(tuple(requests))


def generate_gamma(
    rps: float, variation: float, duration_s: float, seed: int, tokens: TokenCounts | None = None
) -> RequestTrace:
    """Requests whose gaps are gamma-distributed with this coefficient of variation: 1 is Poisson, more is burstier."""
    shape = tokens or TokenCounts()
    arrivals, lengths = random.Random(2 * seed), random.Random(2 * seed + 1)  # noqa: S311
    regularity = 1 / variation**2
    requests: list[Request] = []
    while (at_s := arrivals.gammavariate(regularity, 1 / (regularity * rps)) + _last_s(requests)) < duration_s:
        requests.append(_request(at_s, lengths, shape))
    return RequestTrace(tuple(requests))


def _last_s(requests: Sequence[Request]) -> float:
    return requests[-1].arrival_s if requests else 0.0


def _request(at_s: float, lengths: random.Random, shape: TokenCounts) -> Request:
    return Request(
        arrival_s=at_s,
        input_tokens=_count(lengths, shape.input_median, shape.input_sigma, shape.most),
        output_tokens=_count(lengths, shape.output_median, shape.output_sigma, shape.most),
    )


def _count(draw: random.Random, median: float, sigma: float, most: int) -> int:
    return min(most, max(1, round(median * math.exp(draw.gauss(0.0, sigma)))))
