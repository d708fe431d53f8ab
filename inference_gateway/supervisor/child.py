"""A process that the supervisor keeps running."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from explsched import log, process
from explsched.process import TERM_THEN_KILL, Steps

_LOG = logging.getLogger("explsched.gateway")
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0


@dataclass(slots=True)
class Child:
    """A process to keep running. It is restarted with exponential backoff, which is reset after `_STEADY_S`."""

    name: str
    command: Sequence[str]
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _began_s: float = 0.0
    _due_s: float = 0.0
    _wait_s: float = _FIRST_WAIT_S

    @property
    def pid(self) -> int | None:
        """Its process id; None while it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def keep_running(self) -> None:
        """Start it, or restart it if it has ended and its backoff is over."""
        now_s = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            if now_s - self._began_s > _STEADY_S:
                self._wait_s = _FIRST_WAIT_S
            log.event(
                _LOG, logging.ERROR, "ended", process=self.name, status=self._process.returncode, wait_s=self._wait_s
            )
            self._process, self._due_s = None, now_s + self._wait_s
            self._wait_s = min(_LONGEST_WAIT_S, 2 * self._wait_s)
        if now_s < self._due_s:
            return
        self._began_s = now_s
        try:
            self._process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL)
        except OSError as error:
            self._due_s = now_s + _LONGEST_WAIT_S
            log.event(_LOG, logging.ERROR, "not started", process=self.name, why=error.strerror or str(error))
            return
        log.event(_LOG, logging.INFO, "running", process=self.name, pid=self._process.pid)

    def end(self, steps: Steps = TERM_THEN_KILL) -> None:
        """Stop it: by default with SIGTERM, and SIGKILL if that does not help."""
        child, self._process = self._process, None
        if child is None or child.poll() is not None:
            return
        if found := process.identify(child.pid):  # None if it has just ended
            process.stop([found], steps)
        child.wait()
