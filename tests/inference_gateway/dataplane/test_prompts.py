"""Long prompts go where the least is left to read, in HAProxy as in the simulator; short ones avoid these."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa.lua53 import LuaRuntime

from inference_gateway.dataplane.plane import PROMPTS
from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.queueing import Reading
from tests.inference_gateway.rig import CLIENT_KEY, Replica, Rig, gateway, wait_until

TOKENS_PER_S = 1000.0
LONG = "x" * 40_000
"""Ten seconds to read."""
KEY = {"authorization": f"Bearer {CLIENT_KEY}"}


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(100, 9000)), max_size=60))
def test_lua_chooses_as_the_simulator_does(prompts: list[tuple[int, int]]) -> None:
    """Gaps in ms, and prompts that are never short; a replica is as good as another where both have as much to read."""
    lua = LuaRuntime().execute(PROMPTS.read_text(encoding="utf-8")).new()
    python = Reading(TOKENS_PER_S)
    for number in range(3):
        lua.add(lua, str(number))
    now_ms = 0
    for gap_ms, tokens in prompts:
        now_ms += gap_ms
        chosen = lua.least(lua, now_ms, lambda _name: 1, lambda _name: True)
        left_s = [python.left_s(number, now_ms / 1000) for number in range(3)]
        assert left_s[int(chosen)] == pytest.approx(min(left_s), abs=1e-6)
        assert python.decides(tokens, now_ms / 1000)
        python.take(int(chosen), tokens, now_ms / 1000)
        lua.take(lua, chosen, now_ms, tokens)


def test_lua_leaves_out_the_full_and_the_gone() -> None:
    lua = LuaRuntime().execute(PROMPTS.read_text(encoding="utf-8")).new()
    for name in ("a", "b", "c", "a"):
        lua.add(lua, name)
    places = {"a": 0, "b": 2, "c": 3}
    busy = {"a", "b", "c"}

    def least(now_ms: int) -> object:
        return lua.least(lua, now_ms, places.get, busy.__contains__)

    assert least(0) == "c", "as little to read, and more places"
    lua.take(lua, "c", 0, 100)
    assert least(50) == "b"
    assert least(100) == "c"
    lua.remove(lua, "b")
    lua.remove(lua, "c")
    assert least(100) is None


def test_who_has_no_request_has_nothing_left_to_read() -> None:
    """Its client has left, or it read faster than expected."""
    lua = LuaRuntime().execute(PROMPTS.read_text(encoding="utf-8")).new()
    for name in ("a", "b"):
        lua.add(lua, name)
    places = {"a": 4, "b": 3}
    lua.take(lua, "a", 0, 60_000)
    assert lua.least(lua, 10, places.get, {"a", "b"}.__contains__) == "b"
    assert lua.least(lua, 20, places.get, {"b"}.__contains__) == "a"
    assert lua.least(lua, 30, places.get, {"a", "b"}.__contains__) == "a", "for good"
    reading = Reading(TOKENS_PER_S)
    reading.take(0, 60_000, 0.0)
    reading.idle(0)
    assert reading.left_s(0, 1.0) == 0.0


def test_short_prompts_matter_only_beside_long_ones() -> None:
    reading = Reading(TOKENS_PER_S)
    assert not reading.decides(99, 0.0)
    reading.take(0, 100, 0.0)
    assert reading.decides(1, 0.05)
    assert not reading.decides(1, 0.11)
    assert not Reading(0.0).decides(10**6, 0.0)


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    reads = ServiceSettings("long-prompts", prompt_tokens_per_s=TOKENS_PER_S, concurrency=4)
    measured = ServiceSettings("measured", concurrency=4)
    with gateway(directory, reads, measured, ServiceSettings("plain", prompt_tokens_per_s=0.0, concurrency=4)) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    for server in servers:
        server.behave(token_ms=20.0)
        running.add("long-prompts", server.with_concurrency(4))
    yield running
    running.clear()


def replica_of(rig: Rig, text: str, service: str = "long-prompts") -> str:
    answer = rig.ask("POST", f"/services/{service}/v1/chat/completions", chat(text, service, tokens=1))
    assert answer.status == 200
    return answer.headers["x-replica"]


def chat(text: str, service: str, tokens: int) -> dict[str, object]:
    return {"model": service, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}


def working(servers: list[Replica]) -> list[str]:
    """The replica of each request that has no answer yet."""
    return [server.name for server in servers for _ in range(server.state["in_flight"])]


@contextmanager
def long_prompts(
    rig: Rig, servers: list[Replica], count: int, service: str = "long-prompts", text: str = LONG
) -> Iterator[list[str]]:
    """So many long prompts, one after another, which are answered until the block ends; gives their replicas."""

    def has_arrived(sent: int) -> bool:
        return len(working(servers)) == sent

    with ExitStack() as links:
        for number in range(count):
            link = links.enter_context(closing(http.client.HTTPConnection("127.0.0.1", rig.port, timeout=10.0)))
            body = json.dumps(chat(text, service, 10**6))
            link.request("POST", f"/services/{service}/v1/chat/completions", body, KEY)
            wait_until(partial(has_arrived, number + 1))
        yield working(servers)
    wait_until(lambda: not working(servers))


def test_long_prompts_are_spread_and_short_ones_keep_away(rig: Rig, servers: list[Replica]) -> None:
    with long_prompts(rig, servers, 2) as long:
        assert len(set(long)) == 2
        assert {replica_of(rig, "short") for _ in range(6)}.isdisjoint(long)


def test_a_replica_whose_client_has_left_has_nothing_left_to_read(rig: Rig, servers: list[Replica]) -> None:
    with long_prompts(rig, servers, 1, text=6 * LONG) as left:
        pass
    with long_prompts(rig, servers, 3) as long:
        assert set(left) < set(long) == {"r1", "r2", "r3"}


def test_a_replica_that_leaves_is_not_chosen_and_one_that_comes_is(rig: Rig, servers: list[Replica]) -> None:
    gone = servers[0]
    rig.plane.drain("long-prompts", gone.name)
    with long_prompts(rig, servers, 4) as long:
        assert sorted(long) == sorted([server.name for server in servers[1:]] * 2)
        rig.plane.add("long-prompts", gone.with_concurrency(4))
        rig.settle()
        assert replica_of(rig, LONG) == gone.name


def test_replicas_that_were_there_at_a_reload_are_chosen(rig: Rig, servers: list[Replica]) -> None:
    rig.plane.apply(rig.plane.settings)
    with long_prompts(rig, servers, 3) as long:
        assert sorted(long) == ["r1", "r2", "r3"]


def test_what_is_measured_counts_from_when_it_is_told(rig: Rig, servers: list[Replica]) -> None:
    """Until then, and again in a new HAProxy, the choice is not ours: nobody has set what a body is to be chosen by."""
    for server in servers:
        rig.add("measured", server.with_concurrency(4))
    rig.plane.read_at("measured", 4 * TOKENS_PER_S)
    with long_prompts(rig, servers, 2, "measured") as long:
        assert len(set(long)) == 2
        assert {replica_of(rig, "short", "measured") for _ in range(6)}.isdisjoint(long)
        rig.plane.read_at("measured", 1e9)
        after = {replica_of(rig, LONG, "measured") for _ in range(6)}
        assert after.isdisjoint(long), "what has been sent is still read as it was told before"
    rig.plane.apply(replace(rig.plane.settings, body_limit_mib=7))
    assert replica_of(rig, LONG, "measured") in {"r1", "r2", "r3"}


def test_what_is_configured_is_not_told_otherwise(rig: Rig, servers: list[Replica]) -> None:
    rig.plane.read_at("long-prompts", 1e9)
    with long_prompts(rig, servers, 2) as long:
        assert len(set(long)) == 2


def test_with_0_requests_are_counted(rig: Rig, servers: list[Replica]) -> None:
    for server in servers:
        rig.plane.add("plain", server.endpoint)
    rig.settle()
    body = {"messages": LONG, "max_tokens": 1}
    assert rig.ask("POST", "/services/plain/v1/chat/completions", body).status == 200
    assert "reading" not in (rig.plane.files.configuration.read_text().partition("backend service_plain")[2])
