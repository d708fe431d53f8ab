"""Tokens as they come, clients that leave, streams that outlive their replica's farewell."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from inference_gateway.dataplane.runtime import RuntimeApi, is_named
from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import CLIENT_KEY, PATIENCE_S, Replica, Rig, gateway, wait_until

KEY = {"authorization": f"Bearer {CLIENT_KEY}"}


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    with gateway(directory, ServiceSettings("chat")) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    yield running
    running.clear()


class Stream:
    """A streamed answer that is read event by event."""

    def __init__(self, port: int, service: str, tokens: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        body = json.dumps({"stream": True, "max_tokens": tokens, "model": service})
        self._link.request("POST", "/v1/chat/completions", body, KEY)
        self.answer = self._link.getresponse()
        assert self.answer.status == 200

    def event(self) -> str:
        line = self.answer.readline().decode()
        assert self.answer.readline() == b"\n"
        return line.removeprefix("data: ").strip()

    def rest(self) -> list[str]:
        events: list[str] = []
        while not events or events[-1] != "[DONE]":
            events.append(self.event())
        self.leave()
        return events

    def leave(self) -> None:
        self.answer.close()
        self._link.close()


@pytest.fixture
def begin(rig: Rig) -> Iterator[Callable[[str, int], Stream]]:
    """Begins streams, of which a failed test leaves none open: its socket would warn in another test."""
    with ExitStack() as begun:

        def stream(service: str, tokens: int) -> Stream:
            made = Stream(rig.port, service, tokens)
            begun.callback(made.leave)
            return made

        yield stream


def test_events_arrive_while_later_ones_are_not_yet_written(
    rig: Rig, servers: list[Replica], begin: Callable[[str, int], Stream]
) -> None:
    servers[0].behave(token_ms=100.0)
    rig.add("chat", servers[0].endpoint)
    stream = begin("chat", 5)
    assert "the" in stream.event()
    assert servers[0].state["in_flight"] == 1, "the first event was read before the last one was written"
    assert len(stream.rest()) == 5


@pytest.mark.parametrize("way", ["haproxy", "activator"])
def test_a_client_that_leaves_ends_its_replicas_work(
    rig: Rig, servers: list[Replica], begin: Callable[[str, int], Stream], way: str
) -> None:
    servers[0].behave(token_ms=50.0)
    before = servers[0].state["abandoned"]
    if way == "activator":
        rig.add_soon("chat", servers[0].endpoint)
    else:
        rig.add("chat", servers[0].endpoint)
    stream = begin("chat", 10_000)
    stream.event()
    stream.leave()
    wait_until(lambda: servers[0].state["in_flight"] == 0)
    assert servers[0].state["abandoned"] == before + 1
    wait_until(lambda: next(iter(rig.plane.traffic())).in_flight == 0)


def test_a_client_that_leaves_before_the_answer_begins(rig: Rig, servers: list[Replica]) -> None:
    servers[0].behave(fault="hang")
    rig.add("chat", servers[0].endpoint)
    before = servers[0].state["abandoned"]
    link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)
    link.request("POST", "/v1/chat/completions", json.dumps({"model": "chat"}), KEY)
    wait_until(lambda: servers[0].state["in_flight"] == 1)
    link.close()
    wait_until(lambda: servers[0].state["abandoned"] == before + 1)


@pytest.mark.parametrize("way", ["haproxy", "activator"])
def test_a_drained_replica_finishes_its_streams(
    rig: Rig, servers: list[Replica], begin: Callable[[str, int], Stream], way: str
) -> None:
    """Through HAProxy or through the activator: it is not gone before its last stream has ended."""
    servers[0].behave(token_ms=30.0)
    if way == "activator":
        rig.add_soon("chat", servers[0].endpoint)
    else:
        rig.add("chat", servers[0].endpoint)
    stream = begin("chat", 30)
    stream.event()
    sessions = RuntimeApi(rig.plane.files.stats_socket).ask("show sess")
    assert is_named(sessions, "service_chat", "r1" if way == "haproxy" else "activator")
    assert not is_named(sessions, "service_chat", "r")
    rig.add("chat", servers[1].endpoint)
    rig.plane.drain("chat", "r1")
    assert rig.replica_states("chat") == {"r1": "draining", "r2": "up"}
    assert not rig.plane.remove("chat", "r1")
    assert {rig.complete("chat").headers["x-replica"] for _ in range(4)} == {"r2"}
    assert len(stream.rest()) == 30
    wait_until(lambda: rig.plane.remove("chat", "r1"))
    assert rig.replica_states("chat") == {"r2": "up"}


def test_a_reload_cuts_no_stream_and_keeps_counting(
    rig: Rig, servers: list[Replica], begin: Callable[[str, int], Stream]
) -> None:
    servers[0].behave(token_ms=30.0)
    rig.add("chat", servers[0].endpoint)
    before = next(iter(rig.plane.traffic())).arrivals
    stream = begin("chat", 150)  # long enough for all that follows
    stream.event()
    old = rig.plane.settings
    more = (*old.services, ServiceSettings("another"))
    rig.plane.apply(type(old)(old.directory, old.port, services=more, keys=old.keys))
    rig.plane.add("another", servers[1].endpoint)
    assert rig.complete("another").headers["x-replica"] == "r2", "the new service is there"
    assert rig.complete("chat", {"max_tokens": 1}).headers["x-replica"] == "r1", "and replicas need not be added again"
    rig.plane.drain("chat", "r1")
    assert not rig.plane.remove("chat", "r1"), "the stream in the old worker counts"
    traffic = {entry.service: entry for entry in rig.plane.traffic()}
    assert traffic["chat"].arrivals == before + 2
    assert traffic["chat"].in_flight == 1
    assert len(stream.rest()) == 150
    wait_until(lambda: rig.plane.remove("chat", "r1"))
    rig.plane.apply(old)
    assert rig.complete("another").status == 404
