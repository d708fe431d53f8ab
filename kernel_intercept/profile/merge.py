"""Which of two profiles of one kernel counts, in what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kernel_intercept.profile.model import KernelKey, KernelProfile, Source

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
