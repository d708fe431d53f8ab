"""A key with one thread beside a key with 120: how long its requests take, and how long alone.

Two replicas of eight requests each answer in half a second; 120 threads that ask without a pause fill them seven times
over. The single thread is measured alone, then beside them: `in_turn` is the gateway with the order of
`queue_target_s`, `by_class` the gateway without it, where the priority class of HAProxy's queue is left, and `fifo` an
HAProxy alone, which knows no keys: first in, first out. `ten` is a key with ten threads beside the 120, `batch` the
single thread beside 120 of a batch key.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp

from benchmarks.gateway.upstream import free_port, haproxy
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, ServiceSettings, digest_of
from inference_gateway.model import Endpoint

_TOKEN_S = 0.02
_TOKENS = 25
_REPLICAS, _CONCURRENCY = 2, 8
_THREADS = 120
_TEN = 10
_TARGETS_S = {"in_turn": 2.0, "by_class": 0.0}


def measure(directory: Path, rounds: int, seconds: int) -> dict[str, float]:
    """Milliseconds of the 99th percentiles, their ratios, and the requests behind them; `rounds` x `seconds` each."""
    services = tuple(
        ServiceSettings(
            name.replace("_", "-"),
            queue_target_s=target_s,
            requests_per_s=_CONCURRENCY / (_TOKEN_S * _TOKENS),
            concurrency=_CONCURRENCY,
        )
        for name, target_s in _TARGETS_S.items()
    )
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        port, back, fifo = (stack.enter_context(free_port()) for _ in range(3))
        argv = [sys.executable, "-m", "inference_gateway.model_server", f"--port={back}"]
        server = subprocess.Popen([*argv, f"--token-ms={1000 * _TOKEN_S}"])
        stack.callback(server.wait)
        stack.callback(server.kill)
        keys = tuple(ApiKey(name, digest_of(name)) for name in ("one", "many", "ten"))
        keys += (ApiKey("batch", digest_of("batch"), priority="batch"),)
        plane = HaproxyDataPlane(GatewaySettings(directory, port, services=services, keys=keys))
        stack.callback(plane.stop, grace_s=0)
        plane.start()
        time.sleep(2)
        for service in services:
            for replica in range(_REPLICAS):
                plane.add(service.name, Endpoint(f"r{replica}", "127.0.0.1", back, _CONCURRENCY))
        own = directory / "fifo"
        own.mkdir()
        replicas = range(_REPLICAS)
        servers = "".join(f"  server r{index} 127.0.0.1:{back} maxconn {_CONCURRENCY}\n" for index in replicas)
        frontend = f"frontend f\n  bind 127.0.0.1:{fifo}\n  default_backend b\n"
        stack.enter_context(haproxy(own, "fifo", f"{frontend}backend b\n  balance leastconn\n{servers}"))
        arms = [*((name, port) for name in _TARGETS_S), ("fifo", fifo)]
        for name, address in arms:
            found = asyncio.run(_latencies(address, name.replace("_", "-"), rounds * seconds))
            figures[f"fair_{name}_alone_p99_ms"] = 1000 * _p99(found.alone_s)
            figures[f"fair_{name}_beside_p99_ms"] = 1000 * _p99(found.beside_s)
            figures[f"fair_{name}_ratio"] = _p99(found.beside_s) / _p99(found.alone_s)
            figures[f"fair_{name}_requests"] = float(len(found.beside_s))
            figures[f"fair_{name}_others_per_s"] = found.others_per_s
            figures[f"fair_{name}_ten_p99_ms"] = 1000 * _p99(found.ten_s)
            figures[f"fair_{name}_batch_p99_ms"] = 1000 * _p99(found.beside_batch_s)
            figures[f"fair_{name}_batch_p50_ms"] = 1000 * median(found.beside_batch_s)
    return figures


@dataclass(frozen=True, slots=True)
class _Found:
    """How long requests took: the single thread's alone, beside others and beside a batch key's, and those of ten.

    `others_per_s` is how many of the others' were answered.
    """

    alone_s: list[float]
    beside_s: list[float]
    others_per_s: float
    ten_s: list[float]
    beside_batch_s: list[float]


def _p99(values: list[float]) -> float:
    """The 99th percentile (nearest rank); the largest of fewer than a hundred."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


async def _latencies(port: int, service: str, length_s: float) -> _Found:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(key: str, until_s: float) -> list[float]:
            found: list[float] = []
            while time.monotonic() < until_s:
                sent_s = time.monotonic()
                body = {"model": service, "max_tokens": 1 + _TOKENS}  # the first one takes no time
                async with session.post(url, json=body, headers={"authorization": f"Bearer {key}"}) as answer:
                    await answer.read()
                    found.append(time.monotonic() - sent_s if answer.status == 200 else float("inf"))
            return found

        async def beside(others: str, key: str, threads: int) -> tuple[list[float], float]:
            """What a key's threads take beside the many of another, and how many of those are answered a second."""
            began_s = time.monotonic()
            until_s = began_s + length_s + 2
            many = [asyncio.create_task(ask(others, until_s)) for _ in range(_THREADS)]
            await asyncio.sleep(2)  # they wait for each other by then
            found = await asyncio.gather(*(ask(key, until_s) for _ in range(threads)))
            answered = sum(map(len, await asyncio.gather(*many)))
            return [one for of_thread in found for one in of_thread], answered / (time.monotonic() - began_s)

        alone = await ask("one", time.monotonic() + length_s)
        single, per_s = await beside("many", "one", 1)
        ten, _ = await beside("many", "ten", _TEN)
        beside_batch, _ = await beside("batch", "one", 1)
        return _Found(alone, single, per_s, ten, beside_batch)
