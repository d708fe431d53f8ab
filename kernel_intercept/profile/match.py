"""Which kernels the launches of an Nsight Compute export are, and the profiles they make.

A profile is keyed by the mangled name, and ncu prints that only if asked (`--print-kernel-base mangled`). A readable
name is looked up among the mangled names that are known from earlier runs; if it is not there, or means several, the
launch is left out and reported. A name without C++ spelling (Triton's kernels, `extern "C"`) is its own mangled name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from kernel_intercept.profile.format import Fault
from kernel_intercept.profile.model import KernelKey, KernelProfile, ProfileError, Source, name_hash
from kernel_intercept.profile.names import base_name, comparable, demangled
from kernel_intercept.profile.ncu import Export, Launch

_MANGLED = "_Z"
_SHARED_STEP = 16  # bytes; what kernels ask for is a multiple of their vector loads


class KnownNames:
    """The mangled names of the known kernels, found by the readable spellings of any demangler."""

    def __init__(self, profiles: Sequence[KernelProfile]) -> None:
        self._spelled: dict[str, set[str]] = defaultdict(set)
        self._based: dict[str, set[str]] = defaultdict(set)
        self._names = {profile.name for profile in profiles if profile.name}
        for mangled, readable in demangled(self._names).items():
            spelling = comparable(readable)
            self._spelled[spelling].add(mangled)
            self._based[base_name(spelling)].add(mangled)

    def mangled(self, name: str) -> str:
        """The mangled name of an exported one. Raises `ProfileError` if it is unknown or means several kernels."""
        if name.startswith(_MANGLED) or name in self._names:
            return name
        spelling = comparable(name)
        plain = name == base_name(name) and "(" not in name
        found = self._spelled.get(spelling, set()) or (self._based.get(spelling, set()) if plain else set())
        if len(found) == 1:
            return next(iter(found))
        advice = "export with `--print-kernel-base mangled`"
        if found:
            raise ProfileError(f"{name[:80]!r} means {len(found)} known kernels; {advice}")
        if plain:
            return name
        raise ProfileError(f"{name[:80]!r} is none of the {len(self._names)} known kernels; {advice}")


def profiles_of(export: Export, known: Sequence[KernelProfile]) -> tuple[list[KernelProfile], list[Fault]]:
    """One profile per kernel, the mean over its launches, and the launches that could not be used."""
    names = KnownNames(known)
    shared_known: dict[tuple[object, ...], set[int]] = defaultdict(set)
    for profile in known:
        key = profile.key
        shared_known[key.name_hash, key.grid, key.block, key.compute_capability].add(key.shared_bytes)
    faults = list(export.faults)
    launches: dict[KernelKey, list[Launch]] = defaultdict(list)
    mangled: dict[KernelKey, str] = {}
    for launch in export.launches:
        try:
            name = names.mangled(launch.name)
        except ProfileError as error:
            faults.append(Fault(launch.line, str(error)))
            continue
        hashed = name_hash(name)
        candidates = shared_known.get((hashed, launch.grid, launch.block, launch.compute_capability), set())
        shared = _shared_bytes(launch, candidates)
        key = KernelKey(hashed, launch.grid, launch.block, shared, launch.compute_capability)
        launches[key].append(launch)
        mangled[key] = name
    profiles = [_mean(key, mangled[key], same) for key, same in launches.items()]
    return profiles, sorted(faults, key=lambda fault: fault.line)


def _shared_bytes(launch: Launch, known: set[int]) -> int:
    """Undo the rounding of a scaled unit: a known size within it, else the multiple of 16 next to what was printed."""
    near = [size for size in known if abs(size - launch.shared_bytes) <= launch.shared_error]
    if near:
        return min(near, key=lambda size: abs(size - launch.shared_bytes))
    step = _SHARED_STEP * round(launch.shared_bytes / _SHARED_STEP)
    return step if abs(step - launch.shared_bytes) <= launch.shared_error else round(launch.shared_bytes)


def _mean(key: KernelKey, name: str, launches: Sequence[Launch]) -> KernelProfile:
    return KernelProfile(
        key=key,
        samples=0,
        gpu_ns=round(fmean(launch.gpu_ns for launch in launches)),
        compute_permille=_permille([launch.compute_percent for launch in launches]),
        bandwidth_permille=_permille([launch.bandwidth_percent for launch in launches]),
        source=Source.NCU,
        name=name,
    )


def _permille(percents: Sequence[float]) -> int:
    return min(1000, round(10 * fmean(percents)))  # counters of several passes can add up to a little over 100 %
