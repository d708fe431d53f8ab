"""How the activator tells the control plane that requests wait for a service without a replica.

One datagram of JSON to a Unix socket of the control plane: sent when the first request of a service has to wait, and
again every second while any waits. So a control plane that has just started learns of it too, and none is needed for
the rest to work. The answer is a replica in the service's endpoint file.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from inference_gateway.errors import ActivatorError


class Wake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`waiting` requests of a service have no replica to go to."""

    service: str
    waiting: int


def send(path: Path, wake: Wake) -> bool:
    """Tell the control plane, without waiting for it. False if nobody listens or its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.settimeout(0)
        try:
            link.sendto(msgspec.json.encode(wake), str(path))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            return False
    return True


@dataclass(slots=True)
class WakeListener:
    """The control plane's end: `with WakeListener(path) as listener: ... listener.receive(timeout_s=1)`."""

    path: Path
    _link: socket.socket | None = None

    def __enter__(self) -> Self:
        """Take the socket's place; one left behind by a control plane that was killed is replaced."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.path.unlink(missing_ok=True)
            link.bind(str(self.path))
            self.path.chmod(0o600)
        except OSError as error:
            link.close()
            raise ActivatorError(f"{self.path}: cannot be listened on: {error.strerror}") from error
        self._link = link
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close the socket and take it away."""
        if self._link is not None:
            self._link.close()
            self.path.unlink(missing_ok=True)

    def fileno(self) -> int:
        """For selectors."""
        return self._bound().fileno()

    def receive(self, timeout_s: float) -> dict[str, Wake]:
        """The newest message of each service, by name; empty if none came within `timeout_s`."""
        link = self._bound()
        newest: dict[str, Wake] = {}
        link.settimeout(timeout_s)
        while True:
            try:
                wake = msgspec.json.decode(link.recv(65536), type=Wake)
            except (TimeoutError, BlockingIOError):
                return newest
            except msgspec.MsgspecError as error:
                raise ActivatorError(f"{self.path}: a message that is not one of ours: {error}") from error
            newest[wake.service] = wake
            link.settimeout(0)

    def _bound(self) -> socket.socket:
        if self._link is None:
            raise ActivatorError(f"{self.path}: not listened on yet")
        return self._link
