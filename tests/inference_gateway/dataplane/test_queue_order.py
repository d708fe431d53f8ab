"""The order of waiting requests: who would be late lets others pass, in HAProxy as in the simulator."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.model import Endpoint
from inference_gateway.simulator.engine import simulate
from inference_gateway.simulator.settings import Settings
from tests.inference_gateway.rig import PATIENCE_S, Answer, Rig, gateway, wait_until
from tests.inference_gateway.simulator.test_engine import Scripted


@dataclass(slots=True)
class Gate:
    """A replica that answers one request for each release, and knows in which order they came."""

    taken: list[str] = field(default_factory=list)
    released: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def serve(self) -> ThreadingHTTPServer:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path != "/health":
                    gate.taken.append(self.path.removeprefix("/"))
                    assert gate.released.acquire(timeout=PATIENCE_S)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_parts: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


@pytest.fixture
def gate() -> Iterator[tuple[Gate, int]]:
    gate = Gate()
    server = gate.serve()
    yield gate, server.server_address[1]
    server.shutdown()
    server.server_close()


def queued(rig: Rig) -> int:
    return rig.plane.traffic()[0].queued


def has_queued(rig: Rig, waiting: int) -> bool:
    return queued(rig) == waiting


def has_taken(replica: Gate, requests: int) -> bool:
    return len(replica.taken) == requests


@pytest.mark.parametrize(
    ("in_time", "order"),
    [(2.0, ["a", "b", "c", "f", "d", "e"]), (0.0, ["a", "b", "c", "d", "e", "f"])],
    ids=["two classes", "first in, first out"],
)
def test_haproxy(directory: Path, gate: tuple[Gate, int], in_time: float, order: list[str]) -> None:
    """b and c wait in time, d and e would be late; when f comes, c alone is before it in the first class."""
    replica, port = gate
    service = ServiceSettings("an-odd.name", in_time_per_replica=in_time)
    with gateway(directory, service) as rig, ThreadPoolExecutor(6) as clients:
        rig.add(service.name, Endpoint("r1", "127.0.0.1", port, 1))

        def send(name: str, waiting: int) -> None:
            answers.append(clients.submit(rig.ask, "GET", f"/services/{service.name}/{name}"))
            wait_until(lambda: queued(rig) == waiting)

        answers = [clients.submit(rig.ask, "GET", f"/services/{service.name}/a")]
        wait_until(lambda: replica.taken == ["a"])
        for waiting, name in enumerate("bcde", start=1):
            send(name, waiting)
        replica.released.release()
        wait_until(lambda: replica.taken == ["a", "b"])
        send("f", 4)
        replica.released.release(5)
        assert [answer.result().status for answer in answers] == [200] * 6
    assert replica.taken == order


def test_each_replica_that_serves_has_room_in_time(directory: Path, gate: tuple[Gate, int]) -> None:
    """Behind two replicas c and d wait in time, e would be late; when f comes, d alone is before it in its class."""
    replica, port = gate
    service = ServiceSettings("two", in_time_per_replica=1.0)
    with gateway(directory, service) as rig, ThreadPoolExecutor(6) as clients:
        rig.add(service.name, Endpoint("r1", "127.0.0.1", port, 1), Endpoint("r2", "127.0.0.1", port, 1))
        answers = []
        for taken, name in enumerate("ab", start=1):
            answers.append(clients.submit(rig.ask, "GET", f"/services/{service.name}/{name}"))
            wait_until(partial(has_taken, replica, taken))
        for waiting, name in enumerate("cde", start=1):
            answers.append(clients.submit(rig.ask, "GET", f"/services/{service.name}/{name}"))
            wait_until(partial(has_queued, rig, waiting))
        replica.released.release()
        wait_until(lambda: replica.taken == ["a", "b", "c"])
        answers.append(clients.submit(rig.ask, "GET", f"/services/{service.name}/f"))
        wait_until(partial(has_queued, rig, 3))
        for taken in range(4, 7):
            replica.released.release()
            wait_until(partial(has_taken, replica, taken))
        replica.released.release(2)
        assert [answer.result().status for answer in answers] == [200] * 6
    assert replica.taken == ["a", "b", "c", "d", "f", "e"]


def test_those_that_reach_their_deadline_are_not_counted_any_more(directory: Path, gate: tuple[Gate, int]) -> None:
    """c and d would be late and give up; so e alone waits in time, f would be late, and when e is taken g passes f."""
    replica, port = gate
    service = ServiceSettings("leaving", in_time_per_replica=1.0, queue_deadline_s=6.0)
    with gateway(directory, service) as rig, ThreadPoolExecutor(8) as clients:
        rig.add(service.name, Endpoint("r1", "127.0.0.1", port, 1))
        answers: dict[str, Future[Answer]] = {}

        def send(name: str) -> None:
            answers[name] = clients.submit(rig.ask, "GET", f"/services/{service.name}/{name}")

        send("a")
        wait_until(lambda: replica.taken == ["a"])
        for waiting, name in enumerate("bcd", start=1):
            send(name)
            wait_until(partial(has_queued, rig, waiting))
        replica.released.release()
        wait_until(lambda: replica.taken == ["a", "b"])
        time.sleep(service.queue_deadline_s / 2)  # so that c and d are gone well before e would be
        send("e")
        assert [answers[name].result().status for name in "cd"] == [503, 503]
        send("f")
        wait_until(lambda: queued(rig) == 2)
        replica.released.release()
        wait_until(lambda: replica.taken == ["a", "b", "e"])
        send("g")
        wait_until(lambda: queued(rig) == 2)
        replica.released.release(3)
        assert [answers[name].result().status for name in "abefg"] == [200] * 5
    assert replica.taken == ["a", "b", "e", "g", "f"]


@pytest.mark.parametrize(
    ("target_s", "order"), [(29.0, "abcfde"), (0.0, "abcdef")], ids=["two classes", "first in, first out"]
)
def test_the_simulator_does_the_same(target_s: float, order: str) -> None:
    """A replica that takes 10 s for each request takes 0.7 x 29 / 10 = 2 in the target's time."""
    arrivals = [0.0, 0.1, 0.2, 0.3, 0.4, 10.5]
    settings = Settings(concurrency=1, queue_target_s=target_s)
    outcome = simulate(arrivals, [10.0] * 6, Scripted(1), settings)
    begun = sorted(range(6), key=lambda i: arrivals[i] + outcome.wait_s[i])
    assert "".join("abcdef"[i] for i in begun) == order
    assert not outcome.failed
