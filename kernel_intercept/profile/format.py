"""The text of a profile file, version 1: tab-separated, one line a kernel. The manager reads and writes the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel_intercept.profile.model import Dim3, KernelKey, KernelProfile, ProfileError, Source

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
