"""What a private cluster consists of, and where its files lie."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from explsched.errors import ExplschedError


class DevClusterError(ExplschedError):
    """A private cluster cannot be started, used or stopped."""


class ProductState(StrEnum):
    """How much of explsched a private cluster has."""

    ABSENT = "absent"
    """Slurm alone."""
    INSTALLED = "installed"
    """Jobs report and commands answer, but no daemon steers."""
    RUNNING = "running"
    """The daemon steers, too."""


class ClusterSpec(Struct, frozen=True):
    """Shape of a private cluster.

    Nodes pose as larger than this host, so CPUs and memory are only numbers that Slurm counts. With 0 shards (or 0
    GPUs) the nodes have no shard GRES. `extra` are lines for slurm.conf as (key, value); they win over ours, the later
    over the earlier. `files` are (name, text) of files beside it, such as plugstack.conf. `product` is how much of
    explsched there is. Raises `DevClusterError` for
    numbers outside the accepted range.
    """

    nodes: int = 4
    gpus_per_node: int = 8
    shards_per_node: int = 32
    cpus_per_node: int = 16
    memory_mib_per_node: int = 16000
    accounting: bool = False
    extra: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    product: ProductState = ProductState.ABSENT

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("nodes", self.nodes, 1, 64),
            ("gpus_per_node", self.gpus_per_node, 0, 64),
            ("shards_per_node", self.shards_per_node, 0, 4096),
            ("cpus_per_node", self.cpus_per_node, 1, 1024),
            ("memory_mib_per_node", self.memory_mib_per_node, 1, 1 << 24),
        ):
            if not least <= value <= most:
                raise DevClusterError(f"{name} is {value}, accepted are {least} to {most}")
        if self.gpus_per_node and self.shards_per_node % self.gpus_per_node:
            raise DevClusterError(
                f"shards_per_node is {self.shards_per_node}, "
                f"it must be a multiple of gpus_per_node ({self.gpus_per_node})"
            )

    @property
    def node_names(self) -> tuple[str, ...]:
        """n1, n2, ..."""
        return tuple(f"n{i + 1}" for i in range(self.nodes))


class Layout(Struct, frozen=True):
    """The files of a cluster, all below `root`."""

    root: Path

    PARTS: ClassVar[tuple[str, ...]] = ("etc", "munge", "state", "run", "log", "gpu", "spool", "db", "explsched")
    """The directories below `root` that a cluster makes, and removes when it goes down."""

    @property
    def state(self) -> Path:
        """What runs and in which shape; its presence says that the directory is a cluster's."""
        return self.root / "cluster.json"

    @property
    def slurm_conf(self) -> Path:
        """The cluster's slurm.conf; its neighbours are gres.conf and slurmdbd.conf."""
        return self.root / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """Where munged listens."""
        return self.root / "munge" / "munge.socket"

    @property
    def database(self) -> Path:
        """MariaDB's data and its socket; closed to everybody but root."""
        return self.root / "db"

    @property
    def product(self) -> Path:
        """The files of explsched: see `Product`."""
        return self.root / "explsched"

    @property
    def logs(self) -> Path:
        """One log file per daemon."""
        return self.root / "log"

    @property
    def cluster_name(self) -> str:
        """A name no other directory's cluster has; Slurm puts it into the environment of every job."""
        return "explsched_" + hashlib.sha256(str(self.root).encode()).hexdigest()[:10]
