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
each was sent is taken to be read one after another, at a rate that is measured or told (then four bytes are a token).
Where nobody has anything to read and a prompt is short, requests alone count. `dataplane/prompts.lua` does the same.

The rate is what a replica reads while it reads, seen from outside: a request is being read from when it is sent until
its first token. Who is told too little keeps prompts apart that nobody reads any more; who is told too much counts
requests, as if nobody had measured anything. So no rate is taken until `LEAST_STRETCHES` are known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

BUFFER_S = 0.1
LOOK_S = 0.05
RESERVE = 0.15
"""Of the places of all replicas."""
PATIENCE_TARGETS = 10
BYTES_PER_TOKEN = 4.0
LEAST_READING_S = 0.1
"""A prompt that takes less is short."""
STRETCH_S = 1.0
KEPT_STRETCHES = 32
"""Of each replica."""
LEAST_STRETCHES = 8


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

    def idle(self, replica: int) -> None:
        """A replica has no request: it has nothing left to read, whatever was expected."""
        self._until_s.pop(replica, None)

    def take(self, replica: int, prompt_tokens: float, now_s: float) -> None:
        """A replica has got a prompt."""
        until_s = now_s + self.left_s(replica, now_s) + prompt_tokens / self.prompt_tokens_per_s
        self._until_s[replica] = until_s
        self._longest_s = max(self._longest_s, until_s)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a replica has read without a pause, in tokens or bytes, and how long that took."""

    amount: float
    seconds: float


@dataclass(slots=True)
class ReadingTimer:
    """Measures what one replica reads, by when it gets requests and when their first tokens come.

    A stretch begins when somebody is read and ends when nobody is, or, where somebody always is, with a first token
    after `STRETCH_S`: who reads several prompts at once has read part of the next one by then, little of a long
    stretch. Where it is not seen when a prompt has been read, what is read beside it is not counted.
    """

    stretches: deque[Stretch] = field(default_factory=lambda: deque(maxlen=KEPT_STRETCHES))
    _reading: dict[Hashable, float] = field(default_factory=dict)
    _unseen: set[Hashable] = field(default_factory=set)
    _since_s: float = 0.0
    _read: float = 0.0
    _counts: bool = True

    def begin(self, request: Hashable, amount: float, now_s: float) -> None:
        """A request is sent whose first token will be seen."""
        if not self._reading:
            self._next(now_s)
        self._reading[request] = amount

    def begin_unseen(self, request: Hashable) -> None:
        """A request is sent whose answer comes at once, when all of it is there."""
        self._unseen.add(request)
        self._counts = False

    def first(self, request: Hashable, now_s: float) -> None:
        """Its first token is there. Prompts are read in turn: those sent before have been read, too."""
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
        """It is answered, or broken off: nobody knows how much of it has been read then."""
        self._unseen.discard(request)
        if self._reading.pop(request, None) is not None:
            self._counts = False

    def _next(self, now_s: float) -> None:
        self._since_s, self._read, self._counts = now_s, 0.0, not self._unseen


def reading_rate(stretches: Iterable[Stretch]) -> float:
    """What a replica reads in a second: the median over all that was read; 0 while too little is known.

    By amount, not by stretch: with a short prompt most of the time is not spent reading.
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
