"""Requests whose `model` HAProxy did not find: the whole body is read, and HAProxy is asked again, by service.

HAProxy searches the part of a body that fits its buffer, and gives up on JSON nested 20 levels deep. The second request
goes to a Unix socket of HAProxy, so queues, limits, retries and the access log are the same as for all others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp
import msgspec
from aiohttp import StreamReader, web

from inference_gateway.activator.relay import BrokenError, Onward, UnreachableError, problem, relay

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


LIMIT = "x-gateway-body-limit"
"""Marks these requests: the most bytes that a body may have. HAProxy sets it."""
SERVICE = "x-gateway-service"

_BUDGET_BYTES = 512 << 20
_RETRY_AFTER = {"Retry-After": "5"}
_LOG = logging.getLogger("explsched.gateway.activator")


@dataclass(slots=True)
class BodyRouter:
    """`service_of` gives the service of a model, None if there is none; `haproxy` is a client to HAProxy's socket."""

    haproxy: aiohttp.ClientSession
    service_of: Callable[[str], str | None]
    bodies: Bodies = field(default_factory=lambda: Bodies(_BUDGET_BYTES))

    async def ask(self, request: web.Request) -> web.StreamResponse:
        """The answer of the service's replica, or what is wrong with the body."""
        limit_bytes = int(request.headers[LIMIT])
        with self.bodies.body() as body:
            try:
                await body.receive(request.content, limit_bytes)
            except TooLargeError:
                return problem(413, f"the body is larger than {limit_bytes >> 20} MiB")
            except NoRoomError:
                return problem(503, "too many long bodies are on their way", _RETRY_AFTER)
            except TimeoutError:
                return problem(408, "the request did not arrive in time")
            model = body.model()
            if model is None:
                return problem(400, "the body is no JSON object with a text `model`")
            service = self.service_of(model)
            if service is None:
                return problem(404, "no such model: GET /v1/models lists the models")
            headers = {SERVICE: service, "content-length": str(len(body.content))}
            try:
                return await relay(self.haproxy, request, Onward("http://haproxy", body.parts(), headers=headers))
            except UnreachableError as error:
                _LOG.warning("HAProxy does not take a long body: %s", error)
                return problem(503, "the gateway is busy", _RETRY_AFTER)
            except BrokenError as error:
                _LOG.warning("HAProxy broke off on a long body: %s", error)
                return problem(502, "the replica broke off or gave no valid answer")
