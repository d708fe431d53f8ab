"""Observes a GPU for a number of windows: which kernels ran in each, and how far they used it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kernel_intercept.profile.model import KernelKey
from kernel_intercept.profile.refine import Window


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Means over a stretch of time, 0..1: SMs with work, and used share of the memory bandwidth."""

    compute: float
    bandwidth: float


class UtilisationSource(Protocol):
    """Counters of one GPU."""

    def since_last(self) -> Utilisation:
        """The utilisation since the last call; since the source was opened at the first. Raises `ProfileError`."""
        ...


def record(
    source: UtilisationSource,
    launches: Callable[[], Mapping[KernelKey, int]],
    clock_ns: Callable[[], int],
    wait: Callable[[], None],
    windows: int,
) -> list[Window]:
    """Observe so many windows, each one `wait` long. `launches` counts every kernel since some fixed moment."""
    found = []
    source.since_last()
    counts, start_ns = launches(), clock_ns()
    for _ in range(windows):
        wait()
        used, now, end_ns = source.since_last(), launches(), clock_ns()
        mix = {key: count - counts.get(key, 0) for key, count in now.items() if count > counts.get(key, 0)}
        found.append(Window(end_ns - start_ns, mix, used.compute, used.bandwidth))
        counts, start_ns = now, end_ns
    return found
