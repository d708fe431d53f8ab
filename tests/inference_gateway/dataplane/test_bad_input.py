"""What no client should send, byte by byte."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import ServiceSettings
from tests.inference_gateway.rig import CLIENT_KEY, PATIENCE_S, Replica, Rig, gateway

HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {CLIENT_KEY}\r\n".encode()


@pytest.fixture(scope="module")
def running(directory: Path) -> Iterator[Rig]:
    big = ServiceSettings("big")
    with gateway(directory, big, request_timeout_s=0.5, client_timeout_s=1.0) as rig:
        yield rig


@pytest.fixture
def rig(running: Rig, servers: list[Replica]) -> Iterator[Rig]:
    running.add("big", servers[0].endpoint)
    yield running
    assert running.complete("big").status == 200, "others are served all the while"
    running.clear()


def send(rig: Rig, data: bytes) -> bytes:
    """Send bytes and nothing more; all that comes back until the gateway closes."""
    received = b""
    with socket.create_connection(("127.0.0.1", rig.port), timeout=PATIENCE_S) as link:
        try:
            link.sendall(data)
            while part := link.recv(65536):
                received += part
        except ConnectionResetError:
            pass  # it closed while we were sending
    return received


def status_of(received: bytes) -> int:
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", received)
    assert found, received[:200]
    assert received.count(b"HTTP/1.") == 1
    return int(found[1])


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"this is no HTTP\r\n\r\n",
        b"GET\r\n\r\n",
        HEAD + b"Content-Length: ten\r\n\r\n",
        HEAD + b"Bad Header Name: x\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_malformed_http_is_refused(rig: Rig, data: bytes) -> None:
    assert status_of(send(rig, data)) == 400


def test_a_body_of_two_lengths_is_refused(rig: Rig, servers: list[Replica]) -> None:
    before = servers[0].state["requests"]
    received = send(rig, HEAD + b'Content-Length: 15\r\nContent-Length: 6\r\n\r\n{"model":"big"}')
    if received:  # HAProxy 3.2 closes without a word
        assert status_of(received) == 400
    assert servers[0].state["requests"] == before


def test_a_tls_greeting_on_a_plain_port_is_refused(rig: Rig) -> None:
    assert status_of(send(rig, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x07" * 200 + b"\r\n\r\n")) == 400


@pytest.mark.parametrize(
    "data",
    [
        HEAD,
        HEAD + b"Content-Length: 1000\r\n\r\nten bytes.",
        HEAD + b"x-service: big\r\nContent-Length: 100000\r\n\r\n" + b"x" * 1000,
    ],
)
def test_a_slow_client_is_cut_off_before_it_takes_a_replicas_time(
    rig: Rig, servers: list[Replica], data: bytes
) -> None:
    before = servers[0].state["requests"]
    assert status_of(send(rig, data)) == 408
    assert servers[0].state["requests"] == before


@pytest.mark.parametrize(("header", "count"), [(b"x-some: z", 95), (b"x-a: b", 2000)])
def test_large_headers(rig: Rig, header: bytes, count: int) -> None:
    data = HEAD + (header + b"\r\n") * count + b'Content-Length: 15\r\nConnection: close\r\n\r\n{"model":"big"}'
    assert status_of(send(rig, data)) == {95: 200, 2000: 400}[count]


def test_headers_beyond_the_buffer(rig: Rig) -> None:
    data = HEAD + b"x-huge: " + b"y" * 300_000 + b"\r\n\r\n"
    assert status_of(send(rig, data)) in {400, 414, 431}, "HAProxy 3.2 says more of it"


def test_a_chunked_body_is_routed(rig: Rig) -> None:
    chunks = b"8\r\n" + b'{"model"' + b"\r\n7\r\n" + b':"big"}' + b"\r\n0\r\n\r\n"
    assert status_of(send(rig, HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)) == 200


def test_a_client_that_expects_100_continue(rig: Rig) -> None:
    data = HEAD + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n" + b'{"model":"big"}'
    received = send(rig, data)
    assert status_of(received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")) == 200


def test_two_requests_at_once_on_one_connection(rig: Rig) -> None:
    one = HEAD + b'Content-Length: 15\r\n\r\n{"model":"big"}'
    last = HEAD + b'Connection: close\r\nContent-Length: 15\r\n\r\n{"model":"nix"}'
    received = send(rig, one + last)
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)] == [200, 404]
