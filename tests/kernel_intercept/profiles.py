"""Profiles and exports for the tests."""

from pathlib import Path

from kernel_intercept.profile import store
from kernel_intercept.profile.store import Dim3, KernelKey, KernelProfile, Source, name_hash

FILL = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
FILL_NVIDIA = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
    "std::array<char *, (unsigned long)1>>(int, T2, T3)"
)


def key(name: str, grid: int = 64, shared_bytes: int = 0) -> KernelKey:
    return KernelKey(name_hash(name), Dim3(grid, 1, 1), Dim3(256, 1, 1), shared_bytes, 90)


def profile(
    name: str = FILL,
    *,
    grid: int = 64,
    shared_bytes: int = 0,
    samples: int = 10,
    gpu_ns: int = 5000,
    compute: int = 300,
    bandwidth: int = 400,
    source: Source = Source.TIMING,
) -> KernelProfile:
    return KernelProfile(key(name, grid, shared_bytes), samples, gpu_ns, compute, bandwidth, source, name)


def stored(path: Path) -> tuple[KernelProfile, ...]:
    """The profiles of a file of which every line can be used."""
    parsed = store.read(path)
    assert parsed.faults == ()
    return parsed.profiles
