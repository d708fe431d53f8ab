"""A private, real Slurm cluster for the tests that need one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, DevClusterError, down, programs, up
from tests.slurm.jobs import empty


def _reason_to_skip(*needed: str) -> str | None:
    if os.geteuid() != 0:
        return "a private cluster needs root"
    try:
        programs.check(needed)
    except DevClusterError as error:
        return str(error)
    return None


@pytest.fixture(scope="session")
def needs_slurm() -> None:
    """Skip where no private cluster can run; scripts/test installs what it takes."""
    if reason := _reason_to_skip("munged", "slurmctld", "slurmd", "sinfo"):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def needs_accounting(needs_slurm: None) -> None:
    """Skip where slurmdbd or MariaDB is missing."""
    if reason := _reason_to_skip("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db"):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def open_tmp() -> Iterator[Path]:
    """A directory that ordinary users can reach, unlike pytest's own, and with a path short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="explsched-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def place(needs_slurm: None, open_tmp: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory for a cluster of one test; whatever runs there afterwards is ended."""
    path = Path(tempfile.mkdtemp(dir=open_tmp))
    path.chmod(0o755)
    yield path
    for state in sorted(path.rglob("cluster.json")):
        down(state.parent)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where jobs report."""
    path = tmp_path / "spool"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture(scope="session")
def cluster(needs_slurm: None, open_tmp: Path) -> Iterator[Cluster]:
    """A running cluster of 4 nodes with 8 GPUs and 32 shards each, shared by all tests."""
    directory = open_tmp / "shared"
    yield up(ClusterSpec(nodes=4, gpus_per_node=8, shards_per_node=32), directory)
    down(directory)


@pytest.fixture(scope="session")
def small(needs_slurm: None, open_tmp: Path) -> Iterator[Cluster]:
    """2 nodes x 4 GPUs; ended jobs are remembered, so that what became of them can be asked."""
    directory = open_tmp / "small"
    spec = ClusterSpec(nodes=2, gpus_per_node=4, shards_per_node=16, extra=(("MinJobAge", "3600"),))
    yield up(spec, directory)
    down(directory)


@pytest.fixture
def client(small: Cluster) -> Iterator[CliClient]:
    """Slurm's commands for the small cluster, which is empty afterwards."""
    yield CliClient(environment=small.env())
    empty(small)
