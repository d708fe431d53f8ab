"""The activator's process: start, recognise, stop. It outlives whoever starts it."""

from __future__ import annotations

import http.client
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from explsched import process
from explsched.process import ProcessId
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.process import environment
from inference_gateway.errors import ActivatorError, NotRunningError

_START_S = 30.0


@dataclass(frozen=True, slots=True)
class ActivatorProcess:
    """The activator of one directory."""

    files: Files

    def pid(self) -> int | None:
        """Its process id if it runs and listens."""
        found = self._found()
        return found.pid if found else None

    def start(self) -> None:
        """Start it and wait until it listens. Raises `ActivatorError`."""
        self.files.activator_pid.unlink(missing_ok=True)
        log_size = self.files.activator_log.stat().st_size if self.files.activator_log.exists() else 0
        argv = [sys.executable, "-m", "inference_gateway.activator", str(self.files.directory)]
        child = process.start(argv, self.files.directory, environment(), self.files.activator_log)
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if child.poll() is not None:
                said = _tail(self.files.activator_log, log_size)
                raise ActivatorError(f"the activator ended with {child.returncode} at its start: {said}")
            if self.pid() == child.pid:
                return
            time.sleep(0.02)
        child.kill()
        raise ActivatorError(f"the activator does not listen {_START_S:g} s after its start")

    def stop(self, grace_s: float = 5.0) -> None:
        """Let its requests end for `grace_s`, then end it. Nothing happens if it does not run."""
        found = self._found()
        if found is not None:
            process.stop([found], ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)))

    def _found(self) -> ProcessId | None:
        return process.recorded(self.files.activator_pid, str(self.files.directory))


def _tail(path: Path, start: int) -> str:
    with path.open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace").strip()[-500:]


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
