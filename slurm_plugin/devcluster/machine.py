"""What a private cluster needs of its host: Slurm's programs, free TCP ports, time, and processes of its own.

Its processes are found and ended, and no others. Those that Slurm starts (slurmstepd, jobs) are recognised by what only
this cluster gives them: environment variables, open files in its directory, and their parents. A name is never enough.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL

import psutil

from explsched import process
from explsched.errors import ExplschedError
from explsched.process import ProcessId
from slurm_plugin.client.capabilities import SlurmVersion


class DevClusterError(ExplschedError):
    """A private cluster cannot be started, used or stopped."""


PREFIX_VARIABLE = "EXPLSCHED_SLURM_PREFIX"
"""Names the installation prefix of a Slurm built from source; without it Slurm is found on PATH.

Configure it with --enable-multiple-slurmd, as Debian does. Otherwise everything works but srun across nodes: the
slurmds share one munged, which takes the second decoding of a job's credential for a replay ("_verify_signature:
failed decode").
"""

_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sinfo": "slurm-client",
    "scontrol": "slurm-client",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
}


def prefix() -> str:
    """The prefix named by the environment, or the empty string."""
    return os.environ.get(PREFIX_VARIABLE, "")


def search_path(prefix: str) -> str:
    """PATH with the Slurm prefix, if not empty, before and the system directories behind."""
    own = [f"{prefix}/bin", f"{prefix}/sbin"] if prefix else []
    return os.pathsep.join([*own, os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def find(name: str) -> str:
    """The program's path. Raises `DevClusterError` that names the package to install."""
    path = shutil.which(name, path=search_path(prefix()))
    if path is None:
        raise DevClusterError(f"{name} is not installed; on Debian: apt-get install {_PACKAGES[name]}")
    return path


def check(names: Iterable[str]) -> None:
    """Raise `DevClusterError` naming all packages to install, before anything is started, if a program is missing."""
    missing = [name for name in names if shutil.which(name, path=search_path(prefix())) is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[name] for name in missing}))
        raise DevClusterError(f"not installed: {', '.join(missing)}; on Debian: apt-get install {packages}")


def slurm_version() -> SlurmVersion:
    """The Slurm that will be started. Raises `DevClusterError` if it does not tell."""
    done = subprocess.run([find("slurmctld"), "-V"], capture_output=True, text=True, check=False)
    try:
        return SlurmVersion.read(done.stdout)
    except ValueError as error:
        raise DevClusterError(f"{find('slurmctld')} -V: {done.stderr.strip() or error}") from error


# Below the range from which Linux picks the ports of outgoing connections (32768 on): one of those could otherwise take
# a port between its choice and the start of its daemon.
_FIRST, _LAST = 20000, 32000


@contextmanager
def reserved(count: int) -> Iterator[tuple[int, ...]]:
    """Reserve `count` ports that nobody uses. Within the block no other cluster gets them.

    Reserving means holding a bound socket that does not listen. Slurm's daemons bind with SO_REUSEADDR, which Linux
    lets share such a port; the search of another `reserved` binds without it and is refused.

    Raises:
        DevClusterError: fewer than `count` ports are free.

    """
    with ExitStack() as held:
        ports: list[int] = []
        candidates = list(range(_FIRST, _LAST))
        random.shuffle(candidates)
        for port in candidates:
            if len(ports) == count:
                break
            probe = socket.socket()
            try:
                # All addresses, because that is what Slurm's daemons bind.
                probe.bind(("", port))
            except OSError:
                probe.close()
                continue  # taken, which is what the search is there to find out
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.enter_context(probe)
            ports.append(port)
        if len(ports) < count:
            raise DevClusterError(f"only {len(ports)} of {count} TCP ports are free in {_FIRST} to {_LAST - 1}")
        yield tuple(ports)


PATIENCE_S = 60.0
_POLL_S = 0.2


def until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    """Return when `condition` holds. Raises `DevClusterError` that names `what`, in words, after `patience_s`."""
    deadline_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise DevClusterError(f"waited {patience_s:.0f} s in vain: {what}")
        time.sleep(_POLL_S)


MARKER = "EXPLSCHED_DEVCLUSTER"
"""Environment variable of the daemons, holding the cluster's directory; jobs do not inherit it."""

_TO_END_S = 5.0
_END_POLL_S = 0.02


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
    deadline_s = time.monotonic() + _TO_END_S
    while left and time.monotonic() < deadline_s:
        for one in left:
            process.send(one, SIGKILL)
        time.sleep(_END_POLL_S)
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
