"""Reads sdiag: scheduling cycles and requests since its last reset. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_REQUEST = re.compile(r"^\s+(REQUEST_\w+|MESSAGE_\w+)\s*\(\s*\d+\)\s+count:(\d+)\s.*total_time:(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cycles:
    """Passes of a scheduler: how many, how long in all, and the longest."""

    count: int
    total_ms: float
    max_ms: float

    @property
    def mean_ms(self) -> float:
        """Mean length of a pass; 0 without any."""
        return self.total_ms / self.count if self.count else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """What slurmctld did in `seconds`. `requests` counts RPCs by type, `request_ms` is the time they took in all."""

    seconds: float
    main: Cycles
    backfill: Cycles
    requests: Mapping[str, int]
    request_ms: float

    def per_minute(self, request: str) -> float:
        """RPCs of this type per minute."""
        return 60 * self.requests.get(request, 0) / self.seconds


def read(text: str, seconds: float) -> Load:
    """Sdiag's output, `seconds` after its reset. Raises `ValueError` where it has no main cycles."""
    main, _, rest = text.partition("Backfilling stats")
    if "Total cycles" not in main:
        raise ValueError("sdiag names no cycles of the main scheduler")
    backfill, _, requests = rest.partition("Remote Procedure Call statistics by message type")
    found = _REQUEST.findall(requests.partition("Remote Procedure Call statistics by user")[0])
    return Load(
        seconds,
        _cycles(main),
        _cycles(backfill),
        {name: int(count) for name, count, _time in found},
        sum(int(time_us) for _name, _count, time_us in found) / 1e3,
    )


def merged(parts: Sequence[Load]) -> Load:
    """Several stretches of time as one."""
    requests: Counter[str] = Counter()
    for part in parts:
        requests.update(part.requests)
    return Load(
        sum(part.seconds for part in parts),
        _sum([part.main for part in parts]),
        _sum([part.backfill for part in parts]),
        requests,
        sum(part.request_ms for part in parts),
    )


def _sum(cycles: Sequence[Cycles]) -> Cycles:
    return Cycles(
        sum(part.count for part in cycles), sum(part.total_ms for part in cycles), max(part.max_ms for part in cycles)
    )


def _cycles(page: str) -> Cycles:
    count = _number(page, "Total cycles")
    return Cycles(count, count * _number(page, "Mean cycle") / 1e3, _number(page, "Max cycle") / 1e3)


def _number(page: str, label: str) -> int:
    """The number behind a label; sdiag leaves out means of nothing."""
    match = re.search(rf"^\s*{label}:\s*(\d+)", page, re.MULTILINE)
    return int(match[1]) if match else 0
