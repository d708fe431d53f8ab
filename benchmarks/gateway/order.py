"""Who is late when more comes than the replicas take: a real gateway beside the simulator, in turn and first come.

A tenth more than two replicas answer, at random times and of random lengths; the same requests at the same moments go
to two services of one gateway, one with `queue_target_s` and one without, each with replicas of its own. Late is who
waits longer than the target until a replica takes it. The simulator replays the very same.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from benchmarks.gateway.upstream import free_port
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, ServiceSettings, digest_of
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.model import Capacity, Decision, Endpoint, Observation
from simulation.requests.engine import simulate
from simulation.requests.settings import RequestSettings

_KEY = "key"
_TOKEN_S = 0.02
_TOKENS = (5, 45)  # at least and at most; any number in between is as likely
_MEAN_S = _TOKEN_S * sum(_TOKENS) / 2
_REPLICAS = 2
_CONCURRENCY = 8
_PER_S = _CONCURRENCY / _MEAN_S  # of one replica
_LOAD = 1.1
_TARGET_S = 2.0
_DEADLINE_S = 30.0
_TARGETS_S = {"in-turn": _TARGET_S, "fifo": 0.0}


class _Fixed:
    """No scaling."""

    name = "fixed"

    def decide(self, seen: Observation) -> Decision:
        """What there is."""
        return Decision(seen.ready, "fixed")

    def calibrate(self, capacity: Capacity) -> None:
        """Of no importance here."""


def measure(directory: Path, rounds: int, seconds: int) -> dict[str, float]:
    """Shares of late and of refused requests, and HAProxy's share of a core; a load of `rounds` x `seconds`."""
    draw = random.Random(1)  # noqa: S311  no secret
    tokens: list[int] = []
    arrival_s: list[float] = []
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(_LOAD * _REPLICAS * _PER_S)) < rounds * seconds:
        arrival_s.append(at_s)
        tokens.append(draw.randint(*_TOKENS))
    figures: dict[str, float] = {}
    for name, waits in _live(directory, arrival_s, tokens, figures).items():
        label = name.replace("-", "_")
        figures[f"order_late_share_{label}"] = _late(waits)
        figures[f"order_refused_share_{label}"] = sum(wait is None for wait in waits) / len(waits)
        settings = RequestSettings(
            _CONCURRENCY, deadline_s=_DEADLINE_S, queue_target_s=_TARGETS_S[name], initial=_REPLICAS
        )
        simulated = simulate(arrival_s, [_TOKEN_S * count for count in tokens], _Fixed(), settings)
        figures[f"order_late_share_{label}_simulated"] = _late(simulated.wait_s)
    return figures


def _late(waits_s: Sequence[float | None]) -> float:
    return sum(wait is None or wait > _TARGET_S for wait in waits_s) / len(waits_s)


def _live(
    directory: Path, arrival_s: Sequence[float], tokens: Sequence[int], figures: dict[str, float]
) -> dict[str, list[float | None]]:
    services = tuple(
        ServiceSettings(
            name,
            queue_deadline_s=_DEADLINE_S,
            queue_target_s=target_s,
            requests_per_s=_PER_S,
            concurrency=_CONCURRENCY,
        )
        for name, target_s in _TARGETS_S.items()
    )
    with ExitStack() as stack:
        port, *backs = (stack.enter_context(free_port()) for _ in range(1 + len(services)))
        for back in backs:
            argv = [sys.executable, "-m", "inference_gateway.model_server", f"--port={back}"]
            server = subprocess.Popen([*argv, f"--token-ms={1000 * _TOKEN_S}"])
            stack.callback(server.wait)
            stack.callback(server.kill)
        plane = HaproxyDataPlane(
            GatewaySettings(directory, port, services=services, keys=(ApiKey("a", digest_of(_KEY)),))
        )
        stack.callback(plane.stop, grace_s=0)
        plane.start()
        time.sleep(2)
        for service, back in zip(services, backs, strict=True):
            for replica in range(_REPLICAS):
                plane.add(service.name, Endpoint(f"r{replica}", "127.0.0.1", back, _CONCURRENCY))
        schedstat = Path(f"/proc/{HaproxyStatistics(plane.files).workers().current}/schedstat")
        before_s, began_s = int(schedstat.read_text().split()[0]) / 1e9, time.monotonic()
        found = asyncio.run(_load(port, arrival_s, tokens))
        used_s = int(schedstat.read_text().split()[0]) / 1e9 - before_s
        figures["order_haproxy_cpu_share"] = used_s / (time.monotonic() - began_s)
        return found


async def _load(port: int, arrival_s: Sequence[float], tokens: Sequence[int]) -> dict[str, list[float | None]]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        begin_s = time.monotonic() + 0.5
        url = f"http://127.0.0.1:{port}/v1/chat/completions"

        async def ask(service: str, at_s: float, count: int) -> float | None:
            await asyncio.sleep(max(0.0, begin_s + at_s - time.monotonic()))
            sent_s = time.monotonic()
            body = {"model": service, "max_tokens": 1 + count}  # the first one takes no time
            async with session.post(url, json=body, headers={"authorization": f"Bearer {_KEY}"}) as answer:
                await answer.read()
                return time.monotonic() - sent_s - _TOKEN_S * count if answer.status == 200 else None

        requests = list(zip(arrival_s, tokens, strict=True))
        return {
            name: list(found)
            for name, found in zip(
                _TARGETS_S,
                await asyncio.gather(
                    *(asyncio.gather(*(ask(name, at_s, count) for at_s, count in requests)) for name in _TARGETS_S)
                ),
                strict=True,
            )
        }
