"""A kernel launch's identity and cost, as in `kernel_intercept/gate/kernel.hpp`, and which of two profiles counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from explsched.errors import ExplschedError


class ProfileError(ExplschedError):
    """A profile file, an export of Nsight Compute or a counter cannot be used; says which, where and why."""


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


_TRUST = {Source.TIMING: 0, Source.NVML: 1, Source.NCU: 2}


def merged(old: Iterable[KernelProfile], new: Iterable[KernelProfile]) -> list[KernelProfile]:
    """All profiles of both, one per key."""
    found: dict[KernelKey, KernelProfile] = {profile.key: profile for profile in old}
    for profile in new:
        before = found.get(profile.key)
        found[profile.key] = profile if before is None else combine(before, profile)
    return list(found.values())


def combine(old: KernelProfile, new: KernelProfile) -> KernelProfile:
    """One profile of two with the same key.

    The shares are those of the more trusted source (ncu, then nvml, then timing), the newer ones at equal trust. The
    time is the mean of the event timings, since those were taken at the clocks the kernel really runs at; a time of
    Nsight Compute counts only while there are none.
    """
    shares = new if _TRUST[new.source] >= _TRUST[old.source] else old
    samples = old.samples + new.samples
    gpu_ns = new.gpu_ns if samples == 0 else round((old.samples * old.gpu_ns + new.samples * new.gpu_ns) / samples)
    return replace(shares, samples=samples, gpu_ns=gpu_ns, name=new.name or old.name)
