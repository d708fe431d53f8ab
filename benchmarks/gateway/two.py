"""Two gateways for the same services: what clients of each see while the HAProxy of one is killed again and again.

Real gateways with replica jobs on a private Slurm cluster. New connections are made to both at a steady rate; whoever
is refused asks no second time. Needs root and the Slurm packages; run it from the repository's root.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from slurm_plugin import devcluster
from slurm_plugin.devcluster.machine import reserved, until
from testkit.gateway import in_foreground, second

_KILLS = 10
_PER_S = 50.0
_BETWEEN_S = 5.0
_PATIENCE_S = 180.0


@dataclass
class _Clients:
    """Requests to one gateway, each on a new connection. `refused_s` are the times at which nobody took one."""

    url: str
    asked: int = 0
    good: int = 0
    refused_s: list[float] = field(default_factory=list)
    cut_s: list[float] = field(default_factory=list)
    ending: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield
        finally:
            self.ending.set()
            thread.join()

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            tasks: list[asyncio.Task[None]] = []
            while not self.ending.is_set():
                tasks.append(asyncio.create_task(self._one(session)))
                await asyncio.sleep(1 / _PER_S)
            await asyncio.gather(*tasks)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        body = {"model": "tiny", "max_tokens": 2}
        at_s = time.monotonic()
        self.asked += 1
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                await answer.read()
                self.good += answer.ok
        except aiohttp.ClientConnectorError:
            self.refused_s.append(at_s)
        except (aiohttp.ClientError, TimeoutError):
            self.cut_s.append(at_s)


def measure(directory: Path) -> dict[str, float]:
    """Kill one of two so many times. `directory` has a short path."""
    directory.mkdir()
    for path in (directory, directory.parent):
        path.chmod(0o755)
    cluster = devcluster.up(devcluster.ClusterSpec(nodes=2, gpus_per_node=0, shards_per_node=0), directory / "c")
    place = directory / "g"
    place.mkdir()
    load = {"concurrency": 32, "requests_per_s": 200}
    try:
        with (
            reserved(2) as (port, other_port),
            in_foreground(cluster.env(), place, port, {}, {"min": 2}, other_port, **load) as kept,
        ):
            killed = second(kept)
            until(lambda: kept.serving() == 2, "both replicas serve", _PATIENCE_S)
            own, other = _Clients(killed.url), _Clients(kept.url)
            kills_s: list[float] = []
            with own.asking(), other.asking():
                time.sleep(_BETWEEN_S)
                for _ in range(_KILLS):
                    kills_s.append(time.monotonic())
                    os.kill(killed.haproxy(), signal.SIGKILL)
                    time.sleep(_BETWEEN_S)
            submitted = len(kept.events("submitted"))
    finally:
        devcluster.down(directory / "c")
    gaps_s = [
        max([at_s - kill_s for at_s in own.refused_s if 0 <= at_s - kill_s < _BETWEEN_S], default=0.0)
        for kill_s in kills_s
    ]
    return {
        "two_kills": float(len(kills_s)),
        "two_refused_longest_s": round(max(gaps_s), 3),
        "two_refused_median_s": round(sorted(gaps_s)[len(gaps_s) // 2], 3),
        "two_own_requests": float(own.asked),
        "two_own_refused": float(len(own.refused_s)),
        "two_own_cut": float(len(own.cut_s)),
        "two_other_requests": float(other.asked),
        "two_other_good": float(other.good),
        "two_other_refused": float(len(other.refused_s)),
        "two_other_cut": float(len(other.cut_s)),
        "two_replicas_submitted": float(submitted),
    }
