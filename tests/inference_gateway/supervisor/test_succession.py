"""The job before and the job after."""

from pathlib import Path

import pytest

from inference_gateway import services
from inference_gateway.replicas.places import Places
from inference_gateway.supervisor.succession import Succession
from tests.inference_gateway.control.doubles import FakeSlurm

TEXT = """
name: t
listen: {host: 127.0.0.1}
services: {chat: {replica: {command: "x {port}"}}}
"""
SECTION = services.parse(TEXT, Path("/srv/services.yaml"))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(tmp_path / "state")
    found.make()
    return found


def test_one_successor_waits_and_a_lost_one_is_replaced(places: Places) -> None:
    slurm = FakeSlurm()
    succession = Succession(slurm, places, Path("/srv/services.yaml"), (), own=1)
    for _ in range(2):
        succession.look_now()
        succession.tend(SECTION)
    assert len(slurm.submissions) == 1
    (waiting,) = slurm.known
    slurm.set(waiting, state="CANCELLED")
    succession.tend(SECTION)
    assert len(slurm.submissions) == 1, "not before it is time to look again"
    succession.look_now()
    succession.tend(SECTION)
    assert len(slurm.submissions) == 2
    places.closing.touch()
    slurm.set(max(slurm.known), state="CANCELLED")
    succession.look_now()
    succession.tend(SECTION)
    assert len(slurm.submissions) == 2, "a gateway that closes has none"


def test_outside_of_a_job_there_is_none(places: Places) -> None:
    slurm = FakeSlurm()
    succession = Succession(slurm, places, Path("/srv/services.yaml"), (), own=None)
    succession.tend(SECTION)
    assert slurm.submissions == []
    assert not succession.coming()


def test_it_is_coming_until_its_data_plane_is_there(places: Places) -> None:
    succession = Succession(FakeSlurm(), places, Path("/srv/services.yaml"), (), own=7, handing_over=True)
    assert (succession.coming(), succession.taken_over()) == (True, False)
    places.handover.write_text("7")
    assert succession.coming(), "our own word from our start"
    places.handover.write_text("8")
    assert (succession.coming(), succession.taken_over()) == (False, True)
    succession.handing_over = False
    assert not succession.taken_over()
