"""Processes that outlive whoever started them, known by a pid file and their command line."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path


def running(pid_file: Path, mark: str) -> int | None:
    """The process id in the file, if that process has the argument `mark`: a recycled id has not."""
    try:
        pid = int(pid_file.read_text(encoding="ascii").split()[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return None
    return pid if mark.encode() in command else None


def stop(pid_file: Path, mark: str, steps: Sequence[tuple[signal.Signals, float]]) -> None:
    """Send each signal in turn and give it its seconds, until the process is gone."""
    for number, patience_s in steps:
        pid = running(pid_file, mark)
        if pid is None:
            return
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return
        finally:
            os.close(handle)
        deadline_s = time.monotonic() + patience_s
        while running(pid_file, mark) == pid and time.monotonic() < deadline_s:
            _reap(pid)
            time.sleep(0.02)


def _reap(pid: int) -> None:
    """Collect a child that has ended; a process of another parent is not ours to collect."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
