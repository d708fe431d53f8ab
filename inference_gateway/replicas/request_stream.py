"""The requests on one connection from the gateway, each passed on with the key of the server behind.

HTTP/1.1 as HAProxy writes it (RFC 9112): heads are changed, bodies are copied. HAProxy has refused what is ambiguous,
and nobody else gets here. Standard library only: this runs in jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

LONGEST_HEAD = 1 << 20
PART = 1 << 16
_REPLACED = frozenset({b"authorization", b"http2-settings"})
_OF_THE_GATEWAY = b"x-gateway-"
"""Headers between the gateway's own parts; a client's are no server's business either."""


class MalformedError(Exception):
    """These bytes are no request."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first part of a request: its bytes with the key, and what follows it."""

    text: bytes
    length: int
    chunked: bool
    websocket: bool
    expects: bool


def head_with_key(received: bytes, key: str) -> Head:
    """The head as the server gets it: with its key instead of any other, and upgraded to nothing but a WebSocket.

    After an upgrade the paths that a client asks for would be seen by nobody. Raises `MalformedError`.
    """
    start, *lines = received.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields = [(line.partition(b":")[0].strip().lower(), line.partition(b":")[2].strip(), line) for line in lines]
    websocket = any(name == b"upgrade" and value.lower() == b"websocket" for name, value, _ in fields)
    dropped = _REPLACED if websocket else _REPLACED | {b"upgrade"}
    kept = [line for name, _, line in fields if name not in dropped and not name.startswith(_OF_THE_GATEWAY)]
    lengths = {value for name, value, _ in fields if name == b"content-length"}
    chunked = any(name == b"transfer-encoding" and value.lower() == b"chunked" for name, value, _ in fields)
    if len(lengths) > 1 or not all(value.isdigit() for value in lengths) or (chunked and lengths):
        raise MalformedError("the length of a request's body is not clear")
    text = b"\r\n".join([start, *kept, b"authorization: Bearer " + key.encode("ascii"), b"", b""])
    expects = any(name == b"expect" for name, _, _ in fields)
    return Head(text, int(next(iter(lengths), b"0")), chunked, websocket, expects)


async def pass_on(
    requests: asyncio.StreamReader,
    server: asyncio.StreamWriter,
    key: str,
    next_status: Callable[[], asyncio.Future[int]],
) -> None:
    """Pass on all requests until the gateway closes the connection.

    `next_status` is asked before a request is passed on, for the status of its answer.

    Raises:
        MalformedError: what came is no request.
        ConnectionError: an end has gone.

    """
    while True:
        try:
            received = await requests.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise ConnectionResetError("the gateway has gone within a request") from error
            return
        except asyncio.LimitOverrunError as error:
            raise MalformedError(f"a head of more than {LONGEST_HEAD} bytes") from error
        head = head_with_key(received, key)
        status = next_status() if head.websocket else None
        try:
            if head.chunked:
                server.write(head.text)
                await _copy_chunks(requests, server)
            elif head.expects:  # its body comes when the server has asked for it
                server.write(head.text)
                await _copy(requests, server, head.length)
            else:
                # In one packet where it fits: a server that answers a head at once would not wait for the body.
                first = await requests.read(min(head.length, PART)) if head.length else b""
                server.write(head.text + first)
                await _copy(requests, server, head.length - len(first))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionResetError("the gateway has gone within a body") from error
        await server.drain()
        if status is not None and await status == HTTPStatus.SWITCHING_PROTOCOLS:
            await copy_all(requests, server)
            return


async def copy_all(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copy bytes as they come, until the source ends. Raises `ConnectionError`."""
    while part := await source.read(PART):
        sink.write(part)
        await sink.drain()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, length: int) -> None:
    while length:
        part = await source.read(min(length, PART))
        if not part:
            raise asyncio.IncompleteReadError(part, length)
        sink.write(part)
        await sink.drain()
        length -= len(part)


async def _copy_chunks(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while True:
        line = await source.readuntil(b"\r\n")
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError as error:
            raise MalformedError(f"not the size of a chunk: {line[:20]!r}") from error
        sink.write(line)
        if size == 0:
            break
        await _copy(source, sink, size + 2)
    while line != b"\r\n":  # trailers
        line = await source.readuntil(b"\r\n")
        sink.write(line)
