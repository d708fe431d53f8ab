"""What can be reached without a key: the gateway's own `GET /healthz`, and nothing else."""

import itertools
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import PATIENCE_S, Replica, Rig, ask, gateway

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "PRI", "FOO")
TARGETS = (
    *("/healthz", "/healthz/", "//healthz", "/healthz?x=1", "/healthz#x", "/./healthz", "/x/../healthz", "/healthz/.."),
    *("/%68ealthz", "/healthz%2f", "/healthz%00", "/healthz;x", "/HEALTHZ", "/healthz/v1/chat/completions"),
    *("/services/big/healthz", "/services/big/v1/chat/completions", "/services//big", "//services/big/healthz"),
    *("/services/big/../../healthz", "/healthz/../services/big/v1/chat/completions"),
    *("/v1/chat/completions", "/v1/models", "/metrics", "/state", "/health", "/", "*", "x:443"),
    *("http://x/healthz", "http://big/services/big/v1/chat/completions", "https://x//healthz"),
)
HEADERS = (
    "",
    "x-service: big\r\n",
    "x-gateway-service: big\r\n",
    "x-gateway-key: alice\r\nx-gateway-body-limit: 1000\r\n",
    "authorization: Bearer \r\n",
    "authorization: Bearer\r\nx-api-key:\r\n",
    "connection: upgrade\r\nupgrade: websocket\r\n",
)
BODIES = (b"", json.dumps({"model": "big", "max_tokens": 1}).encode())


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    services = (ServiceSettings("big"), ServiceSettings("asleep"))
    limits = {"request_timeout_s": 0.5, "client_timeout_s": 1.0, "source_connections_per_s": 1_000_000}
    with gateway(directory, *services, **limits) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    running.add("big", servers[0].endpoint)
    yield running
    running.clear()


def status_of(port: int, request: bytes) -> int:
    """Send one request without a key on a connection of its own; 0 for an end without an answer."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link:
        try:
            link.sendall(request)
            while part := link.recv(65536):
                received += part
        except ConnectionResetError:
            pass
    found = re.match(rb"HTTP/1\.[01] (\d{3})", received)
    return int(found[1]) if found else 0


def test_nothing_is_forwarded_without_a_key(rig: Rig, servers: list[Replica]) -> None:
    before = [traffic.arrivals for traffic in rig.plane.traffic()]
    seen = servers[0].state["requests"]
    opened: set[tuple[str, str]] = set()
    for method, target, headers, body in itertools.product(METHODS, TARGETS, HEADERS, BODIES):
        head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {len(body)}\r\n"
        if status_of(rig.port, head.encode() + b"\r\n" + body) not in (0, 400, 401, 405, 408):
            opened.add((method, target))
    healthz = ("/healthz", "/healthz?x=1", "/healthz#x", "http://x/healthz")
    assert opened <= set(itertools.product(("GET", "HEAD"), healthz))
    assert {("GET", "/healthz"), ("HEAD", "/healthz")} <= opened
    assert [traffic.arrivals for traffic in rig.plane.traffic()] == before, "no service has had a request"
    assert servers[0].state["requests"] == seen


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/healthz", "/healthz?x=1"])
def test_other_methods_of_the_open_path_need_a_key(rig: Rig, method: str, path: str) -> None:
    for body, headers in (({"model": "asleep"}, {}), ({}, {"x-service": "asleep"})):
        assert ask(rig.port, method, path, body, headers).status == 401


def test_the_open_path_is_answered_whatever_a_header_says(rig: Rig) -> None:
    for headers in ({}, {"x-service": "asleep"}, {"x-service": "big"}, {"x-gateway-service": "big"}):
        answer = ask(rig.port, "GET", "/healthz", {"model": "asleep"}, headers)
        assert (answer.status, answer.json) == (200, {"status": "ok"})
        assert "x-replica" not in answer.headers
