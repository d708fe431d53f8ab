"""How work comes to a worker of `benchmarks.kernel_share_real`: requests that arrive, or one unit after the other.

Both take a function that waits for so many seconds, or less, and says whether to go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.kernel_share_figures import percentiles

_SEED = 5


def arrivals(rate: float, seconds: float) -> Iterator[float]:
    """Poisson arrivals in seconds from the start: the same ones in every arm."""
    random = np.random.default_rng(_SEED)
    at_s = 0.0
    while (at_s := at_s + float(random.exponential(1 / rate))) < seconds:
        yield at_s


def serve_open_loop(
    serve: Callable[[], None], rate: float, seconds: float, wait: Callable[[float], bool]
) -> dict[str, float]:
    """Times of service, and from arrival to result, where waiting in the queue counts. All arrivals are served."""
    service_ms, arrival_ms = [], []
    start_s = time.perf_counter()
    for at_s in arrivals(rate, seconds):
        if not wait(start_s + at_s - time.perf_counter()):
            break
        began_s = time.perf_counter()
        serve()
        ended_s = time.perf_counter()
        service_ms.append(1e3 * (ended_s - began_s))
        arrival_ms.append(1e3 * (ended_s - start_s - at_s))
    return {
        "requests": len(service_ms),
        **percentiles("service", service_ms),
        **percentiles("arrival", arrival_ms),
    }


def run_closed_loop(
    work: Callable[[], None], size: int, seconds: float, wait: Callable[[float], bool]
) -> dict[str, float]:
    """The rate per second, where a unit of work counts as `size`.

    A unit during which the end came does not count, unless it is the only one: the others ran beside something else.
    """
    start_s = end_s = time.perf_counter()
    units = 0
    is_over = False
    while not is_over and end_s - start_s < seconds:
        work()
        is_over = not wait(0.0)
        if not is_over or not units:
            units, end_s = units + 1, time.perf_counter()
    return {"rate": round(units * size / (end_s - start_s), 3)}
