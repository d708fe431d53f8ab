"""The activator's process: start, recognise, stop. It outlives whoever starts it."""

from __future__ import annotations

import http.client
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

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
        said_before = self.files.activator_log.stat().st_size if self.files.activator_log.exists() else 0
        argv = [sys.executable, "-m", "inference_gateway.activator", str(self.files.directory)]
        child = process.start(argv, self.files.directory, environment(), self.files.activator_log)
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if child.poll() is not None:
                said = _tail(self.files.activator_log, said_before)
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
