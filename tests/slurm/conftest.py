"""Running private clusters for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from tests.slurm.jobs import empty


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Where jobs report."""
    path = tmp_path / "spool"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often tests of sudden death kill a process: --kills."""
    return int(request.config.getoption("--kills"))


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
