"""Where the daemons and tools of Slurm lie, and which Debian package brings a missing one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

from slurm_plugin.client.capabilities import SlurmVersion
from slurm_plugin.devcluster.spec import DevClusterError

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
