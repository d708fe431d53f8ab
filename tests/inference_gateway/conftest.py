"""Three model servers for the whole run; starting one takes longer than most tests."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.inference_gateway.rig import Replica, replicas


@pytest.fixture(scope="session")
def _servers() -> Iterator[list[Replica]]:
    with replicas("r1", "r2", "r3") as started:
        yield started


@pytest.fixture
def servers(_servers: list[Replica]) -> list[Replica]:
    """r1, r2 and r3, well-behaved."""
    for server in _servers:
        server.behave()
    return _servers


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A short path: Unix sockets have at most 107 characters."""
    with TemporaryDirectory(prefix="igw") as made:
        yield Path(made)
