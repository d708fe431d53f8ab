"""Requests of a session, or that begin alike, go to the same replica, as long as it has room for them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import Replica, Rig, gateway, wait_until


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    with gateway(directory, ServiceSettings("chat", affinity="prefix"), ServiceSettings("plain")) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    for server in servers:
        running.add("chat", server.endpoint)
    yield running
    running.clear()


def replica_of(rig: Rig, text: str, **headers: str) -> str:
    # As OpenAI's client writes it: the messages first, and what changes with each turn behind them.
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = rig.ask("POST", "/services/chat/v1/chat/completions", body, **headers)
    assert answer.status == 200
    return answer.headers["x-replica"]


def test_a_session_has_a_replica_and_sessions_are_spread(rig: Rig) -> None:
    names = map(str, range(30))
    places = {name: {replica_of(rig, f"{turn}", x_session_id=name) for turn in range(4)} for name in names}
    assert all(len(found) == 1 for found in places.values())
    counts = Counter(next(iter(found)) for found in places.values())
    assert sorted(counts) == ["r1", "r2", "r3"]
    assert max(counts.values()) <= 20, counts


@pytest.mark.parametrize("first_bytes", [600, 2500, 9000])
def test_turns_that_begin_alike_have_a_replica(rig: Rig, first_bytes: int) -> None:
    places = {
        name: {replica_of(rig, name * first_bytes + "".join(map(str, range(turn)))) for turn in range(4)}
        for name in "abcdefghijkl"
    }
    assert all(len(found) == 1 for found in places.values())
    assert len(set.union(*places.values())) > 1


def test_a_replica_with_twice_the_mean_leaves_them_to_others(rig: Rig, servers: list[Replica]) -> None:
    """Six at once of one session: with three replicas none may have more than four, twice the mean."""
    for server in servers:
        server.behave(first_token_ms=3000.0)
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(replica_of, rig, "x", x_session_id="one") for _ in range(6)]
        wait_until(lambda: sum(server.state["in_flight"] for server in servers) == 6)
        counts = sorted(server.state["in_flight"] for server in servers)
        assert counts[-1] <= 4
        assert counts[1] > 0
        assert {answer.result() for answer in answers} <= {"r1", "r2", "r3"}


def test_a_reload_moves_nobody(rig: Rig) -> None:
    names = [str(number) for number in range(12)]
    before = {name: replica_of(rig, "x", x_session_id=name) for name in names}
    settings = rig.plane.settings
    rig.plane.apply(dataclasses.replace(settings, body_limit_mib=settings.body_limit_mib + 1))
    assert {name: replica_of(rig, "x", x_session_id=name) for name in names} == before


def test_a_session_finds_another_when_its_replica_drains(rig: Rig) -> None:
    before = {name: replica_of(rig, "x", x_session_id=name) for name in map(str, range(30))}
    gone = before["0"]
    rig.plane.drain("chat", gone)
    after = {name: replica_of(rig, "x", x_session_id=name) for name in before}
    assert gone not in after.values()
    assert all(after[name] == place for name, place in before.items() if place != gone), "the others stay"
