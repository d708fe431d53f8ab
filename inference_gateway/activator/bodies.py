"""Whole request bodies in memory, and the `model` in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from aiohttp import StreamReader

_PART_S = 60.0
_PART_BYTES = 256 * 1024


class TooLargeError(Exception):
    """The body has more bytes than it may."""


class NoRoomError(Exception):
    """All bodies together would hold more than they may."""


class _Named(msgspec.Struct):
    model: str


@dataclass(slots=True)
class Bodies:
    """The bodies that are here now; together they hold `held_bytes`, never more than `budget_bytes`."""

    budget_bytes: int
    held_bytes: int = 0

    @contextmanager
    def body(self) -> Iterator[Body]:
        """An empty one; what it holds is given back at the end."""
        body = Body(self)
        try:
            yield body
        finally:
            body.forget()


@dataclass(slots=True)
class Body:
    """One body: `receive` it, look for its `model`, send its `parts`."""

    bodies: Bodies
    content: bytearray = field(default_factory=bytearray)

    async def receive(self, source: StreamReader, limit_bytes: int) -> None:
        """Take all there is.

        Raises:
            TooLargeError: it is longer than `limit_bytes`.
            NoRoomError: there are too many others.
            TimeoutError: nothing came for a minute.

        """
        while True:
            async with asyncio.timeout(_PART_S):
                part = await source.readany()
            if not part:
                return
            if len(self.content) + len(part) > limit_bytes:
                raise TooLargeError
            if self.bodies.held_bytes + len(part) > self.bodies.budget_bytes:
                raise NoRoomError
            self.bodies.held_bytes += len(part)
            self.content += part

    def model(self) -> str | None:
        """The text `model` of a JSON object; None if this is none or has none."""
        try:
            return msgspec.json.decode(self.content, type=_Named).model
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    async def parts(self) -> AsyncIterator[bytes]:
        """All of it, once; it is forgotten when the last part has been taken."""
        for start in range(0, len(self.content), _PART_BYTES):
            yield bytes(self.content[start : start + _PART_BYTES])
        self.forget()

    def forget(self) -> None:
        """Give its memory back."""
        self.bodies.held_bytes -= len(self.content)
        self.content = bytearray()
