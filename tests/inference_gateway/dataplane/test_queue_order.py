"""The order of waiting requests: who is late lets others pass, in HAProxy as in the simulator."""

from __future__ import annotations

import dataclasses
import http.client
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from inference_gateway.dataplane import runtime
from inference_gateway.dataplane.endpoints import read_state
from inference_gateway.dataplane.runtime import RuntimeApi
from inference_gateway.dataplane.settings import ApiKey, BatchSettings, ServiceSettings, digest_of
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.model import Endpoint
from simulation.requests.engine import simulate
from simulation.requests.settings import RequestSettings
from tests.inference_gateway.rig import ALICE, CLIENT_KEY, PATIENCE_S, Answer, Rig, gateway, wait_until
from tests.simulation.requests.test_engine import Scripted


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


def haproxy_version() -> tuple[int, int]:
    said = subprocess.run(["haproxy", "-v"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"HAProxy version (\d+)\.(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def queued(rig: Rig) -> int:
    return rig.plane.traffic()[0].queued


def has_queued(rig: Rig, waiting: int) -> bool:
    return queued(rig) == waiting


def has_taken(replica: Gate, requests: int) -> bool:
    return len(replica.taken) == requests


TARGET_S = 5.0


@dataclass(slots=True)
class Clients:
    """Those who ask for one thing each, one after the other."""

    rig: Rig
    service: str
    pool: ThreadPoolExecutor
    answers: dict[str, Future[Answer]] = field(default_factory=dict)

    def send(self, name: str, key: str = CLIENT_KEY) -> None:
        path = f"/services/{self.service}/{name}"
        self.answers[name] = self.pool.submit(self.rig.ask, "GET", path, authorization=f"Bearer {key}")

    def send_of_batch(self, name: str, owner: str) -> None:
        """As the batch worker sends it."""
        self.answers[name] = self.pool.submit(self.rig.ask_for_batch, "GET", f"/{name}", None, self.service, owner)

    def queue_up(self, names: str, before: int = 0) -> None:
        """Each waits before the next one comes."""
        for waiting, name in enumerate(names, start=before + 1):
            self.send(name)
            wait_until(partial(has_queued, self.rig, waiting))

    def statuses(self, names: str) -> list[int]:
        return [self.answers[name].result().status for name in names]


def has_one_in_haproxys_queue(rig: Rig, service: str) -> bool:
    rows = runtime.backends(RuntimeApi(rig.plane.files.stats_socket).ask("show stat -1 2 -1"))
    return any(row.service == service and row.queued == 1 for row in rows)


@contextmanager
def one_place(directory: Path, service: ServiceSettings, port: int) -> Iterator[Clients]:
    """A gateway whose replica takes one request at a time, which it has already: `a`."""
    keys = (
        ALICE,
        ApiKey("bob", digest_of("bobs-key")),
        ApiKey("carol", digest_of("carols-key"), weight=3),
        ApiKey("dave", digest_of("daves-key"), priority="batch"),
    )
    batches = BatchSettings(directory, 1, 1, 1)
    with gateway(directory, service, keys=keys, batches=batches) as rig, ThreadPoolExecutor(12) as pool:
        rig.add(service.name, Endpoint("r1", "127.0.0.1", port, 1))
        clients = Clients(rig, service.name, pool)
        clients.send("a")
        yield clients


def service_of(name: str, **how: Any) -> ServiceSettings:
    return ServiceSettings(
        name, requests_per_s=0.5, concurrency=1, paths=("/*",), **{"queue_target_s": TARGET_S, **how}
    )


@pytest.mark.parametrize(
    ("name", "target_s", "order"), [("in.turn", TARGET_S, "abefcd"), ("fifo", 0.0, "abcdef")], ids=["in turn", "fifo"]
)
def test_haproxy(directory: Path, gate: tuple[Gate, int], name: str, target_s: float, order: str) -> None:
    """b is in HAProxy's queue; c and d are late when e and f come, who then go first."""
    replica, port = gate
    with one_place(directory, service_of(name, queue_target_s=target_s), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("bcd")
        time.sleep(TARGET_S)
        clients.queue_up("ef", before=3)
        for taken in range(2, 7):
            replica.released.release()
            wait_until(partial(has_taken, replica, taken))
            if target_s and taken < 4:  # e, then f; with a free place as well two may go at once, as they look
                wait_until(partial(has_one_in_haproxys_queue, clients.rig, name))
        replica.released.release()
        assert clients.statuses("abcdef") == [200] * 6
    assert "".join(replica.taken) == order


def test_who_is_held_is_queued_and_has_a_deadline(directory: Path, gate: tuple[Gate, int]) -> None:
    replica, port = gate
    with one_place(directory, service_of("held", queue_deadline_s=4.0, retry_after_s=7), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("bcd")
        traffic = clients.rig.plane.traffic()[0]
        assert (traffic.in_flight, traffic.queued, traffic.arrivals) == (1, 3, 4)
        assert clients.statuses("cd") == [503, 503]
        answer = clients.answers["d"].result()
        assert answer.json["error"]["message"] == "no replica is free"
        assert answer.headers["retry-after"] == "7"
        replica.released.release(2)
        assert clients.statuses("a") == [200]
        wait_until(partial(has_queued, clients.rig, 0))


def test_haproxy_lives_on_while_many_are_held_and_counted(directory: Path, gate: tuple[Gate, int]) -> None:
    """HAProxy before 3.2 may crash where it interrupts a command in Lua, as it does one that takes long by default."""
    replica, port = gate
    many = 900
    service = service_of("many", queue_limit=many, queue_deadline_s=PATIENCE_S, queue_target_s=10 * TARGET_S)
    request = f"GET /services/many/x HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {CLIENT_KEY}\r\n\r\n".encode()
    with one_place(directory, service, port) as clients, ExitStack() as links:
        worker = HaproxyStatistics(clients.rig.plane.files).workers()
        for _ in range(many):
            link = links.enter_context(socket.create_connection(("127.0.0.1", clients.rig.port)))
            link.sendall(request)
        wait_until(partial(has_queued, clients.rig, many))
        for _ in range(200):
            assert queued(clients.rig) == many
        assert HaproxyStatistics(clients.rig.plane.files).workers() == worker
        replica.released.release()


@pytest.mark.parametrize("target_s", [10 * TARGET_S, 0.0], ids=["in turn", "fifo"])
def test_a_key_with_one_request_does_not_wait_behind_all_of_another(
    directory: Path, gate: tuple[Gate, int], target_s: float
) -> None:
    """Alice has eight. Bob's y comes last, and only her next one is before it; so it is with z, which he sends then."""
    replica, port = gate
    service = service_of(f"fair-{target_s:g}", queue_target_s=target_s, queue_limit=8)
    with one_place(directory, service, port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("bcdefgh")
        clients.send("y", "bobs-key")
        wait_until(partial(has_queued, clients.rig, 8))
        for taken in (2, 3, 4):
            replica.released.release()
            wait_until(partial(has_taken, replica, taken))
            if target_s and taken == 3:  # c, which with a free place as well could go beside d
                wait_until(partial(has_one_in_haproxys_queue, clients.rig, service.name))
        assert clients.statuses("y") == [200]
        clients.send("z", "bobs-key")
        wait_until(partial(has_queued, clients.rig, 6))
        replica.released.release()
        wait_until(partial(has_taken, replica, 5))
        assert "".join(replica.taken) == "abycz"
        replica.released.release(10)
        assert clients.statuses("abcdefghyz") == [200] * 10


@pytest.mark.parametrize("target_s", [10 * TARGET_S, 0.0], ids=["in turn", "fifo"])
def test_a_key_of_weight_three_has_three_requests_in_front(
    directory: Path, gate: tuple[Gate, int], target_s: float
) -> None:
    """Alice has b to d when carol sends w to y: w, x and y go before c and d."""
    replica, port = gate
    with one_place(directory, service_of(f"weighted-{target_s:g}", queue_target_s=target_s), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("bcd")
        for waiting, name in enumerate("wxy", start=4):
            clients.send(name, "carols-key")
            wait_until(partial(has_queued, clients.rig, waiting))
        for taken in range(2, 6):
            replica.released.release()
            wait_until(partial(has_taken, replica, taken))
        assert "".join(replica.taken) == "abwxy"
        replica.released.release(10)
        assert clients.statuses("abcdwxy") == [200] * 7


@pytest.mark.parametrize("target_s", [10 * TARGET_S, 0.0], ids=["in turn", "fifo"])
def test_a_batch_key_waits_for_all_others(directory: Path, gate: tuple[Gate, int], target_s: float) -> None:
    """Dave's requests came before those of alice and bob, and go when nobody else waits."""
    replica, port = gate
    with one_place(directory, service_of(f"batch-{target_s:g}", queue_target_s=target_s), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        for waiting, (name, key) in enumerate(
            [("p", "daves-key"), ("q", "daves-key"), ("b", CLIENT_KEY), ("c", CLIENT_KEY), ("y", "bobs-key")], start=1
        ):
            clients.send(name, key)
            wait_until(partial(has_queued, clients.rig, waiting))
        for taken in range(2, 7):
            replica.released.release()
            wait_until(partial(has_taken, replica, taken))
        replica.released.release(10)
        assert clients.statuses("abcpqy") == [200] * 6
    assert sorted(replica.taken[1:4]) == ["b", "c", "y"]
    assert replica.taken[4:] == ["p", "q"]


@pytest.mark.parametrize("target_s", [10 * TARGET_S, 0.0], ids=["in turn", "fifo"])
@pytest.mark.parametrize("order", ["pqbcy", "bcpqy"], ids=["batch first", "batch second"])
def test_a_batch_of_a_key_waits_for_all_others_and_nobody_for_it(
    directory: Path, gate: tuple[Gate, int], order: str, target_s: float
) -> None:
    """Alice's batch has p and q; she herself sends b and c, and bob y."""
    replica, port = gate
    service = service_of(f"own-{order}-{target_s:g}", queue_target_s=target_s)
    with one_place(directory, service, port) as clients:
        wait_until(partial(has_taken, replica, 1))
        for waiting, name in enumerate(order, start=1):
            if name in "pq":
                clients.send_of_batch(name, "alice")
            else:
                clients.send(name, "bobs-key" if name == "y" else CLIENT_KEY)
            wait_until(partial(has_queued, clients.rig, waiting))
        for taken in range(2, 7):
            replica.released.release()
            wait_until(partial(has_taken, replica, taken))
        replica.released.release(10)
        assert clients.statuses("abcpqy") == [200] * 6
    assert sorted(replica.taken[1:4]) == ["b", "c", "y"]
    assert replica.taken[4:] == ["p", "q"]


def test_no_more_wait_than_may(directory: Path, gate: tuple[Gate, int]) -> None:
    replica, port = gate
    with one_place(directory, service_of("full", queue_limit=3), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("bcd")
        clients.send("e")
        assert clients.answers["e"].result().json["error"]["message"] == "too many requests are waiting"
        replica.released.release(4)
        assert clients.statuses("abcde") == [200, 200, 200, 200, 503]


def test_without_a_replica_those_held_go_to_the_activator(directory: Path, gate: tuple[Gate, int]) -> None:
    """The replica that has the first request leaves; the next one gets those that waited."""
    replica, port = gate
    with one_place(directory, service_of("moved"), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("bcd")
        clients.rig.plane.drain("moved", "r1")
        wait_until(lambda: read_state(clients.rig.plane.files.activator_socket)["moved"].waiting == 3)
        clients.rig.add("moved", Endpoint("r2", "127.0.0.1", port, 4))
        wait_until(partial(has_taken, replica, 4))
        replica.released.release(4)
        assert clients.statuses("abcd") == [200] * 4


@pytest.mark.skipif(haproxy_version() == (3, 0), reason="HAProxy 3.0 sees only at its turn that a client has left")
def test_a_client_that_leaves_is_not_waited_for(directory: Path, gate: tuple[Gate, int]) -> None:
    replica, port = gate
    with one_place(directory, service_of("leaving"), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("b")
        link = http.client.HTTPConnection("127.0.0.1", clients.rig.port)
        link.request("GET", "/services/leaving/x", headers={"authorization": f"Bearer {CLIENT_KEY}"})
        wait_until(partial(has_queued, clients.rig, 2))
        clients.queue_up("c", before=2)
        link.close()
        wait_until(partial(has_queued, clients.rig, 2))
        replica.released.release(3)
        assert clients.statuses("abc") == [200] * 3
    assert "".join(replica.taken) == "abc"


def test_a_client_that_leaves_holds_up_nobody_for_long(directory: Path, gate: tuple[Gate, int]) -> None:
    """Seen at once or at its turn: those behind are answered, and nothing is left of it."""
    replica, port = gate
    with one_place(directory, service_of("left"), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("b")
        link = http.client.HTTPConnection("127.0.0.1", clients.rig.port)
        link.request("GET", "/services/left/x", headers={"authorization": f"Bearer {CLIENT_KEY}"})
        wait_until(partial(has_queued, clients.rig, 2))
        clients.queue_up("c", before=2)
        link.close()
        replica.released.release(4)
        assert clients.statuses("abc") == [200] * 3
        wait_until(partial(has_queued, clients.rig, 0))
    assert "".join(replica.taken).replace("x", "") == "abc"


def test_a_reload_loses_nobody_who_is_held(directory: Path, gate: tuple[Gate, int]) -> None:
    """The HAProxy that leaves finishes its line, and is asked how long it is."""
    replica, port = gate
    with one_place(directory, service_of("reloaded"), port) as clients:
        wait_until(partial(has_taken, replica, 1))
        clients.queue_up("bcd")
        plane = clients.rig.plane
        plane.apply(dataclasses.replace(plane.settings, services=(service_of("reloaded", retry_after_s=9),)))
        wait_until(lambda: HaproxyStatistics(plane.files).workers().leaving)
        assert queued(clients.rig) == 3
        replica.released.release(4)
        assert clients.statuses("abcd") == [200] * 4


@pytest.mark.parametrize(("target_s", "order"), [(29.0, "abefcd"), (0.0, "abcdef")], ids=["in turn", "fifo"])
def test_the_simulator_does_the_same(target_s: float, order: str) -> None:
    """A replica that takes 10 s for each request: c and d have waited for 29 s when e and f come."""
    arrivals = [0.0, 0.1, 0.2, 0.3, 29.5, 29.6]
    services = [29.8, *[10.0] * 5]
    outcome = simulate(arrivals, services, Scripted(1), RequestSettings(concurrency=1, queue_target_s=target_s))
    begun = sorted(range(6), key=lambda i: arrivals[i] + outcome.wait_s[i])
    assert "".join("abcdef"[i] for i in begun) == order
    assert not outcome.failed
