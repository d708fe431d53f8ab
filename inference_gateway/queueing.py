"""Whose turn it is among the requests of a service that wait for a replica.

First in, first out makes everybody late once the wait is longer than the target: each request stands behind those that
are late already. Here the oldest of those still in time goes first (earliest deadline first: all have the same target),
and who is late waits until nobody is in time. So a rate a tenth above what the replicas can take makes a tenth of the
requests late, not all. Nothing is refused for it.

    in time    it goes if fewer are in time before it than replicas have places free or the buffer has room
    late       it goes if nobody in time waits, and fewer are late before it than places are free beyond a reserve

The buffer is HAProxy's own queue: with what the replicas take in `BUFFER_S` in it none of them is idle while a held
request has not looked yet. The reserve is a share of all places that is kept for those to come (trunk reservation;
Miller 1969, Key 1990): a late request that took the last free place would make one more late. Who has waited for
`PATIENCE_TARGETS` targets, or half of the deadline, has no reserve to respect any more: replicas that are always that
busy would never take it, and order should refuse next to nobody.

HAProxy cannot change the priority of a request that waits, so the requests are held before its queue, and each looks
every `LOOK_S` whether its turn has come: `dataplane/turns.lua`, which decides as this does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BUFFER_S = 0.1
LOOK_S = 0.05
RESERVE = 0.15
"""Of the places of all replicas."""
PATIENCE_TARGETS = 10


@dataclass(frozen=True, slots=True)
class Fleet:
    """The replicas of a service that serve: how many, the places free, and the requests in HAProxy's own queue."""

    ready: int
    free: int
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """Who may go. `requests_per_s` and `concurrency` are those of one replica."""

    target_s: float
    deadline_s: float
    requests_per_s: float
    concurrency: int

    @property
    def in_time_s(self) -> float:
        """A request that has waited longer will miss the target: the buffer and a look are still before it."""
        return max(self.target_s / 2, self.target_s - BUFFER_S - LOOK_S)

    @property
    def patience_s(self) -> float:
        """Who has waited longer respects no reserve."""
        return min(self.deadline_s / 2, PATIENCE_TARGETS * self.target_s)

    @property
    def buffer(self) -> float:
        """Requests per replica in HAProxy's own queue."""
        return BUFFER_S * self.requests_per_s

    @property
    def reserve(self) -> float:
        """Places per replica that are kept for those in time."""
        return RESERVE * self.concurrency

    def room(self, fleet: Fleet) -> int:
        """How many may go at once if they are in time."""
        return fleet.free + max(1, math.floor(self.buffer * fleet.ready)) - fleet.queued

    def room_for_late(self, fleet: Fleet, in_time: int, waited_s: float) -> float:
        """How many late ones may go at once, with `in_time` waiting, if the last of them has waited so long."""
        reserve = 0.0 if waited_s >= self.patience_s else self.reserve * fleet.ready
        return fleet.free - fleet.queued - in_time - reserve
