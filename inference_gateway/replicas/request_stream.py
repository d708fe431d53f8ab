"""Requests on one connection from the gateway, passed on to the model server with the server's key.

HTTP/1.1 as HAProxy writes it (RFC 9112): heads are changed, bodies copied. HAProxy has refused ambiguous requests.
Standard library only: this runs in jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from inference_gateway.replicas.reports import BodyReader
from inference_gateway.slow_bodies import BodyClock

LONGEST_HEAD = 1 << 20
PART = 1 << 16
_REPLACED = frozenset({b"authorization", b"http2-settings", b"accept-encoding"})
"""Not as the client says: tokens are read from answers, which is why a server must not compress them."""
_SERVICE_AND_KEY = b"x-gateway-service"
_OF_THE_GATEWAY = b"x-gateway-"
"""Prefix of headers between the gateway's own parts, which the server does not get."""


class MalformedError(Exception):
    """These bytes are not a valid request."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request, with the server's key, and how its body is framed.

    `client` is the name of the client's key; None for requests of the gateway itself, such as health checks.
    """

    text: bytes
    client: str | None
    length: int
    chunked: bool
    websocket: bool
    expects: bool


def head_with_key(received: bytes, key: str) -> Head:
    """The head as the server gets it: with the server's key, and without compression or any upgrade but to a WebSocket.

    After another upgrade (HTTP/2) the gateway could not check the paths of requests. Raises `MalformedError`.
    """
    start, *lines = received.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields = [(line.partition(b":")[0].strip().lower(), line.partition(b":")[2].strip(), line) for line in lines]
    websocket = {value.lower() for name, value, _ in fields if name == b"upgrade"} == {b"websocket"}
    dropped = _REPLACED if websocket else _REPLACED | {b"upgrade"}
    kept = [line for name, _, line in fields if name not in dropped and not name.startswith(_OF_THE_GATEWAY)]
    lengths = {value for name, value, _ in fields if name == b"content-length"}
    chunked = any(name == b"transfer-encoding" and value.lower() == b"chunked" for name, value, _ in fields)
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths) or (chunked and lengths):
        raise MalformedError("the length of a request's body is not clear")
    text = b"\r\n".join([start, *kept, b"authorization: Bearer " + key.encode("ascii"), b"", b""])
    expects = any(name == b"expect" for name, _, _ in fields)
    marks = [value.decode("latin-1") for name, value, _ in fields if name == _SERVICE_AND_KEY]
    client = marks[0].partition("/")[2] if marks else None
    return Head(text, client, int(next(iter(lengths), b"0")), chunked, websocket, expects)


async def pass_on(
    requests: asyncio.StreamReader,
    reach: Callable[[], Awaitable[asyncio.StreamWriter]],
    key: str,
    next_status: Callable[[], asyncio.Future[int]],
    begin: Callable[[str | None], None],
    sent: Callable[[BodyReader], None],
) -> None:
    """Forward all requests until the gateway closes the connection.

    `reach` returns the server's connection for each request. `begin` is called with the client's key before a request
    is forwarded, `next_status` before one that upgrades, for the status of its answer, and `sent` after its last byte.

    Raises:
        MalformedError: the bytes are not a valid request.
        ConnectionError: one end has disconnected.
        SlowBodyError: a body arrived too slowly.

    """
    while True:
        try:
            received = await requests.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ConnectionResetError("the gateway disconnected within a request") from error
            return
        except asyncio.LimitOverrunError as error:
            raise MalformedError(f"a head of more than {LONGEST_HEAD} bytes") from error
        head = head_with_key(received, key)
        server = await reach()
        begin(head.client)
        status = next_status() if head.websocket else None
        body, clock = BodyReader(), BodyClock()
        try:
            if head.chunked:
                server.write(head.text)
                await _copy_chunks(requests, server, body, clock)
            elif head.expects:  # the body follows once the server has asked for it (100 Continue)
                server.write(head.text)
                await _copy(requests, server, head.length, body, clock)
            else:
                # Head and body in one packet where they fit: some servers answer a head without waiting for the body.
                # The gateway has the beginning of a body before it sends the head, so this needs no clock (5 us).
                first = await requests.read(min(head.length, PART)) if head.length else b""
                body.read(first)
                server.write(head.text + first)
                await _copy(requests, server, head.length - len(first), body, clock)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionResetError("the gateway disconnected within a body") from error
        await server.drain()
        sent(body)
        if status is not None and await status == HTTPStatus.SWITCHING_PROTOCOLS:
            await _copy_all(requests, server)
            return


async def _copy_all(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy bytes as they arrive, until the source ends. Raises `ConnectionError`."""
    while part := await source.read(PART):
        sink.write(part)
        await sink.drain()


async def _copy(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int, body: BodyReader, clock: BodyClock
) -> None:
    while length:
        part = await clock.read(source.read(min(length, PART)))
        if not part:
            raise asyncio.IncompleteReadError(part, length)
        body.read(part)
        sink.write(part)
        await sink.drain()
        length -= len(part)


async def _copy_chunks(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, body: BodyReader, clock: BodyClock
) -> None:
    while True:
        line = await clock.read(source.readuntil(b"\r\n"))
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError as error:
            raise MalformedError(f"not the size of a chunk: {line[:20]!r}") from error
        sink.write(line)
        if size == 0:
            break
        await _copy(source, sink, size + 2, body, clock)
    while line != b"\r\n":  # trailers
        line = await clock.read(source.readuntil(b"\r\n"))
        sink.write(line)
