"""The order of the requests of a service that wait for a replica, and which replica gets a long prompt.

With first in, first out every request becomes late once the wait exceeds the target, because each waits behind others
that are late already. Here the oldest request that is still in time goes first (earliest deadline first: all have the
same target), and late requests wait until none in time is left. So with a rate 10 % above capacity 10 % of the requests
are late, not all. No request is refused for being late.

    in time    is sent if the requests in time before it are fewer than the replicas' free places and the buffer's room
    late       is sent if no request in time waits and the late ones before it are fewer than the free places beyond a
               reserve

The buffer is HAProxy's own queue. It holds what the replicas serve in `BUFFER_S`, so that none is idle until a held
request polls again. The reserve is a fraction of all places, kept for requests to come (trunk reservation; Miller 1969,
Key 1990): a late request that took the last free place would make another one late. A request that has waited for
`PATIENCE_TARGETS` targets, or half of its deadline, ignores the reserve: replicas that are always busy would never take
it, and the order should cause next to no refusals.

HAProxy cannot change the priority of a queued request, so requests are held before its queue, and each polls every
`LOOK_S` whether its turn has come: `dataplane/turns.lua`, which decides as this module does.

A replica reads (prefills) long prompts one after another, and meanwhile the requests that it answers get a token only
between two pieces. So a request goes to the replica with the least left to read, and among equals to the one with the
fewest requests (least work left; Harchol-Balter, Crovella and Murta, JPDC 59(2), 1999). Replicas are not asked what is
left: each is assumed to read the prompts sent to it one after another, at a rate that is measured, or configured (then
four bytes count as a token). Where no replica has anything to read and the prompt is short, only the number of requests
counts. `dataplane/prompts.lua` does the same.

The rate is that of a replica while it reads, measured from outside: a request is being read from when it is sent until
its first token. If the rate is too low, prompts are kept apart that have long been read; if it is too high, only the
number of requests counts, as without a rate. So no rate is used until `LEAST_STRETCHES` are known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

BUFFER_S = 0.1
LOOK_S = 0.05
RESERVE = 0.15
"""Fraction of the places of all replicas."""
PATIENCE_TARGETS = 10
BYTES_PER_TOKEN = 4.0
LEAST_READING_S = 0.1
"""A prompt that takes less time to read is short."""
STRETCH_S = 1.0
KEPT_STRETCHES = 32
"""Number of stretches kept for each replica."""
LEAST_STRETCHES = 8


@dataclass(frozen=True, slots=True)
class Fleet:
    """The serving replicas of a service: their number, their free places, and the requests in HAProxy's own queue."""

    ready: int
    free: int
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """Which requests may be sent. `requests_per_s` and `concurrency` are those of one replica."""

    target_s: float
    deadline_s: float
    requests_per_s: float
    concurrency: int

    @property
    def in_time_s(self) -> float:
        """A request that has waited longer misses the target: the buffer and one poll interval are still to come."""
        return max(self.target_s / 2, self.target_s - BUFFER_S - LOOK_S)

    @property
    def patience_s(self) -> float:
        """A late request that has waited longer ignores the reserve."""
        return min(self.deadline_s / 2, PATIENCE_TARGETS * self.target_s)

    @property
    def buffer(self) -> float:
        """Requests per replica in HAProxy's own queue."""
        return BUFFER_S * self.requests_per_s

    @property
    def reserve(self) -> float:
        """Places per replica that are kept for requests in time."""
        return RESERVE * self.concurrency

    def room(self, fleet: Fleet) -> int:
        """How many requests in time may be sent at once."""
        return fleet.free + max(1, math.floor(self.buffer * fleet.ready)) - fleet.queued

    def room_for_late(self, fleet: Fleet, in_time: int, waited_s: float) -> float:
        """How many late requests may be sent at once, with `in_time` others waiting, if the last has waited so long."""
        reserve = 0.0 if waited_s >= self.patience_s else self.reserve * fleet.ready
        return fleet.free - fleet.queued - in_time - reserve


@dataclass(slots=True)
class Reading:
    """The prompts that each replica of a service (by number) still has to read.

    With `prompt_tokens_per_s` 0 the rate is unknown and prompts do not decide.
    """

    prompt_tokens_per_s: float
    _until_s: dict[int, float] = field(default_factory=dict)
    _longest_s: float = 0.0

    def decides(self, prompt_tokens: float, now_s: float) -> bool:
        """Whether what is left to read decides which replica gets this prompt."""
        long = prompt_tokens >= LEAST_READING_S * self.prompt_tokens_per_s
        return self.prompt_tokens_per_s > 0 and (long or self._longest_s > now_s)

    def left_s(self, replica: int, now_s: float) -> float:
        """How long a replica needs to read what it has."""
        return max(0.0, self._until_s.get(replica, 0.0) - now_s)

    def idle(self, replica: int) -> None:
        """Record that a replica has no requests, and so nothing left to read whatever was expected."""
        self._until_s.pop(replica, None)

    def take(self, replica: int, prompt_tokens: float, now_s: float) -> None:
        """Record that a prompt was sent to a replica."""
        until_s = now_s + self.left_s(replica, now_s) + prompt_tokens / self.prompt_tokens_per_s
        self._until_s[replica] = until_s
        self._longest_s = max(self._longest_s, until_s)


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval of continuous reading by a replica: the amount, in tokens or bytes, and the time in seconds."""

    amount: float
    seconds: float


@dataclass(slots=True)
class ReadingTimer:
    """Measures the reading rate of one replica from the times at which it gets requests and returns first tokens.

    A stretch begins when a prompt is being read and ends when none is, or else with the first token after `STRETCH_S`:
    a server that reads several prompts at once has then read part of the next one, which is little compared with the
    stretch. A stretch does not count if one of its prompts has no visible first token.
    """

    stretches: deque[Stretch] = field(default_factory=lambda: deque(maxlen=KEPT_STRETCHES))
    _reading: dict[Hashable, float] = field(default_factory=dict)
    _unseen: set[Hashable] = field(default_factory=set)
    _since_s: float = 0.0
    _read: float = 0.0
    _counts: bool = True

    def begin(self, request: Hashable, amount: float, now_s: float) -> None:
        """Record that a request is sent whose first token will be visible."""
        if not self._reading:
            self._next(now_s)
        self._reading[request] = amount

    def begin_unseen(self, request: Hashable) -> None:
        """Record that a request is sent whose answer arrives as a whole, so that its first token is not visible."""
        self._unseen.add(request)
        self._counts = False

    def first(self, request: Hashable, now_s: float) -> None:
        """Record a request's first token. Prompts are read in order, so those sent before it have been read as well."""
        amount = self._reading.pop(request, None)
        if amount is None:
            return
        self._read += amount
        self._unseen.clear()
        if self._reading and now_s - self._since_s < STRETCH_S:
            return
        if self._counts and now_s > self._since_s:
            self.stretches.append(Stretch(self._read, now_s - self._since_s))
        self._next(now_s)

    def end(self, request: Hashable) -> None:
        """Record the end of a request. If it had no first token, how much of it was read is unknown."""
        self._unseen.discard(request)
        if self._reading.pop(request, None) is not None:
            self._counts = False

    def _next(self, now_s: float) -> None:
        self._since_s, self._read, self._counts = now_s, 0.0, not self._unseen


def reading_rate(stretches: Iterable[Stretch]) -> float:
    """The amount that a replica reads per second: a median weighted by amount; 0 while too few stretches are known.

    Weighted because with a short prompt most of the time is not spent reading.
    """
    known = sorted(stretches, key=lambda one: one.amount / one.seconds)
    half = sum(one.amount for one in known) / 2
    if len(known) < LEAST_STRETCHES or not half:
        return 0.0
    for one in known:
        half -= one.amount
        if half <= 0:
            return one.amount / one.seconds
    return known[-1].amount / known[-1].seconds
