"""Finds and ends the processes of one private cluster, and no others.

Processes that Slurm starts (slurmstepd, jobs) are recognised by what only this cluster gives them: environment
variables, open files in its directory, and their parents. A name is never enough.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from signal import SIGKILL

import psutil

from explsched import process
from explsched.process import ProcessId
from slurm_plugin.devcluster.machine import DevClusterError

MARKER = "EXPLSCHED_DEVCLUSTER"
"""Environment variable of the daemons, holding the cluster's directory; jobs do not inherit it."""

_PATIENCE_S = 5.0
_LOOK_S = 0.02


def start(name: str, argv: Sequence[str], log: Path, directory: Path, environment: Mapping[str, str]) -> ProcessId:
    """Start a daemon that outlives the caller's terminal, output appended to `log`."""
    child = process.start(argv, directory, environment, log)
    found = process.identify(child.pid)  # none if it has ended already
    return ProcessId(name, child.pid, found.start_ticks if found else 0)


def members(root: Path, cluster_name: str, known: Iterable[ProcessId] = ()) -> frozenset[ProcessId]:
    """Every process that belongs to the cluster at this moment: `known`, daemons, slurmstepd, jobs, descendants.

    The caller and its ancestors are left out, for the case that it runs within a job of this very cluster.
    """
    found = {one.pid for one in known if one.is_alive()}
    children: dict[int, list[int]] = {}
    for one in psutil.process_iter():
        try:
            children.setdefault(one.ppid(), []).append(one.pid)
        except psutil.NoSuchProcess:
            continue
        if _belongs(one, root, cluster_name):
            found.add(one.pid)
    unseen = list(found)
    while unseen:
        new = [child for child in children.get(unseen.pop(), ()) if child not in found]
        found.update(new)
        unseen += new
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    alive = map(process.identify, found - own)
    return frozenset(one for one in alive if one is not None)


def stop(processes: Iterable[ProcessId]) -> None:
    """End processes: SIGTERM, then SIGKILL for those still there after some seconds.

    Raises:
        DevClusterError: a process outlives SIGKILL.

    """
    if left := process.stop(processes):
        raise DevClusterError(f"could not be ended: {_listing(left)}")


def kill_members(root: Path, cluster_name: str, known: Iterable[ProcessId] = ()) -> None:
    """SIGKILL everything `members` finds until nothing is left: a job may start processes meanwhile.

    Raises:
        DevClusterError: something outlives it.

    """
    left = members(root, cluster_name, known)
    deadline_s = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline_s:
        for one in left:
            process.send(one, SIGKILL)
        time.sleep(_LOOK_S)
        process.collect_children()
        left = members(root, cluster_name, left)
    if left:
        raise DevClusterError(f"could not be ended: {_listing(left)}")


def _listing(processes: Iterable[ProcessId]) -> str:
    return ", ".join(f"{one.name} (pid {one.pid})" for one in processes)


def _belongs(one: psutil.Process, root: Path, cluster_name: str) -> bool:
    """Whether its environment or its files are the cluster's. Of others' processes that cannot be seen, none is."""
    try:
        return _has_marks(one.environ(), root, cluster_name) or _is_step_daemon(one, root)
    except psutil.Error:
        return False  # gone, or not ours to look at and so not ours to end


def _has_marks(variables: Mapping[str, str], root: Path, cluster_name: str) -> bool:
    if variables.get(MARKER) == str(root):
        return True
    # Both, because the shell of an `salloc` has the first alone: it is the user's terminal and no job's process.
    return variables.get("SLURM_CLUSTER_NAME") == cluster_name and "SLURMD_NODENAME" in variables


def _is_step_daemon(one: psutil.Process, root: Path) -> bool:
    """Whether it is a slurmstepd with files of this cluster open.

    slurmstepd of 25.11 writes its title over its environment, and one whose slurmd was killed has no parent to tell.
    """
    # Debian's program is called slurmstepd-wlm.
    if not Path(one.exe()).name.startswith("slurmstepd"):
        return False
    return any(Path(path).is_relative_to(root) for path in (one.cwd(), *(file.path for file in one.open_files())))
