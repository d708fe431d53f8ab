"""Another user's listener: answers everything like a model server would, and keeps all that it is sent."""

from __future__ import annotations

import os
import pwd
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

UID = pwd.getpwnam("nobody").pw_uid
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nx-replica: stranger\r\n\r\nforged"


@dataclass(slots=True)
class Stranger:
    """What has come so far."""

    port: int
    connections: int = 0
    received: bytes = b""


@contextmanager
def stranger(port: int, host: str = "127.0.0.1") -> Iterator[Stranger]:
    """A listener of `nobody` on a port that is at most reserved. Skips the test of who may not give sockets away."""
    if os.getuid() != 0:
        pytest.skip("a socket of another user needs root")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    os.fchown(listener.fileno(), UID, -1)  # the uid that the kernel tells of it
    listener.listen()
    seen = Stranger(listener.getsockname()[1])

    def serve() -> None:
        with suppress(OSError):
            while True:
                link, _ = listener.accept()
                seen.connections += 1
                threading.Thread(target=answer, args=(link,), daemon=True).start()

    def answer(link: socket.socket) -> None:
        with link, suppress(OSError):
            while part := link.recv(65536):
                seen.received += part
                link.sendall(ANSWER)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
