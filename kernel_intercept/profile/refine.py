"""Shares of kernels from device counters: windows in which a known mix of kernels ran, solved by least squares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernel_intercept.profile.model import KernelKey, KernelProfile, Source

_SATURATED = 0.98  # a counter at its end no longer grows with what runs
_DETERMINED = 0.99  # diagonal of the resolution matrix: how far a share depends on its own kernel alone
_LARGEST_ERROR = 0.05
_RELATIVE_RANK = 1e-6


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time on one GPU: how often each kernel was launched in it, and the mean utilisation, 0..1."""

    duration_ns: int
    launches: Mapping[KernelKey, int]
    compute: float
    bandwidth: float


def refined(windows: Sequence[Window], profiles: Sequence[KernelProfile]) -> list[KernelProfile]:
    """The profiles whose two shares the windows determine, with those shares and source nvml.

    Utilisation of a window is taken as the sum over its kernels of launches x time / duration x share, the linear
    model that the caps of the group policy use, too. Shares are bounded to 0..1 (`scipy.optimize.lsq_linear`). A kernel
    is left out if the windows cannot tell it from others, or leave its share uncertain by more than 0.05 (one
    standard error). Windows with a kernel that has no known time, and saturated ones, are not used.
    """
    times_ns = {profile.key: profile.gpu_ns for profile in profiles if profile.gpu_ns > 0}
    usable = [w for w in windows if w.duration_ns > 0 and all(key in times_ns for key, n in w.launches.items() if n)]
    compute = _shares([w for w in usable if w.compute < _SATURATED], times_ns, "compute")
    bandwidth = _shares([w for w in usable if w.bandwidth < _SATURATED], times_ns, "bandwidth")
    return [
        replace(
            profile,
            compute_permille=round(1000 * compute[profile.key]),
            bandwidth_permille=round(1000 * bandwidth[profile.key]),
            source=Source.NVML,
        )
        for profile in profiles
        if profile.key in compute and profile.key in bandwidth
    ]


def _shares(windows: Sequence[Window], times_ns: Mapping[KernelKey, int], counter: str) -> dict[KernelKey, float]:
    """The determined shares of one counter, an attribute of `Window`."""
    from scipy.optimize import lsq_linear

    keys = sorted({key for window in windows for key, count in window.launches.items() if count})
    if not keys or len(windows) <= len(keys):  # without a degree of freedom the error cannot be known
        return {}
    busy = np.array(
        [[window.launches.get(key, 0) * times_ns[key] / window.duration_ns for key in keys] for window in windows]
    )
    seen = np.array([getattr(window, counter) for window in windows])
    shares = lsq_linear(busy, seen, bounds=(0.0, 1.0)).x
    resolution, variance = _resolution(busy)
    residual = float(np.sum((busy @ shares - seen) ** 2)) / (len(windows) - len(keys))
    errors = np.sqrt(residual * variance)
    return {
        key: float(share)
        for key, share, resolved, error in zip(keys, shares, resolution, errors, strict=True)
        if resolved >= _DETERMINED and error <= _LARGEST_ERROR
    }


def _resolution(busy: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Diagonals of the resolution matrix and of the unscaled covariance (Aster et al., Parameter Estimation, ch. 3)."""
    _, singular, right = np.linalg.svd(busy, full_matrices=False)
    kept = singular > _RELATIVE_RANK * singular[0]
    squares = right[kept] ** 2
    return squares.sum(axis=0), (squares / singular[kept, None] ** 2).sum(axis=0)


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
