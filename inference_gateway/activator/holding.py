"""Requests of one service that wait for a replica: first come, first served, bounded in number and time."""

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
    """As many requests wait as may."""


class GivenUpError(Exception):
    """No replica will start until a person acts."""


class Waiting:
    """The waiting line of a service and the replicas it leads to.

    `look` gives the replicas that take requests now; `announce` tells the control plane how many wait. A replica gets
    no more requests than its concurrency from here. One that refused a connection is left out for a second.
    """

    def __init__(
        self, service: HeldService, look: Callable[[], Sequence[Endpoint]], announce: Callable[[int], None]
    ) -> None:
        self.service = service
        self.relaying: Counter[str] = Counter()
        self.cold_starts = 0
        self._look = look
        self._announce = announce
        self._line: deque[asyncio.Future[Endpoint]] = deque()
        self._avoided: dict[str, float] = {}
        self._watch: asyncio.Task[None] | None = None
        self.waiting = 0
        self.starts = StartForecast(service.retry_after_s)

    def expect(self, starts: StartForecast) -> None:
        """Take what the control plane expects; those who wait for what will not come leave now."""
        self.starts = starts
        if self._hopeless:
            for place in self._line:
                if not place.done():
                    place.set_exception(GivenUpError())

    def state(self) -> ActivatorState:
        """What it holds now."""
        return ActivatorState(self.waiting, dict(self.relaying))

    async def acquire(self, deadline_s: float) -> Endpoint:
        """A replica to relay to; `release` it afterwards. `deadline_s` is a time of the running loop.

        Raises:
            GivenUpError: no replica will start.
            FullError: as many wait as may.
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
                self.release(place.result())  # it came in the very moment of giving up
            place.cancel()
            raise
        finally:
            self.waiting -= 1

    def release(self, endpoint: Endpoint) -> None:
        """The request at this replica has ended."""
        self.relaying[endpoint.name] -= 1
        if not self.relaying[endpoint.name]:
            del self.relaying[endpoint.name]
        self.hand_out()

    def avoid(self, endpoint: Endpoint) -> None:
        """Leave out a replica that refused the connection, for a while."""
        self._avoided[endpoint.name] = asyncio.get_running_loop().time() + AVOID_S

    @property
    def _hopeless(self) -> bool:
        return self.starts.given_up and not self._look()

    async def _assign_all(self) -> None:
        """Look for replicas while anybody waits."""
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
        """Give the replicas that have room to those who wait, first come, first served."""
        while self._line:
            if self._line[0].done():
                self._line.popleft()
                continue
            ready = self._choose()
            if ready is None:
                return
            self._line.popleft().set_result(self._take(ready))

    def _choose(self) -> Endpoint | None:
        """The replica with the fewest requests from here that has room."""
        now_s = asyncio.get_running_loop().time()
        open_to_us = [
            endpoint
            for endpoint in self._look()
            if self.relaying[endpoint.name] < endpoint.concurrency and self._avoided.get(endpoint.name, 0.0) <= now_s
        ]
        return min(open_to_us, key=lambda endpoint: self.relaying[endpoint.name], default=None)

    def _take(self, endpoint: Endpoint) -> Endpoint:
        self.relaying[endpoint.name] += 1
        return endpoint
