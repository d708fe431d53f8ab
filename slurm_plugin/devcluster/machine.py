"""What a private cluster needs of its host: Slurm's programs, free TCP ports, and time."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from explsched.errors import ExplschedError
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
