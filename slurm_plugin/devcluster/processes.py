"""Starts, recognises and ends the processes of one private cluster, and no others.

A process is known by its pid and its start time, so that a recycled pid is never signalled. Processes that Slurm
starts (slurmstepd, jobs) are recognised by what only this cluster puts into their environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "EXPLSCHED_DEVCLUSTER"
"""Environment variable of the daemons; slurmstepd inherits it from slurmd."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process this project started. `start_ticks` is field 22 of /proc/PID/stat."""

    name: str
    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        found = _stat(self.pid)
        return found is not None and found.start_ticks == self.start_ticks and found.state != "Z"


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    start_ticks: int


def start(name: str, argv: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
    """Start a daemon in a session of its own, output appended to `log`."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
    _CHILDREN[child.pid] = child
    found = _stat(child.pid)
    return Process(name, child.pid, found.start_ticks if found else 0)


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def members(root: Path, cluster_name: str) -> set[int]:
    """Pids of slurmstepd and job processes of the cluster, their descendants included."""
    marks = (f"{MARKER}={root}".encode(), f"SLURM_CLUSTER_NAME={cluster_name}".encode())
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for pid in _pids():
        status = _stat(pid)
        if status is None:
            continue
        children.setdefault(status.parent, []).append(pid)
        if any(mark in _environment(pid) for mark in marks):
            found.add(pid)
    open_ = list(found)
    while open_:
        for child in children.get(open_.pop(), ()):
            if child not in found:
                found.add(child)
                open_.append(child)
    return found - {os.getpid()} - _ancestors(os.getpid())


def stop(processes: Iterable[Process], patience_s: float = 5.0) -> None:
    """End processes: SIGTERM, then SIGKILL for those that are still there after `patience_s`."""
    alive = [process for process in processes if process.is_alive()]
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        for process in alive:
            _signal(process.pid, number)
        deadline = time.monotonic() + wait_s
        while alive and time.monotonic() < deadline:
            _reap()
            alive = [process for process in alive if process.is_alive()]
            if alive:
                time.sleep(0.02)
        if not alive:
            return


def kill_members(root: Path, cluster_name: str) -> None:
    """SIGKILL everything that `members` finds, until nothing new appears."""
    for _round in range(50):
        pids = {pid for pid in members(root, cluster_name) if (s := _stat(pid)) is not None and s.state != "Z"}
        if not pids:
            return
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.02)


def _reap() -> None:
    """Collect children that have ended, so that they do not linger as zombies of a long-lived parent."""
    for pid, child in tuple(_CHILDREN.items()):
        if child.poll() is not None:
            del _CHILDREN[pid]


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself in the meantime, which is what was wanted


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208  twice as fast


def _stat(pid: int) -> _Stat | None:
    try:
        # The command name may hold spaces and parentheses: split behind the last one.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Stat(fields[0], int(fields[1]), int(fields[19]))


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []  # gone, or not ours to look at and so not ours to end


def _ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    status = _stat(pid)
    while status is not None and status.parent > 0 and status.parent not in found:
        found.add(status.parent)
        status = _stat(status.parent)
    return found
