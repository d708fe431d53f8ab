"""Which sick replicas stay in, and for how long failing ones stay out. Pure decisions.

HAProxy takes a replica out by its checks and by failed requests, each replica for itself. Taken together that can empty
a service: a busy model server that answers its health check late is better than none. As in Envoy (outlier detection,
panic threshold) a share of the replicas stays in whatever their health.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference_gateway.dataplane.answers import ServerRow

# Codes of a check that found nobody to talk to, or (L6RSP) somebody who could not prove to be the replica: not worth a
# try.
_NOBODY = ("L4CON", "L4TOUT", "L6RSP", "SOCKERR")
_BY_REQUESTS = "HANA"
_LONGEST = 10


def put_back(replicas: Sequence[ServerRow], share: float) -> list[str]:
    """The names of the replicas that are out by their health and should be in again.

    At least ceil(share x replicas) and one stay in, as far as they accept connections; those whose last check passed
    come first. Draining replicas and those in maintenance do not count.
    """
    counted = [row for row in replicas if row.status.startswith(("UP", "DOWN", "no check"))]
    out = [row for row in counted if row.status.startswith("DOWN") and _accepts(row)]
    floor = max(1, math.ceil(share * len(counted)))
    inside = sum(not row.status.startswith("DOWN") for row in counted)
    out.sort(key=lambda row: (not row.check.startswith("L7OK"), row.name))
    return [row.name for row in out[: max(0, floor - inside)]]


def failed_requests(row: ServerRow) -> bool:
    """Whether the replica is out because it answered requests badly (not because it was not there)."""
    return row.status.startswith("DOWN") and row.check == _BY_REQUESTS and _accepts(row)


def _accepts(row: ServerRow) -> bool:
    return not (row.check in _NOBODY or (row.check == _BY_REQUESTS and " L4 " in f" {row.remark} "))


@dataclass(frozen=True, slots=True)
class _Stay:
    """A replica's last time out: until when, how many times longer than the first, and whether it is still out."""

    until_s: float
    times: int
    length_s: float
    out: bool


@dataclass(slots=True)
class Ejections:
    """How long replicas stay out that answer checks well and requests badly: the n-th time n times as long.

    Ten times at most; a replica that did well for ten times its last stay starts anew.
    """

    _stays: dict[tuple[str, str], _Stay] = field(default_factory=dict)

    def eject(self, service: str, name: str, ejection_s: float, now_s: float) -> bool:
        """Note an ejection; False if the replica is noted as out already."""
        last = self._stays.get((service, name))
        if last is not None and last.out:
            return False
        times = min(_LONGEST, last.times + 1 if last is not None else 1)
        self._stays[service, name] = _Stay(now_s + times * ejection_s, times, times * ejection_s, out=True)
        return True

    def release(self, service: str, name: str) -> None:
        """The replica is in again before its time."""
        last = self._stays.get((service, name))
        if last is not None:
            self._stays[service, name] = replace(last, out=False)

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """Those whose time is up: (service, replica), each told once an ejection."""
        due = [key for key, stay in self._stays.items() if stay.out and stay.until_s <= now_s]
        for key in due:
            self.release(*key)
        self._stays = {
            key: stay
            for key, stay in self._stays.items()
            if stay.out or now_s <= stay.until_s + _LONGEST * stay.length_s
        }
        return due
