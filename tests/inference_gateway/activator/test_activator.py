"""Scale from zero: requests that wait, are told when they wait in vain, and meet the first ready replica."""

import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from inference_gateway.dataplane.endpoints import Wake, WakeListener, send
from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.errors import ActivatorError
from inference_gateway.model import Endpoint
from tests.inference_gateway.rig import CLIENT_KEY, PATIENCE_S, Replica, Rig, gateway, wait_until


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    patient = ServiceSettings("patient", cold_start_limit=8)
    hasty = ServiceSettings("hasty", cold_start_deadline_s=0.3, retry_after_s=11)
    closed = ServiceSettings("closed", cold_start_limit=0, retry_after_s=12)
    brisk = ServiceSettings("brisk", response_timeout_s=10.0, concurrency=1)
    with gateway(directory, patient, hasty, closed, brisk) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    yield running
    running.clear()


def queued(rig: Rig, service: str) -> int:
    return next(entry for entry in rig.plane.traffic() if entry.service == service).queued


def test_the_first_request_wakes_the_control_plane_and_is_answered(rig: Rig, servers: list[Replica]) -> None:
    with WakeListener(rig.plane.files.control_socket) as listener, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(rig.complete, "patient", {"messages": "x" * 200_000})
        assert listener.receive(PATIENCE_S) == {"patient": Wake("patient", 1)}
        assert listener.receive(PATIENCE_S) == {"patient": Wake("patient", 1)}, "and again while it waits"
        assert queued(rig, "patient") == 1
        rig.add("patient", servers[0].endpoint)
        answer = pending.result()
    assert (answer.status, answer.headers["x-replica"]) == (200, "r1")
    assert queued(rig, "patient") == 0


def test_a_request_may_wait_for_a_replica_longer_than_for_its_answer(rig: Rig, servers: list[Replica]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(rig.complete, "brisk")
        wait_until(lambda: queued(rig, "brisk") == 1)
        time.sleep(11)
        rig.add("brisk", servers[0].endpoint)
        assert pending.result().status == 200


def test_a_request_in_the_queue_of_a_replica_that_goes_is_held_as_long(rig: Rig, servers: list[Replica]) -> None:
    rig.add("brisk", servers[0].with_concurrency(1))
    servers[0].behave(token_ms=200.0)
    with ThreadPoolExecutor(2) as pool:
        served = pool.submit(rig.complete, "brisk", {"stream": True, "max_tokens": 30})
        wait_until(lambda: servers[0].state["in_flight"] == 1)
        pending = pool.submit(rig.complete, "brisk")
        wait_until(lambda: queued(rig, "brisk") == 1)
        rig.plane.drain("brisk", "r1")
        time.sleep(11)
        rig.add("brisk", servers[1].with_concurrency(1))
        assert [served.result().status, pending.result().status] == [200, 200]


def test_a_request_that_waited_tells_whose_it_is_whatever_its_connection_header_names(
    rig: Rig, servers: list[Replica]
) -> None:
    rig.add_soon("patient", servers[0].endpoint)
    assert rig.complete("patient", connection="x-gateway-service").status == 200
    assert servers[0].state["last_headers"]["x-gateway-service"] == "patient/alice"


def test_waiting_requests_are_bounded_and_keep_to_the_concurrency(rig: Rig, servers: list[Replica]) -> None:
    servers[0].behave(first_token_ms=100.0)
    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(rig.complete, "patient") for _ in range(8)]
        wait_until(lambda: queued(rig, "patient") == 8)
        refused = rig.complete("patient")
        assert (refused.status, refused.headers["retry-after"]) == (503, "30")
        peak = servers[0].state["most_in_flight"]
        assert peak <= 8
        rig.add("patient", servers[0].with_concurrency(2))
        seen = set()
        while not all(request.done() for request in pending):
            seen.add(servers[0].state["in_flight"])
        statuses = Counter(request.result().status for request in pending)
    assert statuses == {200: 8}
    assert max(seen) <= 2, "a burst from zero does not land on the first replica all at once"


def logged(rig: Rig, service: str) -> list[dict[str, Any]]:
    """The lines about this service in the access log."""
    path = rig.plane.files.access_log
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["service"] == service]


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "1"}], ids=["once", "repeatable"])
@pytest.mark.parametrize(("service", "retry_after"), [("hasty", "11"), ("closed", "12")])
def test_waiting_in_vain_ends_with_503(rig: Rig, service: str, retry_after: str, headers: dict[str, str]) -> None:
    """HAProxy repeats what may be repeated on 503, so a request would wait in vain four times."""
    before = next(entry for entry in rig.plane.traffic() if entry.service == service)
    known = len(logged(rig, service))
    answer = rig.complete(service, **headers)
    assert (answer.status, answer.headers["retry-after"]) == (503, retry_after)
    assert answer.json["error"]["code"] == 503
    assert "x-gateway-refused" not in answer.headers
    wait_until(lambda: len(logged(rig, service)) > known)
    assert [(line["status"], line["retries"]) for line in logged(rig, service)[known:]] == [(503, "0")]
    after = next(entry for entry in rig.plane.traffic() if entry.service == service)
    assert (after.arrivals - before.arrivals, after.responses_5xx - before.responses_5xx) == (1, 1)


def test_a_replica_that_is_listed_but_not_there_is_passed_over(rig: Rig, servers: list[Replica]) -> None:
    """The endpoint file may be behind: the last replica of a service was killed a moment ago."""
    with ThreadPoolExecutor(1) as pool:
        rig.add("patient", Endpoint("dead", "127.0.0.1", 1, 8))
        pending = pool.submit(rig.complete, "patient")
        wait_until(lambda: "unreachable service=patient" in rig.plane.files.activator_log.read_text())
        rig.add("patient", servers[1].endpoint)
        assert pending.result().headers["x-replica"] == "r2"


@pytest.mark.parametrize("length", [0, 200_000])
def test_a_target_may_name_the_gateways_host(rig: Rig, servers: list[Replica], length: int) -> None:
    """As clients write it that take the gateway for a proxy."""
    rig.add_soon("patient", servers[0].endpoint)
    host = f"127.0.0.1:{rig.port}"
    body = {"model": "patient", "max_tokens": 1, "messages": "x" * length, "stop": ["x"]}
    answer = rig.ask("POST", f"http://{host}/v1/chat/completions", body)
    assert (answer.status, answer.headers.get("x-replica")) == (200, "r1")


def test_a_long_header_waits_like_others(rig: Rig) -> None:
    """What a replica's server makes of it is its own affair: the bundled one takes no more than 8190 bytes."""
    answer = rig.complete("hasty", cookie="a" * 20_000)
    assert (answer.status, answer.json["error"]["message"]) == (503, "no replica started in time")


def test_a_client_that_gives_up_waiting_frees_its_place(rig: Rig) -> None:
    link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)
    key = {"authorization": f"Bearer {CLIENT_KEY}"}
    link.request("POST", "/v1/chat/completions", json.dumps({"model": "patient"}), key)
    wait_until(lambda: queued(rig, "patient") == 1)
    link.close()
    wait_until(lambda: queued(rig, "patient") == 0)


def test_an_answer_that_breaks_off_in_the_activator_is_broken_off(rig: Rig, servers: list[Replica]) -> None:
    servers[0].behave(fault="close-midway")
    rig.add_soon("patient", servers[0].endpoint)
    with pytest.raises(http.client.IncompleteRead):
        rig.complete("patient")


@pytest.mark.parametrize("fault", ["garbage", "close"])
def test_a_replica_that_fails_in_the_activator_costs_502(rig: Rig, servers: list[Replica], fault: str) -> None:
    servers[0].behave(fault=fault)
    rig.add_soon("patient", servers[0].endpoint)
    answer = rig.complete("patient")
    assert (answer.status, answer.json["error"]["code"]) == (502, 502)


def test_messages_to_nobody_and_of_nobody(directory: Path) -> None:
    path = directory / "control.sock"
    assert not send(path, Wake("patient", 1))
    with WakeListener(path) as listener:
        assert listener.receive(0.01) == {}
        assert send(path, Wake("patient", 1))
        assert send(path, Wake("patient", 2))
        assert send(path, Wake("other", 3))
        assert listener.receive(1.0) == {"patient": Wake("patient", 2), "other": Wake("other", 3)}
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ActivatorError, match="cannot be listened on"):
        WakeListener(directory / "nowhere" / "control.sock").__enter__()
