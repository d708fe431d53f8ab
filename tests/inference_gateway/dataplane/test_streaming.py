"""Tokens as they come, clients that leave, streams that outlive their replica's farewell."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from inference_gateway.control import replica as control
from inference_gateway.control.data_plane_sync import DataPlaneSync
from inference_gateway.control.replica import Phase
from inference_gateway.control.state import EventLog
from inference_gateway.dataplane.endpoints import EndpointFiles
from inference_gateway.dataplane.runtime import RuntimeApi, is_named
from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.dataplane.statistics import HaproxyStatistics
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


def test_streams_from_before_a_reload_are_seen_although_the_list_of_their_service_is_invalid(
    rig: Rig, servers: list[Replica], begin: Callable[[str, int], Stream], tmp_path: Path
) -> None:
    """No replica of any service was known then, so the list was not made anew. Nor may that lose sight of them."""
    servers[0].behave(token_ms=50.0)
    rig.add("chat", servers[0].endpoint)
    stream = begin("chat", 10_000)
    stream.event()
    rig.add("chat", servers[1].endpoint)
    rig.plane.drain("chat", "r1")
    old = rig.plane.settings
    rig.plane.apply(replace(old, services=(*old.services, ServiceSettings("another"))))
    assert [row.name for row in HaproxyStatistics(rig.plane.files).states("chat")] == ["r2"]
    broken = tmp_path / "broken"  # a new file, as every change makes
    broken.write_bytes(b"[")
    broken.replace(EndpointFiles(rig.plane.files.endpoints).path("chat"))

    def seen() -> dict[str, tuple[str, int, bool]]:
        found = [one for one in rig.plane.servers() if one.service == "chat"]
        return {one.name: (one.state, one.in_flight, one.listed) for one in found}

    assert seen() == {"r1": ("draining", 1, False), "r2": ("up", 0, False)}
    wanted = [
        control.Replica("chat", one.name, "g1", phase, 0.0, 0.0, host="127.0.0.1", port=one.port)
        for one, phase in zip(servers[:2], (Phase.DRAINING, Phase.SERVING), strict=True)
    ]
    DataPlaneSync(rig.plane, {"chat": 8}, EventLog(tmp_path / "events")).bring_in_line(wanted, rig.plane.servers())
    assert seen() == {"r1": ("draining", 1, True), "r2": ("up", 0, True)}
    assert not (tmp_path / "events").exists()
    stream.leave()
    wait_until(lambda: seen() == {"r2": ("up", 0, True)})
    rig.plane.apply(old)
