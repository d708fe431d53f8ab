"""Counters that only rise, out of HAProxys that come and go. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inference_gateway.dataplane.answers import BackendRow
from inference_gateway.model import Traffic


@dataclass(frozen=True, slots=True)
class _Counters:
    arrivals: int = 0
    responses_5xx: int = 0


@dataclass(slots=True)
class TrafficLedger:
    """Adds up the statistics of all workers there ever were, by process id.

    A worker starts to count at zero. The last counts of one that has ended stay in the sums.
    """

    _ended: dict[str, _Counters] = field(default_factory=dict)
    _last: dict[int, tuple[BackendRow, ...]] = field(default_factory=dict)

    def update(self, alive: Mapping[int, Sequence[BackendRow]]) -> None:
        """Take the statistics of every worker there is now."""
        for pid in self._last.keys() - alive.keys():
            for row in self._last.pop(pid):
                self._ended[row.service] = _plus(self._ended.get(row.service, _Counters()), row)
        self._last.update({pid: tuple(rows) for pid, rows in alive.items()})

    def traffic(self, services: Iterable[str], holding: Mapping[str, int]) -> list[Traffic]:
        """One entry a service. `holding` says how many requests wait in the activator: HAProxy takes them as served."""
        counters = dict(self._ended)
        present = dict.fromkeys(counters, 0)
        queued = dict.fromkeys(counters, 0)
        for rows in self._last.values():
            for row in rows:
                counters[row.service] = _plus(counters.get(row.service, _Counters()), row)
                present[row.service] = present.get(row.service, 0) + row.present
                queued[row.service] = queued.get(row.service, 0) + row.queued
        found = []
        for service in services:
            count = counters.get(service, _Counters())
            waiting = queued.get(service, 0) + holding.get(service, 0)
            served = max(0, present.get(service, 0) - waiting)
            found.append(Traffic(service, count.arrivals, count.responses_5xx, served, waiting))
        return found


def _plus(count: _Counters, row: BackendRow) -> _Counters:
    return _Counters(count.arrivals + row.arrivals, count.responses_5xx + row.responses_5xx)
