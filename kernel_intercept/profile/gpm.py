"""Utilisation of a GPU between two moments, by NVML's GPU performance monitoring (GPM; Hopper and newer, no root).

NVIDIA asks for at least 100 ms between two samples. GPM counts an SM as used while a warp is resident on it. That is at
least the throughput that Nsight Compute measures, so shares made of it are on the careful side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from kernel_intercept.profile.model import ProfileError
from kernel_intercept.profile.refine import Utilisation

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
