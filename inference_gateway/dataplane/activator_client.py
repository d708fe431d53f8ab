"""What the activator holds at this moment, asked over its socket."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path

import msgspec

from inference_gateway.errors import NotRunningError

_TIMEOUT_S = 5.0


class ActivatorState(msgspec.Struct, frozen=True):
    """Requests of one service in the activator: `waiting`, and those it relays, by replica."""

    waiting: int
    relaying: dict[str, int]


def read_state(path: Path) -> dict[str, ActivatorState]:
    """By service. Empty if no activator runs: its requests have ended with it.

    Raises:
        NotRunningError: it does not answer in time, or not in its own words.

    """
    link = _UnixConnection(path)
    try:
        link.request("GET", "/state")
        answer = link.getresponse()
        body = answer.read()
    except (FileNotFoundError, ConnectionError):
        return {}
    except (OSError, http.client.HTTPException) as error:
        raise NotRunningError(f"{path}: the activator does not answer: {error}") from error
    finally:
        link.close()
    try:
        return msgspec.json.decode(body, type=dict[str, ActivatorState])
    except msgspec.MsgspecError as error:
        raise NotRunningError(f"{path}: not an activator's answer: {error}") from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("activator", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self._path))
