"""Processes that outlive whoever starts them: start, recognise, signal and stop exactly those.

A process is known by its pid and its start time: a recycled pid is another process. Not for what runs inside jobs,
which has the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil
from msgspec import Struct

Steps = Sequence[tuple[signal.Signals, float]]
"""Signals in the order in which they are sent, each with the seconds that processes have to end after it."""

TERM_THEN_KILL: Steps = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))

_POLL_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# Children are kept so that they can be collected when they end: as zombies they would linger in a long-lived parent.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


class ProcessId(Struct, frozen=True):
    """A process of this machine. `start_ticks` is its start time in clock ticks since boot, as in /proc/PID/stat."""

    name: str
    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        found = identify(self.pid)
        return found is not None and found.start_ticks == self.start_ticks


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now; None if there is none, or only a zombie."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return None
            # psutil adds the time of boot, which changes with the clock: identities that are kept in files must not.
            since_boot_s = process.create_time() - psutil.boot_time()
            return ProcessId(process.name(), pid, round(since_boot_s * _TICKS_PER_S))
    except psutil.NoSuchProcess:
        return None


def started_s(pid: int) -> float | None:
    """When a process started, in seconds since the epoch; None if it is gone, or hidden from us."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def recorded(pid_file: Path, argument: str) -> ProcessId | None:
    """The process whose pid is in the file, if it runs with this argument; a recycled pid does not.

    Nor does one that is hidden from us (a /proc with `hidepid`), which is another user's.
    """
    collect_children()
    try:
        pid = int(pid_file.read_text(encoding="ascii").split()[0])
        found = identify(pid)
        return found if found is not None and argument in psutil.Process(pid).cmdline() else None
    except (FileNotFoundError, psutil.Error, ValueError, IndexError):
        return None


def start(
    argv: Sequence[str], directory: Path, environment: Mapping[str, str], log: Path, output: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that it outlives the caller's terminal. Raises OSError.

    Its errors are appended to `log`, as is its output unless `output` is a file descriptor for it.
    """
    with log.open("ab") as errors:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=errors if output is None else output,
            stderr=errors,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    _CHILDREN[child.pid] = child
    return child


def collect_children() -> None:
    """Collect those processes of `start` that have ended."""
    for pid, child in tuple(_CHILDREN.items()):
        if child.poll() is not None:
            del _CHILDREN[pid]


def send(process: ProcessId, number: signal.Signals) -> None:
    """Send a signal to this very process; nothing happens if it has ended. Raises PermissionError."""
    try:
        handle = os.pidfd_open(process.pid)  # from here on the pid cannot be recycled
    except ProcessLookupError:
        return
    try:
        if process.is_alive():
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def stop(processes: Iterable[ProcessId], steps: Steps = TERM_THEN_KILL) -> tuple[ProcessId, ...]:
    """Send each signal in turn and give it its seconds, until all have ended; returns those that have not."""
    alive = _alive(processes)
    for number, patience_s in steps:
        for process in alive:
            send(process, number)
        deadline_s = time.monotonic() + patience_s
        while (alive := _alive(alive)) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    return alive


def _alive(processes: Iterable[ProcessId]) -> tuple[ProcessId, ...]:
    collect_children()
    return tuple(process for process in processes if process.is_alive())
