"""How Slurm spells host lists, generic resources, times and nothing at all.

Pure; every function raises `ValueError` on text it does not understand.
"""

from __future__ import annotations

import itertools
import math
import re
from functools import lru_cache
from typing import Literal

_NOTHING = frozenset({"", "N/A", "(null)", "None", "Unknown"})
_KIND = {
    kind: re.compile(rf"^(?:gres[:/])?{kind}(?P<type>:[^:,=()]+)??(?:(?P<mark>[:=])(?P<count>\d+))?(?:\(.*\))?$")
    for kind in ("gpu", "shard")
}
_MIB = {"": 1.0, "K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
_REMEMBERED = lru_cache(maxsize=4096)
"""For texts that thousands of jobs share."""


_MOST = 4_294_967_295
"""The largest number that Slurm keeps in 32 bits."""

_LATEST_S = 100_000_000_000
"""The year 5138. Beyond 9999 a time could not even be printed."""

_MOST_HOSTS = 1_000_000


def whole(text: str, most: int = _MOST) -> int:
    """A whole number from 0 on, in ASCII digits. What is larger than `most` is no number of Slurm's."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 20) or int(text) > most:
        raise ValueError(f"number {text[:40]!r}")
    return int(text)


def signed(text: str) -> int:
    """A whole number that may be negative."""
    return -whole(text[1:]) if text.startswith("-") else whole(text)


def number(text: str) -> int:
    """A number that not every release prints; 0 without it."""
    return whole(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0


def gpu_count(tres: str) -> int:
    """GPUs in a list such as `gres:gpu:a100:2,gres:shard:4` or `gres/gpu:a100=2,gres/gpu=2`; 0 if there are none."""
    return count(tres, "gpu")


@_REMEMBERED
def as_gres(tres: str) -> str:
    """The list as the option `--gres` is written."""
    return re.sub(r"(^|,)gres[:/]", r"\1", text_of(tres)).replace("=", ":")


@_REMEMBERED
def count(tres: str, kind: Literal["gpu", "shard"]) -> int:
    """How many of a kind are in a list; 0 if there are none.

    Where a site accounts GPUs by type, `gres/gpu=2` is the total and `gres/gpu:a100=2` a part of it.
    """
    found = [match for part in tres.split(",") if (match := _KIND[kind].match(part.strip()))]
    totals = [match for match in found if match["mark"] == "=" and not match["type"]]
    return sum(whole(match["count"] or "1", _MOST_HOSTS) for match in totals or found)


@_REMEMBERED
def gpu_types(*texts: str) -> frozenset[str]:
    """The types of GPU that lists name, such as `a100` in `gres:gpu:a100:2`."""
    matches = (_KIND["gpu"].match(part.strip()) for text in texts for part in text.split(","))
    return frozenset(match["type"].removeprefix(":") for match in matches if match and match["type"])


@_REMEMBERED
def memory_mib(tres: str) -> int:
    """Memory in a list such as `cpu=4,mem=2000M,node=2`; 0 if it has none."""
    match = re.search(r"(?:^|,)mem=([0-9.]{1,15})([KMGTP]?)", tres)
    return int(float(match[1]) * _MIB[match[2]]) if match else 0


def count_tasks(text: str) -> int:
    """Tasks of an array in squeue's spelling: `3`, `2-9%2`, `1,4-10:2`; 1 for a job that is no array."""
    if text_of(text) == "":
        return 1
    total = 0
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            raise ValueError(f"array tasks {text!r}")
        first, last, step = whole(match[1]), whole(match[2] or match[1]), max(1, whole(match[3] or "1"))
        total += len(range(first, last + 1, step))
    return total


@_REMEMBERED
def expand_hosts(text: str) -> tuple[str, ...]:
    """Host names of a Slurm host list: `n[1-2,05],m3` gives n1, n2, n05, m3."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [_range(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        if len(hosts) + math.prod(map(len, choices)) > _MOST_HOSTS:
            raise ValueError(f"more than {_MOST_HOSTS} hosts in {text[:80]!r}")
        hosts.extend("".join(combination) for combination in itertools.product(*choices))
    return tuple(hosts)


def _range(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            numbers.append(first)
            continue
        ends = whole(first), whole(last)
        if ends[1] - ends[0] > _MOST_HOSTS:
            raise ValueError(f"more than {_MOST_HOSTS} hosts in {text[:80]!r}")
        numbers.extend(str(n).zfill(len(first)) for n in range(ends[0], ends[1] + 1))
    return numbers


def time_s(text: str) -> float | None:
    """A point in time printed with SLURM_TIME_FORMAT=%s; None where Slurm has none."""
    return None if text_of(text) == "" else float(whole(text, _LATEST_S))


@_REMEMBERED
def duration_s(text: str) -> float | None:
    """[days-]hours:minutes:seconds or minutes:seconds; None for UNLIMITED."""
    if text in ("UNLIMITED", "INVALID", "NOT_SET", "Partition_Limit") or text_of(text) == "":
        return None
    days, dash, clock = text.rpartition("-")
    parts = [whole(part) for part in clock.split(":")]
    if len(parts) > 3:
        raise ValueError(f"duration {text!r}")
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + part
    return float(86400 * whole(days) + seconds) if dash else float(seconds)


def text_of(value: str) -> str:
    """The value, or nothing where Slurm prints one of its words for nothing."""
    return "" if value in _NOTHING else value


_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_TYPED_GPUS = re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")


def gpus_of(tres: str) -> int:
    """GPUs of a TRES list such as `cpu=8,gres/gpu=4`. Where Slurm accounts for types alone, they are summed up."""
    total = _GPUS.search(tres)
    return int(total[1]) if total else sum(int(count) for count in _TYPED_GPUS.findall(tres))
