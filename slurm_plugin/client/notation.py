"""Slurm's notations: of numbers, host lists, generic resources, times, durations and absent values.

Pure; every function raises `ValueError` on text that it does not understand.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from datetime import datetime
from functools import lru_cache
from typing import Literal

from slurm_plugin.client.records import Amounts

_NOTHING = frozenset({"", "N/A", "(null)", "None", "Unknown"})
_KIND = {
    kind: re.compile(rf"^(?:gres[:/])?{kind}(?P<type>:[^:,=()]+)??(?:(?P<mark>[:=])(?P<count>\d+))?(?:\(.*\))?$")
    for kind in ("gpu", "shard")
}
_MIB = {"": 1.0, "K": 2.0**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}
_REMEMBERED = lru_cache(maxsize=4096)
"""Caches functions of texts that thousands of jobs have in common."""

_MOST = 4_294_967_295
"""The largest 32-bit number of Slurm."""

LATEST_S = 100_000_000_000
"""The year 5138; times beyond the year 9999 could not be printed."""

_ANY = 10**20
"""More than any 64-bit number."""

MOST_HOSTS = 1_000_000


def whole(text: str, most: int = _MOST) -> int:
    """A whole number from 0 to `most`, in ASCII digits."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 20) or int(text) > most:
        raise ValueError(f"number {text[:40]!r}")
    return int(text)


def signed(text: str) -> int:
    """A whole number that may be negative."""
    return -whole(text[1:]) if text.startswith("-") else whole(text)


def number(text: str) -> int:
    """A number that not every release prints, of up to 9 digits; 0 for any other text. Never raises."""
    return whole(text) if text.isdecimal() and text.isascii() and len(text) < 10 else 0


def gpu_count(tres: str) -> int:
    """GPUs in a list such as `gres:gpu:a100:2,gres:shard:4` or `gres/gpu:a100=2,gres/gpu=2`; 0 if there are none."""
    return count(tres, "gpu")


@_REMEMBERED
def as_gres(tres: str) -> str:
    """The list in the notation of the option `--gres`: `gres/gpu:a100=2` becomes `gpu:a100:2`."""
    return re.sub(r"(^|,)gres[:/]", r"\1", text_of(tres)).replace("=", ":")


@_REMEMBERED
def count(tres: str, kind: Literal["gpu", "shard"]) -> int:
    """GPUs or shards in a list; 0 if there are none.

    Where a site accounts GPUs by type, `gres/gpu=2` is the total and `gres/gpu:a100=2` a part of it.
    """
    found = [match for part in tres.split(",") if (match := _KIND[kind].match(part.strip()))]
    totals = [match for match in found if match["mark"] == "=" and not match["type"]]
    return sum(whole(match["count"] or "1", MOST_HOSTS) for match in totals or found)


@_REMEMBERED
def gpu_types(*texts: str) -> frozenset[str]:
    """The types of GPUs in lists, such as `a100` in `gres:gpu:a100:2`."""
    matches = (_KIND["gpu"].match(part.strip()) for text in texts for part in text.split(","))
    return frozenset(match["type"].removeprefix(":") for match in matches if match and match["type"])


@_REMEMBERED
def other_gres(text: str) -> Amounts:
    """What a list such as `gpu:4(S:0-1),nvme:fast:2,lane:4K` has beside GPUs and shards."""
    found: Counter[str] = Counter()
    for part in without_sockets(text_of(text)).split(","):
        name, *words = [*filter(None, part.split(":")), ""]
        if name in ("", "gpu", "shard", "none", "NONE"):
            continue
        kind = next((word for word in words if word not in ("", "no_consume") and not _AMOUNT.fullmatch(word)), "")
        told = next((match for word in words if (match := _AMOUNT.fullmatch(word))), None)
        amount = whole(told[1], _ANY) << _DOUBLINGS[told[2].upper()] if told else 1
        found.update({name: amount, **({f"{name}:{kind}": amount} if kind else {})})
    return tuple(sorted(found.items()))


@_REMEMBERED
def without_sockets(gres: str) -> str:
    """`gpu:a100:4(S:0-1)` -> `gpu:a100:4`."""
    return re.sub(r"\([^)]*\)", "", gres)


_AMOUNT = re.compile(r"(\d+)([KMGTPkmgtp]?)")
_DOUBLINGS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}


@_REMEMBERED
def memory_mib(tres: str) -> int:
    """MiB of memory in a list such as `cpu=4,mem=2000M,node=2`; 0 if it has none."""
    match = re.search(r"(?:^|,)mem=([0-9.]{1,15})([KMGTP]?)", tres)
    return int(float(match[1]) * _MIB[match[2]]) if match else 0


def count_tasks(text: str) -> int:
    """Number of tasks of an array as squeue prints them: `3`, `2-9%2`, `1,4-10:2`; 1 for a job that is no array."""
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


def task_limit(text: str) -> int | None:
    """How many tasks of an array may run at once, by its own limit as squeue prints it (`2-9%2`); None without one."""
    limit = text_of(text).partition("%")[2]
    return whole(limit) if limit else None


@_REMEMBERED
def expand_hosts(text: str, most: int = MOST_HOSTS) -> tuple[str, ...]:
    """Host names of a Slurm host list, at most `most`: `n[1-2,05],m3` gives n1, n2, n05, m3."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [_range(piece, most) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        if len(hosts) + math.prod(map(len, choices)) > most:
            raise ValueError(f"more than {most} hosts in {text[:80]!r}")
        hosts.extend("".join(combination) for combination in itertools.product(*choices))
    return tuple(hosts)


def _range(text: str, most: int) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            numbers.append(first)
            continue
        ends = whole(first), whole(last)
        if len(numbers) + ends[1] - ends[0] >= most:
            raise ValueError(f"more than {most} hosts in {text[:80]!r}")
        numbers.extend(str(n).zfill(len(first)) for n in range(ends[0], ends[1] + 1))
    return numbers


def time_s(text: str) -> float | None:
    """A time printed with SLURM_TIME_FORMAT=%s, in seconds since the epoch; None if Slurm has none.

    Slurm takes any begin time from a job's owner. One beyond `LATEST_S` counts as that, or the job could not be read.
    """
    return None if text_of(text) == "" else float(min(whole(text, _ANY), LATEST_S))


def clock(time_s: float | None) -> str:
    """A time as Slurm prints it, in the local time zone; N/A for None and infinity."""
    if time_s is None or time_s == float("inf"):
        return "N/A"
    return datetime.fromtimestamp(time_s).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


@_REMEMBERED
def duration_s(text: str) -> float | None:
    """As `fresh_duration_s`, for durations that many jobs have in common, such as time limits."""
    return fresh_duration_s(text)


def fresh_duration_s(text: str) -> float | None:
    """Seconds of [days-]hours:minutes:seconds or minutes:seconds; None for UNLIMITED or no value."""
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
    """The value; "" if it is one of the words that Slurm prints for no value."""
    return "" if value in _NOTHING else value
