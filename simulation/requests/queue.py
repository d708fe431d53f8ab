"""The simulated queue of a service: requests held until it is their turn; other orders can take its place."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from inference_gateway.queueing import Fleet, Turns


class RequestQueue(Protocol):
    """Requests that wait, by number, which is their order of arrival."""

    def __len__(self) -> int: ...

    def add(self, request: int, now_s: float, fleet: Fleet) -> None:
        """Put a request in that has just come."""

    def take(self, now_s: float) -> int | None:
        """Take the request whose turn it is; None if it is nobody's."""

    def look(self, now_s: float, fleet: Fleet) -> None:
        """Let those go whose turn has come with time. Called every `queueing.LOOK_S` while `held`."""

    @property
    def held(self) -> int:
        """How many wait for a look."""

    @property
    def oldest(self) -> int:
        """The request that has waited longest. Raises `ValueError` if none waits."""

    def drop_oldest(self) -> None:
        """Take `oldest` out of its turn, at its deadline."""


@dataclass(slots=True)
class FirstInFirstOut:
    """HAProxy's own order."""

    held: int = 0
    _line: deque[int] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._line)

    def add(self, request: int, now_s: float, fleet: Fleet) -> None:  # noqa: ARG002  of no importance here
        """Put a request in that has just come."""
        self._line.append(request)

    def take(self, now_s: float) -> int | None:  # noqa: ARG002
        """Take the first request."""
        return self._line.popleft() if self._line else None

    def look(self, now_s: float, fleet: Fleet) -> None:
        """Nobody is held."""

    @property
    def oldest(self) -> int:
        """The first request. Raises `ValueError` if none waits."""
        return min(self._line)

    def drop_oldest(self) -> None:
        """Take the first request out."""
        self._line.popleft()


@dataclass(slots=True)
class InTurn:
    """The gateway's order, see `queueing`. A request that finds HAProxy's queue empty goes there at once."""

    turns: Turns
    arrival_s: Sequence[float]
    _line: deque[int] = field(default_factory=deque)
    _in_time: deque[int] = field(default_factory=deque)
    _late: deque[int] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._line) + self.held

    def add(self, request: int, now_s: float, fleet: Fleet) -> None:
        """Put a request in that has just come."""
        if not self._line or not fleet.ready:
            self._line.append(request)
            return
        self._in_time.append(request)
        self.look(now_s, fleet)

    def take(self, now_s: float) -> int | None:  # noqa: ARG002  other orders need the time
        """Take the first request of HAProxy's queue."""
        return self._line.popleft() if self._line else None

    def look(self, now_s: float, fleet: Fleet) -> None:
        """Let those go whose turn it is."""
        while self._in_time and now_s - self.arrival_s[self._in_time[0]] > self.turns.in_time_s:
            self._late.append(self._in_time.popleft())
        while self._in_time and self.turns.room(self._now(fleet)) > 0:
            self._line.append(self._in_time.popleft())
        while self._late:
            waited_s = now_s - self.arrival_s[self._late[0]]
            if self.turns.room_for_late(self._now(fleet), len(self._in_time), waited_s) <= 0:
                break
            self._line.append(self._late.popleft())

    def _now(self, fleet: Fleet) -> Fleet:
        return replace(fleet, queued=len(self._line))

    @property
    def held(self) -> int:
        """How many wait for a look."""
        return len(self._in_time) + len(self._late)

    @property
    def oldest(self) -> int:
        """The request that has waited longest. Raises `ValueError` if none waits."""
        return min(line[0] for line in self._lines if line)

    def drop_oldest(self) -> None:
        """Take `oldest` out of its turn."""
        min((line for line in self._lines if line), key=lambda line: line[0]).popleft()

    @property
    def _lines(self) -> tuple[deque[int], ...]:
        return self._line, self._in_time, self._late
