"""One request passed on, and its answer back, byte by byte as they come."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL


def problem(status: int, message: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """The answer that tells a client what is wrong."""
    body = {"error": {"message": message, "type": "gateway_error", "code": status}}
    return web.json_response(body, status=status, headers=headers)


_CONNECT_S = 3.0
# RFC 9110, section 7.6.1, and what is between HAProxy and the activator alone.
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect")
)


class UnreachableError(Exception):
    """The other end did not take the connection: it has seen nothing of the request."""


class BrokenError(Exception):
    """The other end took the request and gave no whole answer head."""


@dataclass(frozen=True, slots=True)
class Onward:
    """Where a request goes and what is sent: `origin` is SCHEME://HOST:PORT, `headers` replace those of the request.

    With HTTPS the other end has to prove to be `name`, as the client's context says.
    """

    origin: str
    body: AsyncIterable[bytes] | None
    response_timeout_s: float | None = None
    name: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def client(socket: Path | None = None, context: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
    """A client for `relay`, by TCP or to a Unix socket. It must be made within a running loop and closed.

    `context` is what it asks of a server over HTTPS.
    """
    # A kept connection may close as a POST is sent.
    connector = (
        aiohttp.UnixConnector(str(socket), limit=0, force_close=True)
        if socket
        else aiohttp.TCPConnector(limit=0, force_close=True, ssl=context or True)
    )
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
    )


async def relay(session: aiohttp.ClientSession, request: web.Request, onward: Onward) -> web.StreamResponse:
    """Send the request on and its answer to the client.

    Cancelling it (the client has gone) ends the other request. An answer that breaks off in the middle is broken off
    for the client too.

    Raises:
        UnreachableError: nothing was sent.
        BrokenError: the other end broke off, or was silent for longer than it may before its first byte.

    """
    url = URL(f"{onward.origin}{request.raw_path}", encoded=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=onward.response_timeout_s)
    headers = _passed_on(request.headers)
    headers.update(onward.headers)
    try:
        async with session.request(
            request.method,
            url,
            headers=headers,
            skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
            data=onward.body,
            allow_redirects=False,
            timeout=timeout,
            server_hostname=onward.name,
        ) as answer:
            return await _answer(request, answer)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UnreachableError(str(error)) from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BrokenError(str(error) or type(error).__name__) from error


async def _answer(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_passed_on(answer.headers))
    await response.prepare(request)
    try:
        async for part in answer.content.iter_any():
            await response.write(part)
    except (aiohttp.ClientError, TimeoutError):
        # The status is sent: ending the connection is the only way left to say that this is not all.
        if request.transport is not None:
            request.transport.abort()
        return response
    await response.write_eof()
    return response


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    named = {name.strip().lower() for value in headers.getall("connection", ()) for name in value.split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP_BY_HOP | named)
