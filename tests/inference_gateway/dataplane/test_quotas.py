"""When a key that has used up its requests per minute is told to come again: HAProxy admits the request then."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from lupa.lua53 import LuaRuntime

from inference_gateway.dataplane.plane import QUOTAS
from inference_gateway.dataplane.settings import ApiKey, ServiceSettings, digest_of
from tests.inference_gateway.rig import Replica, gateway

MINUTE_MS = 60_000
KEY = {"authorization": "Bearer the-key"}


@dataclass(slots=True)
class Rate:
    """A key's rate over the last minute as HAProxy counts it (`freq_ctr.c`), beside what the Lua script keeps."""

    limit: int
    lua: Any = field(default_factory=lambda: LuaRuntime().execute(QUOTAS.read_text(encoding="utf-8")))
    begins_ms: int | None = None
    current: int = 0
    before: int = 0
    admitted: int = 0
    minute: Any = None

    def used_up(self, now_ms: int) -> bool:
        if self.begins_ms is None:
            return False
        left_ms, before, current = self.begins_ms + MINUTE_MS - now_ms, self.before, self.current
        if left_ms < 0:
            left_ms += MINUTE_MS
            before, current = (current, 0) if left_ms >= 0 else (0, 0)
        return before * left_ms // MINUTE_MS + current >= self.limit

    def ask(self, now_ms: int) -> int:
        """The told wait in seconds; 0 if the request is admitted."""
        if self.used_up(now_ms):
            told: int = self.lua["wait_s"](self.minute, now_ms, self.admitted, self.limit)
            return told
        self.minute = self.lua["minute_of"](self.minute, now_ms, self.admitted)
        if self.begins_ms is None or now_ms - self.begins_ms >= 2 * MINUTE_MS:
            self.begins_ms, self.current, self.before = now_ms, 0, 0
        elif now_ms - self.begins_ms >= MINUTE_MS:
            self.begins_ms, self.current, self.before = self.begins_ms + MINUTE_MS, 0, self.current
        self.current += 1
        self.admitted += 1
        return 0


@settings(max_examples=300)
@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 70_000), st.integers(1, 50)), min_size=1, max_size=12))
@example(30, [(0, 31)])
@example(30, [(0, 5), (60_500, 50)])
@example(30, [(0, 30), (60_500, 50), (31_000, 50)])
def test_who_comes_at_the_told_time_is_admitted(limit: int, bursts: list[tuple[int, int]]) -> None:
    rate, now_ms = Rate(limit), 1_800_000_000_000
    for after_ms, count in bursts:
        now_ms += after_ms
        told_s = [rate.ask(now_ms) for _ in range(count)][-1]
        assert told_s <= 61
        assert told_s == 0 or not rate.used_up(now_ms + 1000 * told_s)


def test_one_who_comes_again_and_again_is_not_told_more_than_needed() -> None:
    """In the second minute, after a burst in the first, a request is admitted every two seconds."""
    rate, now_ms = Rate(30), 1_800_000_000_000
    told_s = [rate.ask(now_ms) for _ in range(31)][-1]
    assert told_s == 61, "nothing of the minute is over"
    for _ in range(29):
        now_ms += 1000 * told_s
        assert rate.ask(now_ms) == 0
        told_s = rate.ask(now_ms)
        assert told_s in {2, 3}


def test_a_burst_is_told_when_the_next_request_is_admitted(directory: Path, servers: list[Replica]) -> None:
    key = ApiKey("limited", digest_of("the-key"), requests_per_minute=30)
    with gateway(directory, ServiceSettings("a"), keys=(key,)) as rig, ThreadPoolExecutor(8) as pool:
        rig.add("a", servers[0].endpoint)
        begun_s = time.monotonic()
        refused = [one for one in pool.map(lambda _: rig.complete("a", **KEY), range(32)) if one.status == 429]
        told_s = [int(one.headers["retry-after"]) for one in refused]
        assert len(told_s) == 2
        assert 60 - (time.monotonic() - begun_s) <= min(told_s) <= max(told_s) <= 61
        # HAProxy's clock falls behind where the machine stalls, so the client tries again, as OpenAI's does.
        answers = [refused[-1]]
        while answers[-1].status == 429 and len(answers) < 4:
            time.sleep(int(answers[-1].headers["retry-after"]))
            answers.append(rig.complete("a", **KEY))
        assert answers[-1].status == 200
