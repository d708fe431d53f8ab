"""What one source may take: connections at a time and per second. Linux has all of 127.0.0.0/8 for other sources."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from inference_gateway.dataplane.settings import GatewaySettings, ServiceSettings
from tests.inference_gateway.rig import CLIENT_KEY, PATIENCE_S, Rig, gateway, wait_until

NEVER_S = 3600.0
"""Who waits for this is not cut off as slow, so what room it takes it keeps."""
LIMIT, ALL = 20, 60


@pytest.fixture(scope="module")
def rig(directory: Path) -> Iterator[Rig]:
    limits = {"connection_limit": ALL, "source_connections": LIMIT, "request_timeout_s": NEVER_S}
    with gateway(directory, ServiceSettings("big"), client_timeout_s=NEVER_S, **limits) as running:
        yield running


def connected(rig: Rig, source: str, data: bytes = b"") -> socket.socket:
    """A connection that sends this and no more. It may be closed already, which `closed` sees."""
    link = socket.socket()
    link.settimeout(PATIENCE_S)
    link.bind((source, 0))
    with suppress(ConnectionError):
        link.connect(("127.0.0.1", rig.port))
        link.sendall(data)
    return link


def closed(link: socket.socket) -> bool:
    """Whether the gateway has closed a connection that it owes no answer."""
    link.settimeout(0)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def status_for(rig: Rig, source: str) -> int:
    link = http.client.HTTPConnection("127.0.0.1", rig.port, PATIENCE_S, source_address=(source, 0))
    try:
        link.request("GET", "/v1/models", headers={"authorization": f"Bearer {CLIENT_KEY}"})
        return link.getresponse().status
    finally:
        link.close()


@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("127.0.0.2", b""),
        ("127.0.0.3", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-part"),
        ("127.0.0.4", b"G"),
    ],
)
def test_silent_connections_of_one_source_leave_the_others_their_room(rig: Rig, source: str, data: bytes) -> None:
    with ExitStack() as stack:
        links = [stack.enter_context(connected(rig, source, data)) for _ in range(2 * ALL)]
        wait_until(lambda: sum(map(closed, links)) == 2 * ALL - LIMIT)
        assert status_for(rig, "127.0.0.1") == 200
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            status_for(rig, source)
        assert sum(map(closed, links)) == 2 * ALL - LIMIT, "those that came first are left alone"
    wait_until(lambda: _served_again(rig, source))


def _served_again(rig: Rig, source: str) -> bool:
    try:
        return status_for(rig, source) == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def test_a_source_that_connects_too_often_is_refused_and_the_others_are_not(directory: Path) -> None:
    with gateway(directory / "often", ServiceSettings("big"), source_connections_per_s=2) as rig:
        links = [connected(rig, "127.0.0.5") for _ in range(50)]
        wait_until(lambda: any(map(closed, links)))
        for link in links:
            link.close()
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            status_for(rig, "127.0.0.5")
        assert status_for(rig, "127.0.0.6") == 200


@pytest.mark.parametrize(("given", "connections", "expected"), [(None, 8000, 1000), (None, 100, 50), (70, 60, 70)])
def test_one_source_never_has_all_unless_that_is_asked_for(given: int | None, connections: int, expected: int) -> None:
    settings = GatewaySettings(Path("/run/g"), 1, source_connections=given)
    assert settings.of_one_source(connections) == expected
