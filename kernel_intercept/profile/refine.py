"""Shares of kernels from device counters: windows in which a known mix of kernels ran, solved by least squares.

The launches are counted in the interposer's trace (EXPLSCHED_TRACE), the counters are those of NVML's GPU performance
monitoring (GPM; Hopper and newer, no root). NVIDIA asks for at least 100 ms between two samples. GPM counts an SM as
used while a warp is resident on it. That is at least the throughput that Nsight Compute measures, so shares made of it
are on the careful side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import pynvml
from numpy.typing import NDArray

from kernel_intercept.profile.store import Dim3, KernelKey, KernelProfile, ProfileError, Source, name_hash

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


_WORDS = 7  # launch ENTRY KERNEL GRID BLOCK SHARED granted|pass


class TraceCounter:
    """Launches so far by kernel, on GPUs of one compute capability. Each call reads what was appended since.

    A graph counts as a kernel of its own, whose time nobody knows: windows with one are not used.
    """

    def __init__(self, path: Path, compute_capability: int) -> None:
        self._path, self._capability = path, compute_capability
        self._at = 0
        self._rest = b""
        self._counts: Counter[KernelKey] = Counter()
        self._keys: dict[tuple[str, ...], KernelKey] = {}

    def __call__(self) -> Mapping[KernelKey, int]:
        """The counts now. Raises `ProfileError` if the trace cannot be read or has a line of another form."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._at)
                data = stream.read()
        except OSError as error:
            raise ProfileError(f"{self._path}: {error.strerror}") from error
        self._at += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._counts[self._key(line.decode(errors="replace"))] += 1
        return dict(self._counts)

    def _key(self, line: str) -> KernelKey:
        words = line.split(" ")
        if len(words) != _WORDS or words[0] != "launch":
            raise ProfileError(f"{self._path}: found {line[:80]!r}, accepted are lines of EXPLSCHED_TRACE")
        what = tuple(words[2:6])
        if what not in self._keys:
            try:
                grid, block = (Dim3(*(int(extent) for extent in word.split(","))) for word in words[3:5])
                key = KernelKey(name_hash(words[2]), grid, block, int(words[5]), self._capability)
            except (TypeError, ValueError):
                raise ProfileError(
                    f"{self._path}: found {line[:80]!r}, accepted are lines of EXPLSCHED_TRACE"
                ) from None
            self._keys[what] = key
        return self._keys[what]


_METRICS = (pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL)


class GpmSource:
    """The counters of a real GPU, a `UtilisationSource`. Made by `open_gpm`."""

    def __init__(self, device: object) -> None:
        self._device = device
        self._last, self._next = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(device, self._last)

    @property
    def compute_capability(self) -> int:
        """10 * major + minor."""
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(self._device)
        return 10 * int(major) + int(minor)

    def since_last(self) -> Utilisation:
        """The utilisation since the last call. Raises `ProfileError`."""
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_METRICS)
        for index, metric in enumerate(_METRICS):
            request.metrics[index].metricId = metric
        try:
            pynvml.nvmlGpmSampleGet(self._device, self._next)
            request.sample1, request.sample2 = self._last, self._next
            pynvml.nvmlGpmMetricsGet(request)
        except pynvml.NVMLError as error:
            raise ProfileError(f"NVML: {error}") from error
        for metric in request.metrics[: len(_METRICS)]:
            if metric.nvmlReturn != pynvml.NVML_SUCCESS:
                raise ProfileError(f"NVML gives no value for GPM metric {metric.metricId}: {metric.nvmlReturn}")
        self._last, self._next = self._next, self._last
        return Utilisation(request.metrics[0].value / 100, request.metrics[1].value / 100)

    def close(self) -> None:
        """Give the samples back."""
        pynvml.nvmlGpmSampleFree(self._last)
        pynvml.nvmlGpmSampleFree(self._next)


@contextmanager
def open_gpm(uuid: str) -> Iterator[GpmSource]:
    """The counters of the GPU with this UUID (`GPU-...`). Raises `ProfileError` without NVML, the GPU or GPM."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ProfileError(f"NVML cannot be used: {error}") from error
    try:
        source = _source(uuid)
        try:
            yield source
        finally:
            source.close()
    finally:
        pynvml.nvmlShutdown()


def _source(uuid: str) -> GpmSource:
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        supported = pynvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice
        if supported:
            return GpmSource(device)
    except pynvml.NVMLError as error:
        raise ProfileError(f"{uuid}: NVML: {error}") from error
    raise ProfileError(f"{uuid}: this GPU has no GPM counters (Hopper and newer have them)")
