"""A private cluster as its directory describes it: what it is, whether it runs, how to talk to it."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Self

from msgspec import Struct, ValidationError, convert, to_builtins

from explsched.atomic_file import replace_file
from explsched.process import ProcessId
from slurm_plugin.devcluster import machine
from slurm_plugin.devcluster.product import Product
from slurm_plugin.devcluster.spec import ClusterSpec, DevClusterError, Layout, ProductState


class State(StrEnum):
    """Whether a cluster is usable."""

    RUNNING = "running"
    """Every daemon runs."""
    DEGRADED = "degraded"
    """Some daemon has died."""
    STALE = "stale"
    """No daemon runs; what is left is a directory."""


class Status(Struct, frozen=True):
    """What runs and what does not, by the names of the daemons (`munged`, `slurmctld`, `slurmd.n1`, ...)."""

    state: State
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
        state = State.STALE if not alive else State.DEGRADED if dead else State.RUNNING
        return Status(state, alive, dead)

    @property
    def state(self) -> State:
        """`status().state`."""
        return self.status().state


def load(directory: Path) -> Cluster:
    """`Cluster.load`."""
    return Cluster.load(directory)
