"""How long a body may take to arrive, wherever it is passed on while it does: it takes a replica's place meanwhile.

Standard library only: this runs in jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

GRACE_S = 60.0
_LEAST_BYTES_PER_S = 128 << 10


class SlowBodyError(Exception):
    """The body arrived too slowly."""


class BodyClock:
    """The time of one body: `GRACE_S`, and as long again as what has come takes at 128 KiB/s.

    Only waits for its sender count, not those for a reader who is slow to take it.
    """

    def __init__(self) -> None:
        self._left_s = GRACE_S

    async def read(self, part: Awaitable[bytes]) -> bytes:
        """The body's next part. Raises `SlowBodyError`, and what reading it raises."""
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        try:
            async with asyncio.timeout(self._left_s) as limit:
                found = await part
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise SlowBodyError("the body arrived too slowly") from error
        self._left_s += len(found) / _LEAST_BYTES_PER_S - (clock() - begun_s)
        return found
