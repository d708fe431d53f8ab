"""Who serves at the address."""

from dataclasses import replace
from pathlib import Path

from inference_gateway.control import state
from inference_gateway.control.state import GatewayRecord
from inference_gateway.gateway_paths import GatewayPaths

RECORD = GatewayRecord("http://h:1", "h", 1, 77, 5, "/run", 1.0, "n1")


def test_the_address_is_published_and_withdrawn(tmp_path: Path) -> None:
    paths = GatewayPaths(tmp_path)
    assert state.holder(paths) is None
    state.announce(paths, RECORD)
    assert paths.address.read_text() == "http://h:1\n"
    assert state.holder(paths) == RECORD
    state.withdraw(paths, 77, 1.0)
    assert list(tmp_path.iterdir()) == []
    state.withdraw(paths, 77, 1.0)


def test_the_address_of_a_successor_is_not_withdrawn(tmp_path: Path) -> None:
    """Process ids come again, on other nodes at once: the start time tells them apart."""
    paths = GatewayPaths(tmp_path)
    for successor in (replace(RECORD, pid=78), replace(RECORD, since_s=2.0)):
        state.announce(paths, successor)
        state.withdraw(paths, 77, 1.0)
        assert state.holder(paths) == successor
        assert paths.address.exists()
