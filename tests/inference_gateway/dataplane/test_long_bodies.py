"""Bodies whose `model` HAProxy cannot find, because they are too long or too deep for it, are served like others."""

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ApiKey, ServiceSettings, digest_of
from tests.inference_gateway.rig import ALICE, CLIENT_KEY, Replica, Rig, early_in_a_minute, gateway, wait_until

BOB = ApiKey("bob", digest_of("bobs-key"), services=("small",), requests_per_minute=3)
CAROL = ApiKey("carol", digest_of("carols-key"), services=("small",))
PATH = "/v1/chat/completions"
LONG = {"messages": "x" * 500_000}


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    big = ServiceSettings("big", models=("org/big-7b",))
    small = ServiceSettings("small")
    cold = ServiceSettings("cold", cold_start_limit=0)
    with gateway(directory, big, small, cold, keys=(ALICE, BOB, CAROL), body_limit_mib=4) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    running.add("big", servers[0].endpoint)
    running.add("small", servers[1].endpoint)
    yield running
    running.clear()


@pytest.mark.parametrize("model", ["big", "org/big-7b"])
@pytest.mark.parametrize("length", [60_000, 66_000, 3_000_000])
def test_a_model_at_the_end_of_a_long_body_is_found(rig: Rig, servers: list[Replica], length: int, model: str) -> None:
    body = json.dumps({"max_tokens": 3, "messages": "x" * length, "model": model}).encode()
    answer = rig.ask("POST", PATH, body)
    assert (answer.status, answer.headers["x-replica"]) == (200, "r1")
    assert answer.json["usage"]["completion_tokens"] == 3, "the replica has read the whole body"
    assert "x-gateway-logged" not in answer.headers
    seen = servers[0].state["last_headers"]
    assert ("authorization" in seen, seen["content-length"]) == (False, str(len(body)))
    assert CLIENT_KEY not in json.dumps(seen)
    assert [name for name in seen if name.startswith("x-gateway-")] == ["x-gateway-service"]


def test_a_body_without_a_length_is_served(rig: Rig, servers: list[Replica]) -> None:
    link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=60)
    body = json.dumps({**LONG, "max_tokens": 1, "model": "small"}).encode()
    parts = (body[start : start + 10_000] for start in range(0, len(body), 10_000))
    link.request("POST", PATH, parts, {"authorization": f"Bearer {CLIENT_KEY}"}, encode_chunked=True)
    answer = link.getresponse()
    assert (answer.status, answer.getheader("x-replica")) == (200, "r2")
    link.close()
    seen = servers[1].state["last_headers"]
    assert seen["content-length"] == str(len(body))
    assert "transfer-encoding" not in seen


def test_http_1_0_without_a_host_is_served(rig: Rig) -> None:
    body = json.dumps({**LONG, "max_tokens": 1, "model": "big"}).encode()
    with socket.create_connection(("127.0.0.1", rig.port), timeout=60) as link:
        head = f"POST {PATH} HTTP/1.0\r\nauthorization: Bearer {CLIENT_KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
        link.sendall(head.encode() + body)
        assert b" 200 OK\r\n" in link.recv(65536)


def test_json_that_is_too_deep_for_haproxy_is_read(rig: Rig) -> None:
    deep = "[" * 100 + "]" * 100
    body = f'{{"tools": {deep}, "model": "big", "stop": [], "max_tokens": 1}}'
    assert rig.ask("POST", PATH, body.encode()).headers["x-replica"] == "r1"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({**LONG, "model": "unknown"}, 404, "no such model"),
        ({**LONG, "models": "big"}, 400, "no JSON object"),
        ({**LONG, "model": 7}, 400, "no JSON object"),
        ([{**LONG, "model": "big"}], 400, "no JSON object"),
        (json.dumps({**LONG, "model": "big"}).encode()[:-1], 400, "no JSON object"),
        (b'{"x":' + b"[" * 500_000, 400, "no JSON object"),
        (b'{"x":' + b"[" * 500_000 + b"]" * 500_000 + b',"model":"big"}', 400, "no JSON object"),
        (b'"' + b"\xff" * 100_000 + b'"', 400, "no JSON object"),
    ],
    ids=["unknown", "none", "number", "array", "broken", "open", "deep", "binary"],
)
def test_what_leads_nowhere_is_told_why(rig: Rig, body: object, status: int, words: str) -> None:
    answer = rig.ask("POST", PATH, body)
    assert (answer.status, answer.json["error"]["code"]) == (status, status)
    assert words in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "beginning"),
    [(PATH, b""), (PATH, b'{"model":"big","messages":"'), ("/services/big/v1/audio/transcriptions", b"")],
    ids=["model nowhere", "model first", "service in the path"],
)
def test_a_body_that_tells_no_length_is_bounded(rig: Rig, servers: list[Replica], path: str, beginning: bytes) -> None:
    """HAProxy looks at the length a client tells; here there is none."""
    before = servers[0].state["requests"]
    with socket.create_connection(("127.0.0.1", rig.port), timeout=60) as link:
        headers = f"host: a\r\nauthorization: Bearer {CLIENT_KEY}\r\ntransfer-encoding: chunked"
        link.sendall(f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        for begun in (beginning, b"", b"", b"", b""):
            link.sendall(b"100000\r\n" + begun.ljust(1 << 20, b"x") + b"\r\n")
        answer = link.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"larger than 4 MiB" in answer
    assert servers[0].state["requests"] == before


def test_a_body_without_a_length_goes_to_the_service_that_is_asked_for(rig: Rig, servers: list[Replica]) -> None:
    body = b'{"model": "small", "max_tokens": 1}'
    link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=60)
    headers = {"authorization": f"Bearer {CLIENT_KEY}", "x-service": "org/big-7b", "x-gateway-asked": "small"}
    link.request("POST", PATH, iter([body]), headers, encode_chunked=True)
    answer = link.getresponse()
    answer.read()
    link.close()
    assert answer.getheader("x-replica") == "r1"
    seen = servers[0].state["last_headers"]
    assert seen["content-length"] == str(len(body))
    assert [name for name in seen if name.startswith("x-gateway-")] == ["x-gateway-service"]


def test_one_request_has_one_line_in_the_access_log(rig: Rig) -> None:
    before = {traffic.service: traffic.arrivals for traffic in rig.plane.traffic()}
    path = "/v1/rerank"
    rig.ask("POST", path, {**LONG, "model": "big"}, x_gateway_key="eve", x_gateway_client="6.6.6.6")
    entry = rig.logged(path=path)
    assert (entry["client"], entry["key"], entry["service"], entry["replica"]) == ("127.0.0.1", "alice", "big", "r1")
    rig.ask("POST", "/v1/score", {"model": "big"})
    rig.logged(path="/v1/score")
    assert [line["path"] for line in rig.access_log()].count(path) == 1
    after = {traffic.service: traffic.arrivals for traffic in rig.plane.traffic()}
    assert after["big"] - before["big"] == 2


def test_what_the_activator_refuses_is_in_the_access_log(rig: Rig) -> None:
    rig.ask("POST", "/v1/embeddings", {**LONG, "model": "unknown"})
    assert rig.logged(path="/v1/embeddings")["status"] == 404


def test_quota_and_grants_hold(rig: Rig) -> None:
    bob = {"authorization": "Bearer bobs-key"}
    early_in_a_minute()
    refused = rig.ask("POST", PATH, {**LONG, "model": "big"}, **bob)
    assert (refused.status, refused.json["error"]["message"]) == (403, "this key may not use this service")
    statuses = [rig.ask("POST", PATH, {**LONG, "model": "small"}, **bob).status for _ in range(3)]
    assert statuses == [200, 200, 429], "a long body counts once"
    assert rig.ask("POST", PATH, {**LONG, "model": "big"}, authorization="Bearer wrong").status == 401


def test_marks_of_clients_are_not_believed(rig: Rig, servers: list[Replica]) -> None:
    said = {"x_gateway_service": "small", "x_gateway_body_limit": "7", "x_gateway_batches": "1", "x_gateway_batch": "1"}
    for body in ({"max_tokens": 1}, LONG):
        answer = rig.ask("POST", PATH, {**body, "model": "big"}, **said)
        assert answer.headers["x-replica"] == "r1"
        seen = servers[0].state["last_headers"]
        assert [name for name in seen if name.startswith("x-gateway-")] == ["x-gateway-service"]
        assert seen["x-gateway-service"] == "big/alice"
    assert rig.ask("GET", "/healthz", **said).json == {"status": "ok"}
    assert rig.ask("GET", "/v1/models", **said).json["data"]
    assert b"inference_gateway_" in rig.ask("GET", "/metrics", **said).body


@pytest.mark.parametrize("named", ["x-gateway-key", "close, X-Gateway-Key"])
def test_a_connection_header_takes_no_marks_away(rig: Rig, servers: list[Replica], named: str) -> None:
    """What it names ends at the next hop (RFC 9110, section 7.6.1), but whose a request is no client says."""
    refused = rig.ask("POST", PATH, {**LONG, "model": "big"}, authorization="Bearer carols-key", connection=named)
    assert refused.status == 403
    assert rig.ask("POST", PATH, {**LONG, "model": "big"}, connection=named).status == 200
    assert servers[0].state["last_headers"]["x-gateway-service"] == "big/alice"


def test_a_service_without_replicas_answers_as_for_short_bodies(rig: Rig) -> None:
    answer = rig.ask("POST", PATH, {**LONG, "model": "cold"})
    assert (answer.status, answer.headers["retry-after"]) == (503, "30")


def test_a_long_body_waits_for_the_first_replica(rig: Rig, servers: list[Replica]) -> None:
    rig.clear()
    rig.add_soon("big", servers[0].endpoint)
    assert rig.ask("POST", PATH, {**LONG, "model": "big", "max_tokens": 1}).headers["x-replica"] == "r1"


def test_long_bodies_outlive_a_reload(rig: Rig, servers: list[Replica]) -> None:
    servers[0].behave(token_ms=100)
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(rig.ask("POST", PATH, {**LONG, "model": "big", "max_tokens": 15}).status)

    before = servers[0].state["requests"]
    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: servers[0].state["requests"] > before)
    settings = rig.plane.settings
    rig.plane.apply(replace(settings, services=(*settings.services, ServiceSettings("more", cold_start_limit=0))))
    assert rig.ask("POST", PATH, {**LONG, "model": "more"}).status == 503, "a service that was added just now"
    servers[0].behave()
    assert rig.ask("POST", PATH, {**LONG, "model": "big"}).status == 200
    asking.join()
    assert statuses == [200]
    rig.plane.apply(settings)


def test_long_bodies_do_not_wait_for_each_others_connections(directory: Path, servers: list[Replica]) -> None:
    big = ServiceSettings("big")
    with (
        gateway(directory / "few", big, connection_limit=10, source_connections=10) as rig,
        ThreadPoolExecutor(10) as clients,
    ):
        rig.add("big", servers[0].endpoint)
        asked = [clients.submit(rig.ask, "POST", PATH, {**LONG, "model": "big"}) for _ in range(30)]
        assert Counter(answer.result().status for answer in asked) == {200: 30}


def test_tokens_come_as_they_are_made_and_a_client_that_leaves_is_noticed(rig: Rig, servers: list[Replica]) -> None:
    servers[0].behave(token_ms=50)
    before = servers[0].state["abandoned"]
    link = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=60)
    body = json.dumps({**LONG, "max_tokens": 1_000_000, "stream": True, "model": "big"})
    link.request("POST", PATH, body, {"authorization": f"Bearer {CLIENT_KEY}"})
    answer = link.getresponse()
    sent_s = [json.loads(line[6:])["sent_s"] for line in (answer.readline() for _ in range(9)) if line.strip()]
    assert sent_s[-1] < time.monotonic(), "the stream has no end, and its tokens are here"
    answer.close()
    link.close()
    wait_until(lambda: servers[0].state["abandoned"] == before + 1)
    wait_until(partial(_is_idle, servers[0]))
    servers[0].behave()


def _is_idle(replica: Replica) -> bool:
    return not replica.state["in_flight"]
