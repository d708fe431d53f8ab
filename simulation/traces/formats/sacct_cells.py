"""Reads single cells as Slurm's sacct prints them. Pure; every function raises `RowError` on text it does not know."""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from simulation.traces.formats.cells import LONGEST_S, MOST_GPUS, RowError, date_time_s, number, shown

_NOTHING = frozenset({"", "Unknown", "None", "N/A", "(null)", "INVALID"})
_NO_LIMIT = frozenset({"UNLIMITED", "Partition_Limit", "NOT_SET", "0"})
_ID = re.compile(
    r"(?P<base>[0-9]{1,18})"
    r"(?:_(?P<task>[0-9]{1,18})|_\[(?P<waiting>[^\]]*)\]|\+(?P<component>[0-9]{1,9}))?"
    r"(?P<step>\.\S+)?"
)
_DURATION = re.compile(
    r"(?:(?P<days>[0-9]{1,9})-)?(?:(?P<hours>[0-9]{1,9}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{2})"
)
_GPU = re.compile(r"gres/gpu(?P<type>:[^=]+)?=(?P<count>.*)")


class SlurmId(Struct, frozen=True):
    """A job id as sacct prints it: `12`, `12_3` (task of an array), `12+1` (component of a heterogeneous job).

    `task` is "" outside arrays, and the text in brackets for the tasks of an array that still wait together.
    """

    base: int
    task: str = ""
    component: int | None = None
    is_step: bool = False


def slurm_id(column: str, text: str) -> SlurmId:
    """A job or step id."""
    if len(text) <= 18 and text.isascii() and text.isdigit():  # almost all ids
        return SlurmId(int(text))
    match = _ID.fullmatch(text.strip())
    if match is None:
        raise RowError(f"{column}: found {shown(text)}, accepted are ids such as 12, 12_3, 12+1 or 12.batch")
    component = match["component"]
    return SlurmId(
        base=int(match["base"]),
        task=match["task"] or match["waiting"] or "",
        component=None if component is None else int(component),
        is_step=match["step"] is not None,
    )


def time_s(column: str, text: str) -> float | None:
    """A point in time, as seconds since 1970 or as sacct prints it by default; None where Slurm knows none.

    The default spelling is local time without a zone and read as if it were UTC.
    """
    text = text.strip()
    if text in _NOTHING:
        return None
    if text.isdecimal():
        return number(column, text, 0, LONGEST_S)
    return date_time_s(column, text)


def duration_s(column: str, text: str) -> float | None:
    """A duration: `[days-]hours:minutes:seconds` or `minutes:seconds`; None where Slurm knows none."""
    text = text.strip()
    if text in _NOTHING:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise RowError(f"{column}: found {shown(text)}, accepted are durations such as 1-12:30:00 or 30:00")
    part = {key: int(value or 0) for key, value in match.groupdict().items()}
    seconds = 86400 * part["days"] + 3600 * part["hours"] + 60 * part["minutes"] + part["seconds"]
    return number(column, str(seconds), 0, LONGEST_S)


@lru_cache(4096)  # a history has few limits, requests and states, and very many rows
def time_limit_s(column: str, text: str) -> float | None:
    """A time limit in minutes (TimelimitRaw) or as a duration (Timelimit).

    None if there is none, or if it is the partition's, which sacct does not tell.
    """
    text = text.strip()
    if text in _NO_LIMIT or text in _NOTHING:
        return None
    if text.isdecimal():
        return 60 * number(column, text, 1, LONGEST_S / 60)
    return duration_s(column, text)


@lru_cache(4096)
def gpus(column: str, text: str) -> int:
    """GPUs in a TRES list such as `billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1`; 0 if there are none.

    A site that accounts GPUs by type gets both the total and the part of each type: the total counts, and without one
    the sum of the types.
    """
    total: int | None = None
    typed = 0
    for part in text.split(","):
        match = _GPU.fullmatch(part.strip())
        if match is None:
            continue
        count = match["count"]
        if not re.fullmatch(r"[0-9]{1,9}", count) or int(count) > MOST_GPUS:
            raise RowError(f"{column}: found {shown(part)}, accepted are whole numbers of GPUs (use --noconvert)")
        if match["type"] is None:
            total = int(count)
        else:
            typed += int(count)
    return typed if total is None else total


@lru_cache(4096)
def state(column: str, text: str) -> str:
    """A job state without who caused it: CANCELLED of `CANCELLED by 1000`."""
    words = text.split()
    if not words or not re.fullmatch(r"[A-Z_]+\+?", words[0]):
        raise RowError(f"{column}: found {shown(text)}, accepted are Slurm's job states such as COMPLETED")
    return words[0].rstrip("+")
