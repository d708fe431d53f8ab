"""The proxy one would write in Python: aiohttp on both sides, `model` from the body, least outstanding requests."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web


def main() -> None:
    """`python -m benchmarks.gateway.aiohttp_proxy PORT UPSTREAM_PORT ...`."""
    upstreams = [f"http://127.0.0.1:{port}" for port in sys.argv[2:]]
    outstanding: Counter[str] = Counter()
    sessions: list[aiohttp.ClientSession] = []

    async def serve(request: web.Request) -> web.Response:
        body = await request.read()
        if "model" not in json.loads(body):
            return web.Response(status=404)
        chosen = min(upstreams, key=lambda upstream: outstanding[upstream])
        outstanding[chosen] += 1
        try:
            headers = {"content-type": "application/json"}
            async with sessions[0].post(chosen + request.path, data=body, headers=headers) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
        finally:
            outstanding[chosen] -= 1

    async def client(_: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            sessions.append(session)
            yield

    application = web.Application()
    application.router.add_post("/{path:.*}", serve)
    application.cleanup_ctx.append(client)
    web.run_app(application, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)


if __name__ == "__main__":
    main()
