"""The activator's process: start, recognise, stop. It outlives whoever starts it."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from explsched import process
from explsched.process import ProcessId
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.process import environment
from inference_gateway.errors import ActivatorError

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
