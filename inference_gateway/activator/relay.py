"""One request to a replica and its answer back, byte by byte as they come."""

from __future__ import annotations

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from inference_gateway.model import Endpoint

_CONNECT_S = 3.0
# RFC 9110, section 7.6.1, and what is between HAProxy and the activator alone.
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect")
)


class UnreachableError(Exception):
    """The replica did not take the connection: it has seen nothing of the request."""


class BrokenError(Exception):
    """The replica took the request and gave no whole answer head."""


def client() -> aiohttp.ClientSession:
    """A client for `relay`. It must be made within a running loop and closed."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),  # a kept connection may close as a POST is sent
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
    )


async def relay(
    session: aiohttp.ClientSession, request: web.Request, endpoint: Endpoint, response_timeout_s: float
) -> web.StreamResponse:
    """Send the request to the replica and its answer to the client.

    Cancelling it (the client has gone) ends the replica's request. An answer that breaks off in the middle is broken
    off for the client too.

    Raises:
        UnreachableError: nothing was sent.
        BrokenError: the replica broke off or took longer than `response_timeout_s` before its first byte.

    """
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    url = URL(f"http://{host}:{endpoint.port}{request.raw_path}", encoded=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=response_timeout_s)
    body = request.content if request.can_read_body else None
    try:
        async with session.request(
            request.method,
            url,
            headers=_passed_on(request.headers),
            skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
            data=body,
            allow_redirects=False,
            timeout=timeout,
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
