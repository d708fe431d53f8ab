"""Whose turn it is among the requests of a service that wait for a replica, and which replica takes a long prompt.

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

Long prompts are read in turn, and while a replica reads, those that it answers get a token only with each piece read.
So a request goes where the least is left to read, and of several such replicas to the one with the fewest requests
(least work left; Harchol-Balter, Crovella and Murta, JPDC 59(2), 1999). What is left is not asked of the replicas: what
each was sent is taken to be read one after another, at `prompt_tokens_per_s`, four bytes a token. Where nobody has
anything to read and a prompt is short, requests alone count. `dataplane/prompts.lua` does the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

BUFFER_S = 0.1
LOOK_S = 0.05
RESERVE = 0.15
"""Of the places of all replicas."""
PATIENCE_TARGETS = 10
BYTES_PER_TOKEN = 4.0
LEAST_READING_S = 0.1
"""A prompt that takes less is short."""


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


@dataclass(slots=True)
class Reading:
    """What the replicas of a service, by number, have been given to read. 0 `prompt_tokens_per_s`: never asked."""

    prompt_tokens_per_s: float
    _until_s: dict[int, float] = field(default_factory=dict)
    _longest_s: float = 0.0

    def decides(self, prompt_tokens: float, now_s: float) -> bool:
        """Whether it matters where this prompt goes."""
        long = prompt_tokens >= LEAST_READING_S * self.prompt_tokens_per_s
        return self.prompt_tokens_per_s > 0 and (long or self._longest_s > now_s)

    def left_s(self, replica: int, now_s: float) -> float:
        """How long a replica will read what it has."""
        return max(0.0, self._until_s.get(replica, 0.0) - now_s)

    def take(self, replica: int, prompt_tokens: float, now_s: float) -> None:
        """A replica has got a prompt."""
        until_s = now_s + self.left_s(replica, now_s) + prompt_tokens / self.prompt_tokens_per_s
        self._until_s[replica] = until_s
        self._longest_s = max(self._longest_s, until_s)
