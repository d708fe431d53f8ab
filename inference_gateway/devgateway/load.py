"""A client that asks at a steady rate and keeps every failure."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Load:
    """Requests at a steady rate; every failure is kept with its time."""

    url: str
    per_s: float
    tokens: int = 10
    stream: bool = False
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        began_s = time.monotonic()
        body = {"model": "tiny", "max_tokens": self.tokens, "stream": self.stream}
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                text = await answer.text()
                whole = text.rstrip().endswith("[DONE]") if self.stream else True
                self.answers[f"{answer.status}{'' if whole else ' cut'}"] += 1
                if answer.status != 200 or not whole:
                    self.failures.append(f"{time.time():.1f}: {answer.status} {text[:200]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.answers[type(error).__name__] += 1
            self.failures.append(f"{time.time():.1f}: {error!r}")
        self.waits_s.append(time.monotonic() - began_s)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Ask for as long as the block lasts, and wait for the last answer."""
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(150)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            asked: list[asyncio.Task[None]] = []
            while not self._stop.is_set():
                asked.append(asyncio.create_task(self._one(session)))
                await asyncio.sleep(1 / self.per_s)
            await asyncio.gather(*asked)
