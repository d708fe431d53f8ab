"""A client of HTTP/2 that does the gateway no favour: it goes on after GOAWAY, and never lets it send more."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tests.inference_gateway.rig import PATIENCE_S

_DATA, _HEADERS, _RESET, _SETTINGS, _PING = 0, 1, 3, 4, 6
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_STATUSES = {0x88: 200, 0x8C: 400, 0x8D: 404}
"""Those of HPACK's static table; HAProxy writes 401 and 503 with their digits."""


class Http2:
    """One connection to the port. `window` is how many bytes of each answer's body the gateway may send."""

    def __init__(self, port: int, window: int = 65535, source: str = "127.0.0.1") -> None:
        self._link = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0))
        self._unread = b""
        self._next = 1
        self._statuses: dict[int, int] = {}
        self._answered = False
        self.resets: set[int] = set()
        """Streams that the gateway has broken off, be it after an answer."""

        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)
        self._link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, settings))

    def begin(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = b"") -> int:
        """Send a request; returns its stream. A body of None comes later, by `send`. Raises `ConnectionError`."""
        stream, self._next = self._next, self._next + 2
        named = {":method": method, ":path": path, ":scheme": "http", ":authority": "x", **(headers or {})}
        fields = b"".join(b"\0" + _text(name) + _text(value) for name, value in named.items())
        frames = _frame(_HEADERS, _END_HEADERS | (_END_STREAM if body == b"" else 0), stream, fields)
        self._link.sendall(frames + (_frame(_DATA, _END_STREAM, stream, body) if body else b""))
        return stream

    def send(self, stream: int, body: bytes) -> None:
        """Send all of the body that was to come later."""
        self._link.sendall(_frame(_DATA, _END_STREAM, stream, body))

    def settle(self) -> None:
        """Read all that the gateway has to say up to now."""
        self._answered = False
        self._link.sendall(_frame(_PING, 0, 0, bytes(8)))
        while not self._answered:
            self._read_frame()

    def status(self, stream: int) -> int:
        """The status of its answer; 0 if the gateway resets the stream or closes the connection."""
        while stream not in self._statuses:
            try:
                self._read_frame()
            except ConnectionError:
                return 0
        return self._statuses[stream]

    def _read_frame(self) -> None:
        head = self._read(9)
        length, kind, flags, stream = int.from_bytes(head[:3]), head[3], head[4], int.from_bytes(head[5:])
        payload = self._read(length)
        if kind == _HEADERS:
            self._statuses[stream] = _STATUSES.get(payload[0]) or int(payload[2:5])
        elif kind == _RESET:
            self._statuses.setdefault(stream, 0)
            self.resets.add(stream)
        elif kind == _PING and flags & _ACK:
            self._answered = True
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._link.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))

    def _read(self, size: int) -> bytes:
        while len(self._unread) < size:
            part = self._link.recv(65536)
            if not part:
                raise ConnectionResetError("the gateway has closed the connection")
            self._unread += part
        found, self._unread = self._unread[:size], self._unread[size:]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _text(text: str) -> bytes:
    """A string literal of HPACK, not compressed, of less than 127 bytes."""
    return bytes((len(text),)) + text.encode()
