"""How work comes to a worker of `benchmarks.kernel_share_real`: requests that arrive, or one step after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Poisson arrivals in seconds from the start: the same ones for every arm."""
    random = np.random.default_rng(seed)
    at_s = 0.0
    while (at_s := at_s + float(random.exponential(1 / rate))) < seconds:
        yield at_s


def serve_open_loop(serve: Callable[[], None], rate: float, seconds: float, seed: int) -> dict[str, object]:
    """Latencies from arrival to result, so that waiting in the queue counts. All arrivals are served."""
    latencies_ms = []
    start_s = time.perf_counter()
    for at_s in arrivals(rate, seconds, seed):
        wait_s = start_s + at_s - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        serve()
        latencies_ms.append(1e3 * (time.perf_counter() - start_s - at_s))
    return {"requests": len(latencies_ms), "latencies_ms": latencies_ms, "wall_s": time.perf_counter() - start_s}


def run_closed_loop(work: Callable[[], None], seconds: float) -> dict[str, object]:
    """One unit of work after the other."""
    ends_s = [time.perf_counter()]
    while ends_s[-1] - ends_s[0] < seconds:
        work()
        ends_s.append(time.perf_counter())
    return {
        "rate": (len(ends_s) - 1) / (ends_s[-1] - ends_s[0]),
        "times_ms": [1e3 * (end - start) for start, end in pairwise(ends_s)],
    }
