"""A gateway on the tests' cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slurm_plugin.devcluster import Cluster
from slurm_plugin.devcluster.machine import reserved
from testkit import gateway
from testkit.gateway import Gateway


@contextmanager
def in_foreground(cluster: Cluster, directory: Path, **service: Any) -> Iterator[Gateway]:
    """A gateway that runs here; ended at the end with all that it started."""
    with (
        reserved(1) as (port,),  # HAProxy shares it
        gateway.in_foreground(cluster.env(), directory, port, **service) as found,
    ):
        yield found
