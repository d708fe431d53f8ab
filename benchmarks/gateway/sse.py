"""The delay that the gateway adds to a streamed token: 100 streams x 50 tokens/s through it, 25 directly, at once.

At once, so that both meet the same moments of a machine that others use too. Each token carries the time at which the
model server wrote it; server, client and HAProxy share the machine's clock.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles

import aiohttp

from benchmarks.gateway.upstream import free_port
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, ServiceSettings, digest_of
from inference_gateway.model import Endpoint

_STREAMS = 100
_DIRECT = 25
_TOKENS_PER_S = 50
_KEY = "key"


def measure(directory: Path, rounds: int, seconds: int) -> dict[str, float]:
    """Milliseconds from the server's write to the client's read."""
    with free_port() as port, free_port() as back:
        argv = [sys.executable, "-m", "inference_gateway.model_server", f"--port={back}"]
        server = subprocess.Popen([*argv, f"--token-ms={1000 / _TOKENS_PER_S}"])
        services = (ServiceSettings("chat"),)
        plane = HaproxyDataPlane(
            GatewaySettings(directory, port, services=services, keys=(ApiKey("a", digest_of(_KEY)),))
        )
        try:
            plane.start()
            time.sleep(2)
            plane.add("chat", Endpoint("r1", "127.0.0.1", back, 1000))
            through: list[list[float]] = []
            direct: list[list[float]] = []
            for _ in range(rounds):
                ours, theirs = asyncio.run(_delays_ms(port, back, seconds))
                through.append(ours)
                direct.append(theirs)
        finally:
            plane.stop(grace_s=0)
            server.kill()
            server.wait()
    p99 = [(_p99(ours), _p99(theirs)) for ours, theirs in zip(through, direct, strict=True)]
    return {
        "sse_p50_ms_direct": median(median(delays) for delays in direct),
        "sse_p50_ms_gateway": median(median(delays) for delays in through),
        "sse_p99_ms_direct": median(theirs for _, theirs in p99),
        "sse_p99_ms_gateway": median(ours for ours, _ in p99),
        "sse_added_p99_ms": median(ours - theirs for ours, theirs in p99),
    }


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


async def _delays_ms(gateway: int, server: int, seconds: int) -> tuple[list[float], list[float]]:
    through: list[float] = []
    direct: list[float] = []
    tokens = seconds * _TOKENS_PER_S
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(
            *(_stream(session, gateway, tokens, index / _STREAMS, through) for index in range(_STREAMS)),
            *(_stream(session, server, tokens, index / _DIRECT, direct) for index in range(_DIRECT)),
        )
    return through, direct


async def _stream(session: aiohttp.ClientSession, port: int, tokens: int, phase: float, delays: list[float]) -> None:
    """One stream. Streams begin spread over a second, as users do, not all in one moment."""
    await asyncio.sleep(phase)
    body = {"stream": True, "max_tokens": tokens, "model": "chat"}
    headers = {"authorization": f"Bearer {_KEY}"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with session.post(url, json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            now_s = time.monotonic()
            if line.startswith(b"data: {"):
                delays.append((now_s - json.loads(line[6:])["sent_s"]) * 1000)
