"""Who serves at the address."""

from dataclasses import replace
from pathlib import Path

from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.supervisor import jobs as handover
from inference_gateway.supervisor.jobs import GatewayRecord

RECORD = GatewayRecord("http://h:1", "h", 1, 77, 5, "/run", 1.0, "n1")


def test_the_address_is_given_and_taken_back(tmp_path: Path) -> None:
    paths = GatewayPaths(tmp_path)
    assert handover.holder(paths) is None
    handover.announce(paths, RECORD)
    assert paths.address.read_text() == "http://h:1\n"
    assert handover.holder(paths) == RECORD
    handover.withdraw(paths, 77, 1.0)
    assert list(tmp_path.iterdir()) == []
    handover.withdraw(paths, 77, 1.0)


def test_that_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    """Process ids come again, on other nodes at once: the start time tells them apart."""
    paths = GatewayPaths(tmp_path)
    for successor in (replace(RECORD, pid=78), replace(RECORD, since_s=2.0)):
        handover.announce(paths, successor)
        handover.withdraw(paths, 77, 1.0)
        assert handover.holder(paths) == successor
        assert paths.address.exists()
