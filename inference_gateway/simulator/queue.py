"""The simulated queue of a service: two classes, each first in, first out; other orders can take its place."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from inference_gateway.queueing import Classes


class Waiting(Protocol):
    """Requests that wait, by number, which is their order of arrival."""

    def __len__(self) -> int: ...

    def add(self, request: int, ready: int) -> None:
        """Put a request in that has just come, while `ready` replicas serve."""

    def take(self, now_s: float) -> int:
        """Take the request whose turn it is. Raises `IndexError` if none waits."""

    @property
    def oldest(self) -> int:
        """The request that has waited longest. Raises `ValueError` if none waits."""

    def drop_oldest(self) -> None:
        """Take `oldest` out of its turn, at its deadline."""


@dataclass(slots=True)
class WaitingRequests:
    """Requests by number, which is their order of arrival."""

    classes: Classes
    _first: deque[int] = field(default_factory=deque)
    _second: deque[int] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def add(self, request: int, ready: int) -> None:
        """Put a request that has just come into its class."""
        late = self.classes.is_late(len(self), ready)
        (self._second if late else self._first).append(request)

    def take(self, now_s: float) -> int:  # noqa: ARG002  other orders need the time
        """Take the request whose turn it is. Raises `IndexError` if none waits."""
        return (self._first or self._second).popleft()

    @property
    def oldest(self) -> int:
        """The request that has waited longest. Raises `ValueError` if none waits."""
        return min(line[0] for line in (self._first, self._second) if line)

    def drop_oldest(self) -> None:
        """Take `oldest` out of its turn, at its deadline."""
        oldest = self.oldest
        if self._first and self._first[0] == oldest:
            self._first.popleft()
        else:
            self._second.popleft()
            self.classes.gave_up()
