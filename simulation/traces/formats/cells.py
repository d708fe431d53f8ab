"""Reads single cells of a table. What is found and what is accepted goes into the error."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

LONGEST_S = 1e10
"""Times above this (317 years) are taken for a mistake of units."""

SHORTEST_RUN_S = 0.001
"""Runs shorter than this are taken for a mistake of units."""

MOST_GPUS = 1_000_000
MOST_ITERATIONS = 1e15
LARGEST_ID = 2**63 - 1
_LONGEST_LABEL = 256
_SHOWN = 40
_EPOCH = datetime(1970, 1, 1)


class RowError(Exception):
    """A row that cannot be used. The message starts with the column, or with "row" where no single cell is at fault."""


def number(column: str, text: str, least: float, most: float) -> float:
    """A finite number from `least` to `most`. Raises `RowError`."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    # Python's own spellings (1_000, digits of other scripts) are in no trace on purpose. NaN fails the comparison.
    if not (least <= value <= most) or "_" in text or not text.isascii():
        raise RowError(f"{column}: found {shown(text)}, accepted are numbers from {least:,.15g} to {most:,.15g}")
    return value


def whole(column: str, text: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`; `8.0`, as spreadsheets write it, is 8. Raises `RowError`."""
    try:
        value = int(text)
    except ValueError:
        value = _from_decimal(text, least - 1)
    if not (least <= value <= most) or "_" in text or not text.isascii():
        raise RowError(f"{column}: found {shown(text)}, accepted are whole numbers from {least:,} to {most:,}")
    return value


def _from_decimal(text: str, otherwise: int) -> int:
    try:
        value = float(text)
    except ValueError:
        return otherwise
    # From 2**53 on a decimal no longer tells neighbouring whole numbers apart.
    return int(value) if abs(value) < 2**53 and value.is_integer() else otherwise


@lru_cache(4096)  # equal names of many rows share one string
def label(column: str, text: str) -> str:
    """A name: up to 256 printable characters. Raises `RowError`, because names reach terminals."""
    if text.isprintable() and len(text) <= _LONGEST_LABEL:
        return text
    raise RowError(f"{column}: found {shown(text)}, accepted are up to {_LONGEST_LABEL} printable characters")


def date_time_s(column: str, text: str) -> float:
    """Seconds since 1970 of a time such as `2017-10-09 07:01:55` (or with a T), taken as UTC. Raises `RowError`."""
    try:
        # fromisoformat knows many more spellings, some with a zone; the marks let only this one through.
        if len(text) == 19 and text.isascii() and text[4] == text[7] == "-" and text[13] == text[16] == ":":
            return (datetime.fromisoformat(text) - _EPOCH).total_seconds()
    except ValueError:
        pass
    raise RowError(f"{column}: found {shown(text)}, accepted are times such as 2017-10-09 07:01:55")


def shown(text: str) -> str:
    """What was found, quoted, without control characters, cut to a readable length."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
