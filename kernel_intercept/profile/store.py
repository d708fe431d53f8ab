"""Profiles of kernels: a launch's identity and cost, which of two counts, and the file that keeps a user's.

Identity and cost are as in `kernel_intercept/gate/kernel.hpp`. The file is read, and changed under a lock by one atomic
replacement. Version 1 is tab-separated, one line a kernel; the manager reads and writes the same.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from explsched.atomic_file import replace_file_durably
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
    gpu_ns = (old.samples * old.gpu_ns + new.samples * new.gpu_ns) // samples if samples else new.gpu_ns
    return replace(shares, samples=min(samples, _UINT64), gpu_ns=gpu_ns, name=new.name or old.name)


TITLE = "# explsched kernel profiles 1"
COLUMNS = (
    "name_hash",
    "grid",
    "block",
    "shared_bytes",
    "cc",
    "samples",
    "gpu_ns",
    "compute_permille",
    "bandwidth_permille",
    "source",
    "name",
)
_UINT32 = (1 << 32) - 1
_UINT64 = (1 << 64) - 1
_FIRST_LINE = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that cannot be used: its number, from 1, and what is wrong with it."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """The profiles of a text, one per key, and the lines left out."""

    profiles: tuple[KernelProfile, ...]
    faults: tuple[Fault, ...]


def parse(text: str) -> Parsed:
    """Read a profile file. Raises `ProfileError` if it is none of version 1; a bad line is only reported.

    Where two lines have the same key the later one counts, and the earlier one is reported.
    """
    if not text:
        return Parsed((), ())
    lines = text.removesuffix("\n").split("\n")  # not splitlines: a name may hold what Unicode counts as a line's end
    if lines[0] != TITLE:
        raise ProfileError(f"line 1: found {lines[0][:80]!r}, accepted is {TITLE!r}")
    if len(lines) > 1 and tuple(lines[1].split("\t")) != COLUMNS:
        raise ProfileError(f"line 2: found {lines[1][:80]!r}, accepted are the columns {' '.join(COLUMNS)}")
    found: dict[KernelKey, tuple[int, KernelProfile]] = {}
    faults = []
    for number, line in enumerate(lines[2:], start=_FIRST_LINE):
        try:
            profile = parse_line(line)
        except ProfileError as error:
            faults.append(Fault(number, str(error)))
            continue
        if profile.key in found:
            faults.append(Fault(found[profile.key][0], f"line {number} has the same key and counts"))
        found[profile.key] = (number, profile)
    return Parsed(tuple(profile for _, profile in found.values()), tuple(sorted(faults, key=lambda fault: fault.line)))


def render(profiles: Iterable[KernelProfile]) -> str:
    """The text of a profile file, ordered by key."""
    body = [_line(profile) for profile in sorted(profiles, key=lambda profile: profile.key)]
    return "\n".join([TITLE, "\t".join(COLUMNS), *body, ""])


def parse_line(line: str) -> KernelProfile:
    """One kernel. Raises `ProfileError` with what was found and what is accepted."""
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise ProfileError(f"found {len(cells)} columns, accepted are {len(COLUMNS)}")
    cell = dict(zip(COLUMNS, cells, strict=True))
    key = KernelKey(
        _hash(cell["name_hash"]),
        _dim3("grid", cell["grid"]),
        _dim3("block", cell["block"]),
        _whole("shared_bytes", cell["shared_bytes"], _UINT32),
        _whole("cc", cell["cc"], 999),
    )
    try:
        source = Source(cell["source"])
    except ValueError:
        raise ProfileError(f"source: found {cell['source']!r}, accepted are {', '.join(Source)}") from None
    return KernelProfile(
        key,
        _whole("samples", cell["samples"], _UINT64),
        _whole("gpu_ns", cell["gpu_ns"], _UINT64),
        _whole("compute_permille", cell["compute_permille"], 1000),
        _whole("bandwidth_permille", cell["bandwidth_permille"], 1000),
        source,
        cell["name"],
    )


def _line(profile: KernelProfile) -> str:
    key = profile.key
    if not profile.name.isprintable():
        raise ProfileError(f"kernel {key.name_hash:016x}: its name {profile.name!r} has characters a file cannot hold")
    cells = (
        f"{key.name_hash:016x}",
        key.grid,
        key.block,
        key.shared_bytes,
        key.compute_capability,
        profile.samples,
        profile.gpu_ns,
        profile.compute_permille,
        profile.bandwidth_permille,
        profile.source,
        profile.name,
    )
    return "\t".join(str(cell) for cell in cells)


def _whole(column: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= most):
        raise ProfileError(f"{column}: found {text[:40]!r}, accepted are whole numbers from 0 to {most}")
    return int(text)


def _hash(text: str) -> int:
    if len(text) != 16 or not set(text) <= set("0123456789abcdef"):
        raise ProfileError(f"name_hash: found {text[:40]!r}, accepted are 16 hexadecimal digits")
    return int(text, 16)


def _dim3(column: str, text: str) -> Dim3:
    parts = text.split(",")
    if len(parts) != 3:
        raise ProfileError(f"{column}: found {text[:40]!r}, accepted is x,y,z")
    x, y, z = (_whole(column, part, _UINT32) for part in parts)
    return Dim3(x, y, z)


FILE_NAME = "kernels-v1.tsv"


def default_path() -> Path:
    """`$XDG_CACHE_HOME/explsched/kernels-v1.tsv`, where XDG_CACHE_HOME is ~/.cache unless set."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    base = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return base / "explsched" / FILE_NAME


def read(path: Path) -> Parsed:
    """The profiles of a file; a file that does not exist has none. Raises `ProfileError` if it cannot be read."""
    try:
        return parse(path.read_text(errors="replace"))
    except FileNotFoundError:
        return Parsed((), ())
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from error


def update(path: Path, change: Callable[[tuple[KernelProfile, ...]], Iterable[KernelProfile]]) -> Parsed:
    """Replace the file's profiles by what `change` makes of them; returns what was there before.

    Lines that cannot be used are dropped. Readers see the old file or the new one, never a part. Raises `ProfileError`.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            before = read(path)
            replace_file_durably(path, render(change(before.profiles)), mode=0o600)
            return before
    except OSError as error:
        raise ProfileError(f"{error.filename or path}: {error.strerror}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An open-file-description lock on FILE.lock: the manager takes the same; the kernel releases it on any death.

    On a companion, since the file itself is replaced while the lock is held.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(f"{path}.lock", flags, 0o600)
    try:
        # struct flock of 64-bit Linux: type, whence, start, length 0 (the whole file), pid 0 (required for OFD locks).
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        yield
    finally:
        os.close(descriptor)
