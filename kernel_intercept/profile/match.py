"""Which kernels the launches of an Nsight Compute export are, and the profiles they make.

A profile is keyed by the mangled name, and ncu prints that only if asked (`--print-kernel-base mangled`). A readable
name is looked up among the mangled names that are known from earlier runs; if it is not there, or means several, the
launch is left out and reported. A name without C++ spelling (Triton's kernels, `extern "C"`) is its own mangled name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import fmean

from kernel_intercept.profile.ncu import Export, Launch
from kernel_intercept.profile.store import Fault, KernelKey, KernelProfile, ProfileError, Source, name_hash

_PREFIX = "_Z"
_TIMEOUT_S = 60.0
_ANONYMOUS = ("(anonymous namespace)", "<unnamed>", "_GLOBAL__N__")
_INTEGER = r"(?:(?:un)?signed )?(?:bool|char|short|int|long long|long|__int128)|unsigned|signed"
_CAST = re.compile(rf"\((?:{_INTEGER})\)(?=-?\d|true\b|false\b)")
_SUFFIX = re.compile(r"(?<=\d)(?:ull|ul|u|ll|l)\b", re.IGNORECASE)
_LITERALS = {"true": "1", "false": "0"}


def demangled(names: Collection[str]) -> dict[str, str]:
    """Each name with its readable form. What is not mangled, or cannot be read, stays as it is.

    c++filt reads thousands of names in a few milliseconds; where it is missing libstdc++ does it, name by name.
    """
    mangled = [name for name in names if name.startswith(_PREFIX) and name.isprintable() and " " not in name]
    readable = {name: name for name in names}
    tool = shutil.which("c++filt")
    if not mangled:
        return readable
    if tool is None:
        return readable | {name: _by_library(name) for name in mangled}
    text = "".join(f"{name}\n" for name in mangled)
    done = subprocess.run([tool], input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    return readable | dict(zip(mangled, done.stdout.splitlines(), strict=True))


def outline(mangled: str) -> str:
    """The qualified function name without template arguments, read off the mangling itself.

    For names that no demangler takes: the manager cuts long ones. What cannot be read stays as it is. (Itanium C++ ABI,
    5.1: `_ZN` <length><identifier>... `I` opens template arguments, `E` ends the name.)
    """
    nested = re.match(r"_ZN[KVr]*", mangled)
    position = nested.end() if nested else len(_PREFIX)
    parts: list[str] = []
    while mangled.startswith(_PREFIX) and (length := re.match(r"\d{1,4}", mangled[position:])):
        start = position + length.end()
        part = mangled[start : start + int(length.group())]
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N_") else part)
        position = start + int(length.group())
        if not nested:
            break
    if not parts:
        return mangled
    return "::".join(parts) + ("<...>" if mangled[position : position + 1] == "I" else "")


def comparable(readable: str) -> str:
    """The qualified name with its template arguments, spelled alike for GNU's and NVIDIA's demangler.

    Without return type and parameters: NVIDIA's writes the parameters of a template as T1, T2 where GNU's writes the
    types. Literals lose casts and suffixes: `(int)4`, `4` and `4u` are one, as are `(bool)1` and `true`.
    """
    text = readable
    for spelling in _ANONYMOUS:
        text = text.replace(spelling, "{anonymous}")
    text = _SUFFIX.sub("", _CAST.sub("", _without_parameters(text)))
    text = re.sub(r"\b(?:true|false)\b", lambda match: _LITERALS[match.group()], text)
    return re.sub(r"\s+", "", text)


def base_name(name: str) -> str:
    """The bare function name of what `comparable` gives: what `ncu --print-kernel-base function` prints."""
    depth, start, end = 0, 0, len(name)
    for index, character in enumerate(name):
        if character == "<":
            end = index if depth == 0 else end
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == ":" and depth == 0:
            start, end = index + 1, len(name)
    return name[start:end]


def _without_parameters(text: str) -> str:
    """Cut the parameter list at the end and the return type at the start, both outside of any brackets."""
    depth, start, end = 0, 0, len(text)
    for index, character in enumerate(text):
        if character == "(" and depth == 0:
            end = index
            break
        if character in "<({[":
            depth += 1
        elif character in ">)}]":
            depth -= 1
        elif character == " " and depth == 0:
            start = index + 1
    return text[start:end]


def _by_library(name: str) -> str:
    import cxxfilt  # looks for libstdc++ when imported, which takes longer than most commands

    try:
        return str(cxxfilt.demangle(name))
    except cxxfilt.InvalidName:
        return name


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
        if name.startswith(_PREFIX) or name in self._names:
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
