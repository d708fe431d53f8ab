"""A kernel launch's identity and cost, as in `kernel_intercept/gate/kernel.hpp`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK_64 = (1 << 64) - 1


class Source(StrEnum):
    """Where the shares come from, least trusted first."""

    TIMING = "timing"  # occupancy arithmetic; only the time is measured
    NVML = "nvml"  # device counters of windows in which known kernels ran
    NCU = "ncu"  # measured by Nsight Compute, kernel by kernel


@dataclass(frozen=True, slots=True, order=True)
class Dim3:
    """Extents of a grid in blocks, or of a block in threads."""

    x: int
    y: int
    z: int

    def __str__(self) -> str:
        return f"{self.x},{self.y},{self.z}"


@dataclass(frozen=True, slots=True, order=True)
class KernelKey:
    """Launches with equal keys are expected to cost the same on the same kind of GPU.

    `name_hash` is the 64-bit FNV-1a of the mangled name, `shared_bytes` the dynamic shared memory of a block, and
    `compute_capability` is 10 * major + minor.
    """

    name_hash: int
    grid: Dim3
    block: Dim3
    shared_bytes: int
    compute_capability: int


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What a launch takes from a GPU while it runs there alone.

    `samples` is the number of event timings behind `gpu_ns`; 0 if the time, too, comes from Nsight Compute, which
    fixes clocks and flushes caches. `name` is the mangled name, empty where it is not known.
    """

    key: KernelKey
    samples: int
    gpu_ns: int
    compute_permille: int
    bandwidth_permille: int
    source: Source
    name: str


def name_hash(mangled: str) -> int:
    """64-bit FNV-1a of a mangled name (Fowler, Noll, Vo; draft-eastlake-fnv)."""
    value = _FNV_OFFSET
    for byte in mangled.encode():
        value = ((value ^ byte) * _FNV_PRIME) & _MASK_64
    return value
