"""Where the daemons and tools of Slurm lie, and which Debian package brings a missing one."""

from __future__ import annotations

import os
import shutil

from slurm_plugin.devcluster.spec import DevClusterError

PREFIX_VARIABLE = "EXPLSCHED_SLURM_PREFIX"
"""Names the installation prefix of a Slurm built from source; without it Slurm is found on PATH."""

_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sinfo": "slurm-client",
    "scontrol": "slurm-client",
    "sacctmgr": "slurm-client",
    "mariadbd": "mariadb-server",
    "mariadb": "mariadb-client",
    "mariadb-install-db": "mariadb-server",
}


def search_path() -> str:
    """PATH with the Slurm prefix, if one is named, before and the system directories behind."""
    prefix = os.environ.get(PREFIX_VARIABLE)
    own = [f"{prefix}/bin", f"{prefix}/sbin"] if prefix else []
    return os.pathsep.join([*own, os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def find(name: str) -> str:
    """The program's path. Raises `DevClusterError` that names the package to install."""
    path = shutil.which(name, path=search_path())
    if path is None:
        raise DevClusterError(f"{name} is not installed; on Debian: apt-get install {_PACKAGES[name]}")
    return path
