"""The simulator's continuous batching beside a server whose steps grow with its batch.

The bundled model server answers requests of random lengths that come at random times; the same requests, at the times
at which they were sent, are simulated. Compared are latencies: the mean of both, and how far each request is off.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import numpy as np

from inference_gateway.model import Capacity
from inference_gateway.scaling.rules import Bounds, build
from simulation.requests.engine import Batching, simulate
from simulation.requests.settings import RequestSettings, StepTime, Work
from slurm_plugin.devcluster.machine import reserved

_STEP = StepTime(base_ms=20.0, request_ms=4.0, prompt_ms=0.0)
_RATE = 1.2
_START_S = 30.0


def measure(_directory: Path, seconds: int) -> dict[str, float]:
    """Mean latencies of both and the relative errors of each request's, over `seconds` times 10 s of arrivals."""
    draw = random.Random(1)  # noqa: S311  no secret
    arrival_s = [0.0]
    while arrival_s[-1] < 10.0 * seconds:
        arrival_s.append(arrival_s[-1] + draw.expovariate(_RATE))
    tokens = [max(2, round(60 * float(np.exp(draw.gauss(0.0, 0.8))))) for _ in arrival_s]
    with reserved(1) as (port,):
        argv = [sys.executable, "-m", "inference_gateway.model_server", f"--port={port}"]
        server = subprocess.Popen([*argv, f"--token-ms={_STEP.base_ms}", f"--request-ms={_STEP.request_ms}"])
        try:
            sent_s, latency_s = asyncio.run(_load(f"http://127.0.0.1:{port}", arrival_s, tokens))
        finally:
            server.terminate()
            server.wait()
    order = np.argsort(sent_s)
    work = [Work(0.0, tokens[at] - 1) for at in order]
    how = RequestSettings(concurrency=10_000, queue_target_s=0.0, bounds=Bounds(1, 1, 1))
    rule = build("target", {}, Capacity(1.0, 10_000, 60.0))
    found = simulate(list(sent_s[order]), [1.0] * len(order), rule, how, batching=Batching(_STEP, work))
    real, simulated = latency_s[order], np.asarray(found.latency_s)
    off = np.abs(simulated / real - 1.0)
    alone = np.array([(tokens[at] - 1) * _STEP.seconds(1, 0.0) for at in order])
    return {
        "batching_requests": float(real.size),
        "batching_real_mean_s": float(real.mean()),
        "batching_simulated_mean_s": float(simulated.mean()),
        "batching_unbatched_mean_s": float(alone.mean()),
        "batching_median_error": float(np.median(off)),
        "batching_p95_error": float(np.percentile(off, 95)),
    }


async def _load(url: str, arrival_s: list[float], tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """When each request was sent, from the first on, and how long it took."""
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        await _ready(session)
        began_s = time.monotonic()

        async def one(at_s: float, count: int) -> tuple[float, float]:
            await asyncio.sleep(began_s + at_s - time.monotonic())
            sent_s = time.monotonic()
            async with session.post("/v1/chat/completions", json={"max_tokens": count}) as answer:
                await answer.read()
                answer.raise_for_status()
            return sent_s - began_s, time.monotonic() - sent_s

        found = await asyncio.gather(*(one(at, count) for at, count in zip(arrival_s, tokens, strict=True)))
    sent_s, latency_s = np.array(found).T
    return sent_s, latency_s


async def _ready(session: aiohttp.ClientSession) -> None:
    """Wait for the server. Raises `TimeoutError`."""
    async with asyncio.timeout(_START_S):
        while True:
            with suppress(aiohttp.ClientConnectionError):
                async with session.get("/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
