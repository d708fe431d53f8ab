"""A private cluster: its shape, where its files lie, whether it runs, how to talk to it, and explsched on it.

All of explsched on a cluster is in one directory: spool, configuration, daemon, and what jobs and commands must know.
`sexplsched cluster up` puts it beside Slurm; tests and benchmarks run it with settings of their own.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

import yaml
from msgspec import Struct, ValidationError, convert, to_builtins

from explsched import interpreter
from explsched import spool as spools
from explsched.atomic_file import replace_file
from explsched.process import ProcessId
from slurm_plugin import config, sighting
from slurm_plugin.devcluster import machine
from slurm_plugin.devcluster.machine import DevClusterError

DAEMON = "sexplschedd"
"""The daemon's name among those of a cluster."""

SPOOL_VARIABLE = "EXPLSCHED_SPOOL"
"""Names the spool for jobs, see `explsched.progress`."""

_TO_STOP_S = 60.0


class Product(Struct, frozen=True):
    """The product's files, all below `directory`."""

    directory: Path

    SETTINGS: ClassVar[Mapping[str, object]] = {"interval_s": 5.0, "utility": {"quantum_s": 60.0}}
    """explsched.yaml of a private cluster, but for its paths: shorter times than a site's, for trying out."""

    @property
    def config(self) -> Path:
        """explsched.yaml."""
        return self.directory / "explsched.yaml"

    @property
    def spool(self) -> Path:
        """Where jobs report their progress."""
        return self.directory / "progress"

    @property
    def task_prolog(self) -> Path:
        """What slurmd asks before each task: it gives jobs the spool, whatever their environment."""
        return self.directory / "task_prolog"

    @property
    def log(self) -> Path:
        """Log of a daemon that `daemon` started."""
        return self.directory / "sexplschedd.log"

    def install(self, settings: Mapping[str, object] = SETTINGS) -> None:
        """Make the directory, the spool and the files. `settings` are those of explsched.yaml, without the spool."""
        for path, mode in ((self.directory, 0o755), (self.spool, spools.MODE)):
            path.mkdir()
            path.chmod(mode)  # whatever the umask: jobs of ordinary users report here
        self.configure(settings)
        told = (
            f'[ -n "${name}" ] || echo {shlex.quote(f"export {name}={value}")}\n' for name, value in self.env().items()
        )
        self.task_prolog.write_text("#!/bin/sh\n" + "".join(told), encoding="utf-8")
        self.task_prolog.chmod(0o755)

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write explsched.yaml anew; a running daemon takes it at SIGHUP."""
        own = {
            "progress": {"spool": str(self.spool)},
            "order": {"site_factor_file": str(self.directory / "site_factors.json")},
            "audit": {"file": str(self.directory / "audit.jsonl")},
            "state": {"directory": str(self.directory / "state"), "socket": str(self.directory / "state.sock")},
        }
        chosen = {name: section for name, section in settings.items() if isinstance(section, Mapping)}
        sections = {name: {**chosen.get(name, {}), **section} for name, section in own.items()}
        text = yaml.safe_dump({**settings, **sections}, sort_keys=False)
        self.config.write_text(text, encoding="utf-8")
        self.config.chmod(0o644)

    def env(self) -> dict[str, str]:
        """What to add to an environment so that commands and jobs find the product."""
        return {config.PATH_VARIABLE: str(self.config), SPOOL_VARIABLE: str(self.spool)}

    def daemon_argv(self) -> Sequence[str]:
        """The command that runs the daemon."""
        return interpreter.of_module("slurm_plugin.daemon", "--config", str(self.config))

    def daemon_works(self) -> bool:
        """Whether a daemon has claimed the cluster."""
        return sighting.last_heartbeat(self.spool) is not None

    @contextmanager
    def daemon(self, environment: Mapping[str, str], niceness: int = 0) -> Iterator[subprocess.Popen[bytes]]:
        """The real daemon for as long as the block lasts. It logs to `log`.

        `environment` says how Slurm is reached: `Cluster.env`. systemd's unit gives the daemon a niceness of 10.
        """
        argv = ["nice", f"--adjustment={niceness}", *self.daemon_argv()]
        with self.log.open("ab") as output:
            process = subprocess.Popen(argv, env=dict(environment), stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=_TO_STOP_S)


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
    over the earlier; an Include names a file beside it or by its whole path. `files` are (name, text) of files beside
    it, such as plugstack.conf. `product` is how much of
    explsched there is. Raises `DevClusterError` for numbers outside the accepted range, and for a ClusterName.
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
        if any(key.lower() == "clustername" for key, _ in self.extra):
            raise DevClusterError("ClusterName cannot be set: `down` knows the cluster's jobs by the name it is given")
        if self.is_linear and self.gpus_per_node and self.shards_per_node:
            raise DevClusterError(
                f"shards_per_node is {self.shards_per_node}, with SelectType=select/linear it must be 0: "
                "Slurm shares GPUs with select/cons_tres only"
            )
        if self.gpus_per_node and self.shards_per_node % self.gpus_per_node:
            raise DevClusterError(
                f"shards_per_node is {self.shards_per_node}, "
                f"it must be a multiple of gpus_per_node ({self.gpus_per_node})"
            )

    @property
    def is_linear(self) -> bool:
        """Whether `extra` has Slurm give every job whole nodes."""
        chosen = [value for key, value in self.extra if key.lower() == "selecttype"]
        return chosen[-1:] == ["select/linear"]

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
        """MariaDB's data, temporary tables and socket; closed to everybody but root."""
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


class ClusterHealth(StrEnum):
    """Whether a cluster is usable."""

    RUNNING = "running"
    """Every daemon runs."""
    DEGRADED = "degraded"
    """Some daemon has died."""
    STALE = "stale"
    """No daemon runs; what is left is a directory."""


class Status(Struct, frozen=True):
    """What runs and what does not, by the names of the daemons (`munged`, `slurmctld`, `slurmd.n1`, ...)."""

    state: ClusterHealth
    alive: tuple[ProcessId, ...]
    dead: tuple[ProcessId, ...]


class Cluster(Struct, frozen=True):
    """A private cluster. `prefix` is where its Slurm is installed, empty for the one on PATH."""

    layout: Layout
    spec: ClusterSpec
    daemons: tuple[ProcessId, ...]
    prefix: str = ""

    @classmethod
    def load(cls, directory: Path) -> Self:
        """The cluster of a directory. Raises `DevClusterError` if it holds none."""
        layout = Layout(directory.resolve())
        try:
            data = json.loads(layout.state.read_text(encoding="utf-8"))
            spec = convert(data["spec"], ClusterSpec)
            daemons = convert(data["daemons"], tuple[ProcessId, ...])
            return cls(layout, spec, daemons, data.get("prefix", ""))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DevClusterError(f"{directory}: no cluster lies here ({layout.state.name} is missing)") from error
        except PermissionError as error:
            raise DevClusterError(f"{layout.state}: may not be read by this user") from error
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise DevClusterError(f"{layout.state}: cannot be understood: {error}") from error

    def save(self) -> None:
        """Record the cluster in its directory, in one step: a reader finds the old record or the new one."""
        data = {
            "spec": to_builtins(self.spec),
            "daemons": [to_builtins(daemon) for daemon in self.daemons],
            "prefix": self.prefix,
        }
        replace_file(self.layout.state, json.dumps(data, indent=1), mode=0o644)

    def env(self) -> dict[str, str]:
        """What to add to an environment so that Slurm's commands, and explsched's, talk to this cluster."""
        added = {"SLURM_CONF": str(self.layout.slurm_conf)}
        if self.product:
            added |= self.product.env()
        if self.prefix:
            added["PATH"] = machine.search_path(self.prefix)
        return added

    @property
    def product(self) -> Product | None:
        """The cluster's explsched, if it has one."""
        return None if self.spec.product is ProductState.ABSENT else Product(self.layout.product)

    def status(self) -> Status:
        """What runs at this moment, by the recorded pids and start times."""
        alive = tuple(daemon for daemon in self.daemons if daemon.is_alive())
        dead = tuple(daemon for daemon in self.daemons if daemon not in alive)
        # Without any daemon on record `up` was ended before it had started one.
        state = ClusterHealth.STALE if not alive else ClusterHealth.DEGRADED if dead else ClusterHealth.RUNNING
        return Status(state, alive, dead)

    @property
    def state(self) -> ClusterHealth:
        """`status().state`."""
        return self.status().state


def load(directory: Path) -> Cluster:
    """`Cluster.load`."""
    return Cluster.load(directory)
