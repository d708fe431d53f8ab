"""Starts, recognises and ends the processes of one private cluster, and no others.

A process is known by its pid and its start time, and is signalled through a pidfd opened before that time is checked:
a recycled pid is never signalled. Processes that Slurm starts (slurmstepd, jobs) are recognised by what only this
cluster gives them: environment variables, open files in its directory, and their parents. A name is never enough.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from slurm_plugin.devcluster.spec import DevClusterError

MARKER = "EXPLSCHED_DEVCLUSTER"
"""Environment variable of the daemons, holding the cluster's directory; jobs do not inherit it."""

_GONE = (FileNotFoundError, ProcessLookupError)
_PATIENCE_S = 5.0


class Process(Struct, frozen=True):
    """A process of a cluster. `start_ticks` is field 22 of /proc/PID/stat: clock ticks since boot."""

    name: str
    pid: int
    start_ticks: int

    def is_alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        found = _stat(self.pid)
        return found is not None and found.start_ticks == self.start_ticks and found.state not in "ZX"


class _Stat(Struct, frozen=True):
    name: str
    state: str
    parent: int
    start_ticks: int


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


def start(name: str, argv: Sequence[str], log: Path, directory: Path, environment: Mapping[str, str]) -> Process:
    """Start a daemon in a session of its own, output appended to `log`, so that it outlives the caller's terminal."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    _CHILDREN[child.pid] = child
    # Not reaped before here, so the entry exists even if the daemon has ended already.
    found = _stat(child.pid)
    return Process(name, child.pid, found.start_ticks if found else 0)


def members(root: Path, cluster_name: str, known: Iterable[Process] = ()) -> frozenset[Process]:
    """Every process that belongs to the cluster at this moment: `known`, daemons, slurmstepd, jobs, descendants.

    The caller and its ancestors are left out, for the case that it runs within a job of this very cluster.
    """
    table = {pid: stat for pid in _pids() if (stat := _stat(pid)) is not None and stat.state not in "ZX"}
    daemon_mark = f"{MARKER}={root}".encode()
    # Both, because the shell of an `salloc` has the first alone: it is the user's terminal and no job's process.
    job_marks = (f"SLURM_CLUSTER_NAME={cluster_name}".encode(), b"SLURMD_NODENAME=")
    found = {process.pid for process in known if process.is_alive()}
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
        if _bears(pid, daemon_mark, job_marks) or _is_step_daemon(pid, root):
            found.add(pid)
    unseen = list(found)
    while unseen:
        for child in children.get(unseen.pop(), ()):
            if child not in found:
                found.add(child)
                unseen.append(child)
    own = _self_and_ancestors(table)
    return frozenset(Process(table[pid].name, pid, table[pid].start_ticks) for pid in found - own if pid in table)


def stop(processes: Iterable[Process]) -> None:
    """End processes: SIGTERM, then SIGKILL for those still there after some seconds.

    Raises:
        DevClusterError: a process outlives SIGKILL.

    """
    alive = [process for process in processes if process.is_alive()]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in alive:
            _signal(process, number)
        deadline_s = time.monotonic() + _PATIENCE_S
        while alive and time.monotonic() < deadline_s:
            _reap()
            alive = [process for process in alive if process.is_alive()]
            if alive:
                time.sleep(0.02)
    if alive:
        raise DevClusterError(f"could not be ended: {_listing(alive)}")


def kill_members(root: Path, cluster_name: str, known: Iterable[Process] = ()) -> None:
    """SIGKILL everything `members` finds until nothing is left: a job may start processes meanwhile.

    Raises:
        DevClusterError: something outlives it.

    """
    left = members(root, cluster_name, known)
    deadline_s = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline_s:
        for process in left:
            _signal(process, signal.SIGKILL)
        time.sleep(0.02)
        _reap()
        left = members(root, cluster_name, left)
    if left:
        raise DevClusterError(f"could not be ended: {_listing(left)}")


def _listing(processes: Iterable[Process]) -> str:
    return ", ".join(f"{process.name} (pid {process.pid})" for process in processes)


def _reap() -> None:
    """Collect children that have ended, so that they do not linger as zombies of a long-lived parent."""
    for pid, child in tuple(_CHILDREN.items()):
        if child.poll() is not None:
            del _CHILDREN[pid]


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return  # it ended by itself in the meantime, which is what was wanted
    try:
        if process.is_alive():
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208  twice as fast


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except _GONE:
        return None
    # The command name may hold spaces and parentheses: split behind the last one.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return _Stat(head.partition("(")[2], fields[0], int(fields[1]), int(fields[19]))


def _bears(pid: int, daemon_mark: bytes, job_marks: tuple[bytes, bytes]) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (*_GONE, PermissionError):
        return False  # gone, or not ours to look at and so not ours to end
    if daemon_mark in variables:
        return True
    cluster_mark, node_mark = job_marks
    return cluster_mark in variables and any(variable.startswith(node_mark) for variable in variables)


def _is_step_daemon(pid: int, root: Path) -> bool:
    """Whether it is a slurmstepd with files of this cluster open.

    slurmstepd of 25.11 writes its title over its environment, and one whose slurmd was killed has no parent to tell.
    """
    try:
        # Debian's program is called slurmstepd-wlm.
        if not Path(f"/proc/{pid}/exe").readlink().name.startswith("slurmstepd"):
            return False
        targets = [Path(f"/proc/{pid}/cwd").readlink()]
        targets += [Path(f"/proc/{pid}/fd/{entry}").readlink() for entry in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208
    except (*_GONE, PermissionError):
        return False
    return any(target.is_relative_to(root) for target in targets)


def _self_and_ancestors(table: Mapping[int, _Stat]) -> set[int]:
    pid, found = os.getpid(), set[int]()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found
