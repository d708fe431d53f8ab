"""Who is ready: a replica that answers 200 and has proved to be the one that was asked."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from inference_gateway.control.observations import Question, ready
from inference_gateway.replicas.identity import Authority, gateway_context
from inference_gateway.replicas.relay import server_context

ASKED: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ASKED.append(self.path)
        self.send_response(200 if self.path == "/ok" else 503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_parts: object) -> None:
        """Say nothing."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.of(tmp_path / "identity")


@pytest.fixture
def replica(tmp_path: Path, authority: Authority) -> Iterator[HTTPServer]:
    """`chat-1`."""
    ASKED.clear()
    (tmp_path / "chat-1.pem").write_text(authority.replica("chat-1"))
    context = server_context(tmp_path / "chat-1.pem", tmp_path / "identity" / "authority.pem")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.handle_request)
        thread.start()
        yield server
        thread.join()


def asked(name: str, port: int, path: str, directory: Path) -> bool:
    return ready(Question(name, 0, "127.0.0.1", port, path), gateway_context(directory / "identity"))


@pytest.mark.parametrize(("path", "is_ready"), [("/ok", True), ("/503", False)])
def test_only_status_200_is_ready(replica: HTTPServer, tmp_path: Path, path: str, *, is_ready: bool) -> None:
    assert asked("chat-1", replica.server_address[1], path, tmp_path) == is_ready
    assert [path] == ASKED


def test_another_replica_at_the_address_is_not_asked(replica: HTTPServer, tmp_path: Path) -> None:
    assert not asked("chat-2", replica.server_address[1], "/ok", tmp_path)
    assert ASKED == []


def test_a_closed_port_is_not_ready(authority: Authority, tmp_path: Path) -> None:
    assert authority
    assert not asked("chat-1", 1, "/", tmp_path)
