"""How the tiny model server behaves, well and badly."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the server answers. `fault` is empty or one of `FAULTS`; `unhealthy` is the fault of /health alone."""

    first_token_ms: float = 0.0
    token_ms: float = 0.0
    fault: str = ""
    unhealthy: str = ""


FAULTS = ("", "status-500", "status-503", "garbage", "hang", "close", "close-midway")
"""status-N: that status. garbage: bytes that are no HTTP. hang: no answer. close: the connection ends without an
answer. close-midway: it ends within the answer."""


async def fail(request: web.Request, fault: str) -> web.StreamResponse | None:
    """Answer as `fault` wants it; None if it is empty."""
    if not fault:
        return None
    if fault.startswith("status-"):
        return problem(int(fault.removeprefix("status-")), "a fault was asked for")
    if fault == "hang":
        await asyncio.sleep(3600)
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has gone")
    if fault == "garbage":
        transport.write(b"\x00\xff this is no HTTP\r\n\r\n")
    if fault == "close-midway":
        transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nfirst")
    transport.close()
    return web.Response()


def problem(status: int, message: str) -> web.Response:
    """An error in OpenAI's form."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status)
