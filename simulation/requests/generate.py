"""Makes request traces with a known shape, for tests and benchmarks that need no recorded trace.

Arrivals are a Poisson process whose rate changes over time, drawn by thinning (Lewis and Shedler, Naval Research
Logistics 26(3), 1979). Token counts are lognormal with given medians; their sigmas are near those of public traces of
chat services (Azure LLM 2023: about 1.2 for input, 0.8 for output).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from simulation.requests.trace import Request, RequestTrace

Rate = Callable[[float], float]
"""Requests per second at a time in seconds."""


@dataclass(frozen=True, slots=True)
class Tokens:
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
        passed = sum(edge <= at_s for edge in edges)
        return base_rps * (factor if passed % 2 else 1.0)

    return rate


def step(before_rps: float, after_rps: float, at_s: float, until_s: float) -> Rate:
    """One rate, another between two times."""
    return lambda now_s: after_rps if at_s <= now_s < until_s else before_rps


def generate(rate: Rate, peak_rps: float, duration_s: float, seed: int, tokens: Tokens | None = None) -> RequestTrace:
    """Requests with this rate, which must stay at or below `peak_rps`. The same arguments give the same trace."""
    shape = tokens or Tokens()
    arrivals, lengths = random.Random(2 * seed), random.Random(2 * seed + 1)  # noqa: S311
    requests: list[Request] = []
    at_s = arrivals.expovariate(peak_rps)
    while at_s < duration_s:
        if arrivals.random() * peak_rps < rate(at_s):
            requests.append(
                Request(
                    arrival_s=at_s,
                    input_tokens=_count(lengths, shape.input_median, shape.input_sigma, shape.most),
                    output_tokens=_count(lengths, shape.output_median, shape.output_sigma, shape.most),
                )
            )
        at_s += arrivals.expovariate(peak_rps)
    return RequestTrace(tuple(requests))


def _count(draw: random.Random, median: float, sigma: float, most: int) -> int:
    return min(most, max(1, round(median * math.exp(draw.gauss(0.0, sigma)))))
