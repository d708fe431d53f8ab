"""Requests of one service that wait for a replica: first in, first out, bounded in number and time."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence

from inference_gateway.dataplane.endpoints import ActivatorState, HeldService
from inference_gateway.model import Endpoint, StartForecast

LOOK_S = 0.05
ANNOUNCE_S = 1.0
AVOID_S = 1.0


class FullError(Exception):
    """The queue is full."""


class GivenUpError(Exception):
    """No replica will start until an operator intervenes."""


class Waiting:
    """The queue of a service that has no ready replica, or too few.

    `ready` returns the replicas that take requests now; `announce` tells the control plane how many requests wait.
    From here a replica gets at most `concurrency` requests at a time. One that refused a connection is skipped for a
    second.
    """

    def __init__(
        self, service: HeldService, ready: Callable[[], Sequence[Endpoint]], announce: Callable[[int], None]
    ) -> None:
        self.service = service
        self.relaying: Counter[str] = Counter()
        self.cold_starts = 0
        self._ready = ready
        self._announce = announce
        self._line: deque[asyncio.Future[Endpoint]] = deque()
        self._avoided: dict[str, float] = {}
        self._watch: asyncio.Task[None] | None = None
        self.waiting = 0
        self.starts = StartForecast(service.retry_after_s)

    def expect(self, starts: StartForecast) -> None:
        """Take the control plane's forecast; if no replica will start, all waiting requests fail now."""
        self.starts = starts
        if self._hopeless:
            for place in self._line:
                if not place.done():
                    place.set_exception(GivenUpError())

    def state(self) -> ActivatorState:
        """The numbers of waiting and of relayed requests."""
        return ActivatorState(self.waiting, dict(self.relaying))

    async def acquire(self, deadline_s: float) -> Endpoint:
        """Wait for a replica to relay to; `release` it afterwards. `deadline_s` is on the event loop's clock.

        Raises:
            GivenUpError: no replica will start.
            FullError: the queue is full.
            TimeoutError: the deadline has passed.

        """
        loop = asyncio.get_running_loop()
        if not self.waiting:
            ready = self._choose()
            if ready is not None:
                return self._take(ready)
        if self._hopeless:
            raise GivenUpError
        if self.waiting >= self.service.limit:
            raise FullError
        place: asyncio.Future[Endpoint] = loop.create_future()
        self._line.append(place)
        if self._watch is None:
            self._watch = loop.create_task(self._assign_all())
        self.waiting += 1
        try:
            async with asyncio.timeout_at(deadline_s):
                return await place
        except (TimeoutError, asyncio.CancelledError):
            if place.done() and not place.cancelled():
                self.release(place.result())  # it was assigned just as this request gave up
            place.cancel()
            raise
        finally:
            self.waiting -= 1

    def release(self, endpoint: Endpoint) -> None:
        """Note that a request at this replica has ended."""
        self.relaying[endpoint.name] -= 1
        if not self.relaying[endpoint.name]:
            del self.relaying[endpoint.name]
        self.hand_out()

    def avoid(self, endpoint: Endpoint) -> None:
        """Skip a replica that refused a connection, for `AVOID_S`."""
        self._avoided[endpoint.name] = asyncio.get_running_loop().time() + AVOID_S

    @property
    def _hopeless(self) -> bool:
        return self.starts.given_up and not self._ready()

    async def _assign_all(self) -> None:
        """Poll for free replicas while any request waits."""
        loop = asyncio.get_running_loop()
        self.cold_starts += 1
        announced_s = float("-inf")
        try:
            while self.waiting:
                if loop.time() >= announced_s + ANNOUNCE_S:
                    self._announce(self.waiting)
                    announced_s = loop.time()
                self.hand_out()
                await asyncio.sleep(LOOK_S)
        finally:
            self._watch = None

    def hand_out(self) -> None:
        """Assign free replicas to waiting requests in order of arrival."""
        while self._line:
            if self._line[0].done():
                self._line.popleft()
                continue
            ready = self._choose()
            if ready is None:
                return
            self._line.popleft().set_result(self._take(ready))

    def _choose(self) -> Endpoint | None:
        """The replica with free capacity that has the fewest requests from here; None if there is none."""
        now_s = asyncio.get_running_loop().time()
        free = [
            endpoint
            for endpoint in self._ready()
            if self.relaying[endpoint.name] < endpoint.concurrency and self._avoided.get(endpoint.name, 0.0) <= now_s
        ]
        return min(free, key=lambda endpoint: self.relaying[endpoint.name], default=None)

    def _take(self, endpoint: Endpoint) -> Endpoint:
        self.relaying[endpoint.name] += 1
        return endpoint
