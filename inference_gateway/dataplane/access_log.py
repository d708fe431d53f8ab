"""Writes HAProxy's access log from its pipe to its file, many lines at a time.

HAProxy 2.6 writes a backslash as it came, in a path and nowhere else; JSON wants two.

A disk that is full costs lines, which are counted, and nothing else. If nobody reads the pipe it fills, and HAProxy
drops further lines (`DroppedLogs` in its `show info`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SIZE = 1 << 20
"""Bytes it should hold: the most that Linux allows without privileges."""


def opened(path: Path) -> int:
    """An open file descriptor; the pipe is made if it is not there. Reading never waits. Raises `OSError`."""
    with suppress(FileExistsError):  # left by an HAProxy that has ended, or in use
        os.mkfifo(path, 0o600)
    handle = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    with suppress(PermissionError):  # this user has large pipes enough: a usual one holds 200 lines
        fcntl.fcntl(handle, fcntl.F_SETPIPE_SZ, SIZE)
    return handle


_LOOK_S = 0.5
_REST_S = 0.05
_LOG = logging.getLogger("explsched.gateway.activator")


@dataclass(slots=True)
class AccessLogWriter:
    """The way from an open pipe to a file. `lost_lines` could not be written."""

    source: int
    target: Path
    lost_lines: int = 0
    _ending: threading.Event = field(default_factory=threading.Event)
    _torn: bool = False

    def run(self) -> None:
        """Carry lines until `end`, and then what is in the pipe still."""
        while not self._ending.is_set():
            select.select([self.source], [], [], _LOOK_S)
            if self._carry() < SIZE // 4:
                self._ending.wait(_REST_S)  # let lines gather: one write for all of them
        while self._carry():
            pass

    def end(self) -> None:
        """Let `run` return."""
        self._ending.set()

    def _carry(self) -> int:
        """Carry what is there; the number of bytes."""
        try:
            lines = os.read(self.source, SIZE)
        except BlockingIOError:
            return 0
        try:
            self._write(lines.replace(b"\\", b"\\\\"))
        except OSError as error:
            if not self.lost_lines:
                _LOG.warning("access log: lines are lost, %s: %s", self.target, error.strerror)
            self.lost_lines += lines.count(b"\n")
        return len(lines)

    def _write(self, lines: bytes) -> None:
        # Opened anew each time, so that a file that was moved away or removed is followed by another.
        handle = os.open(self.target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            left = memoryview(b"\n" + lines if self._torn else lines)
            while left:
                written = os.write(handle, left)
                self._torn = True
                left = left[written:]
            self._torn = False
        finally:
            os.close(handle)
