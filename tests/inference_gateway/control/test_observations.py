"""What is known of a replica: who is asked, what is read, and when Slurm is looked at again."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from inference_gateway.control import observations
from inference_gateway.control.observations import Question, Readiness, ReplicaObserver
from inference_gateway.control.replica import Phase, Replica, ReplicaObservation
from inference_gateway.control.slurm_sync import SlurmSync
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ServerState
from inference_gateway.replicas import reports
from inference_gateway.replicas.reports import Registration
from tests.inference_gateway.control.doubles import AtOnce, job
from tests.inference_gateway.control.test_service import section
from tests.slurm_kit import FakeSlurm

TOLD = Registration("n1", 20001, 7)


class Scene:
    """One service `chat`, the directory of its replica `chat-1`, and the questions that were asked."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths = GatewayPaths(directory)
        self.paths.make()
        self.paths.replica("chat-1").mkdir()
        self.slurm = FakeSlurm()
        self.slurm.known[7] = job(7, "chat-1", "igw:g:chat:g1", state="RUNNING")
        self.slurm_sync = SlurmSync(self.slurm, "g", 300.0, AtOnce())
        self.slurm_sync.listing = self.slurm_sync.list_jobs(100.0)
        readiness = Readiness(AtOnce(), ssl.create_default_context())
        self.observer = ReplicaObserver({"chat": section()}, self.paths, self.slurm_sync, readiness)
        self.asked: list[Question] = []
        self.hurried = 0
        monkeypatch.setattr(observations, "ready", lambda question, _context: self.asked.append(question) or True)  # type: ignore[func-returns-value]
        monkeypatch.setattr(self.slurm_sync, "hurry", self._hurry)

    def _hurry(self) -> None:
        self.hurried += 1

    def of(self, replica: Replica, servers: list[ServerState] | None = None) -> ReplicaObservation:
        ((same, seen),) = self.observer.gather([replica], servers or (), plane_answers=servers is not None)
        assert same is replica
        return seen


def replica(phase: Phase, **fields: Any) -> Replica:
    return Replica("chat", "chat-1", "g1", phase, 1.0, 1.0, **fields)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_an_observation_combines_slurm_reports_and_data_plane(scene: Scene) -> None:
    server = ServerState("chat", "chat-1", "n1", 1, "up", 3)
    reports.leave(scene.paths.replica("chat-1"))
    seen = scene.of(replica(Phase.SERVING, port=20001), [server])
    assert seen == ReplicaObservation(
        scene.slurm.known[7], 100.0, None, leaving=True, answered=False, server_up=True, in_flight=3, plane_answers=True
    )


@pytest.mark.parametrize(("state", "up"), [("up", True), ("draining", True), ("maintenance", True), ("down", False)])
def test_only_the_state_down_is_sick(scene: Scene, state: str, *, up: bool) -> None:
    server = ServerState("chat", "chat-1", "n1", 1, state, 0)
    assert scene.of(replica(Phase.SERVING), [server]).server_up == up


def test_a_missing_server_and_a_silent_haproxy_are_different(scene: Scene) -> None:
    for servers, answers in (([], True), (None, False)):
        seen = scene.of(replica(Phase.SERVING), servers)
        assert (seen.server_up, seen.in_flight, seen.plane_answers) == (None, None, answers)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.DRAINING])
def test_only_a_serving_replica_can_be_told_to_leave(scene: Scene, phase: Phase) -> None:
    reports.leave(scene.paths.replica("chat-1"))
    assert not scene.of(replica(phase)).leaving


@pytest.mark.parametrize(
    ("one", "told", "hurried"),
    [
        (replica(Phase.PENDING), TOLD, 1),
        (replica(Phase.PENDING, restarts=1), TOLD, 0),  # of the run before
        (replica(Phase.STARTING), TOLD, 0),
        (replica(Phase.STARTING, port=20001), None, 0),
        (replica(Phase.SUBMITTING), None, 0),
        (replica(Phase.SERVING), None, 0),
    ],
)
def test_a_registration_is_awaited_and_hurries_slurm_if_it_is_ahead(
    scene: Scene, one: Replica, told: Registration | None, hurried: int
) -> None:
    assert scene.of(one).registration is None
    assert scene.hurried == 0
    reports.register(scene.paths.replica("chat-1"), TOLD)
    assert (scene.of(one).registration, scene.hurried) == (told, hurried)


def test_a_starting_replica_is_asked_at_its_registered_address(scene: Scene) -> None:
    one = replica(Phase.STARTING, host="n1", port=20001, restarts=2)
    assert not scene.of(one).answered
    scene.observer.ask([one])
    assert scene.asked == [Question("chat-1", 2, "n1", 20001, "/health")]
    assert scene.of(one).answered
    assert not scene.of(one).answered, "an answer counts once"
    scene.observer.ask([one])
    assert not scene.of(replica(Phase.STARTING, port=20001, restarts=3)).answered, "it was of the run before"


@pytest.mark.parametrize(
    "one",
    [
        replica(Phase.STARTING),
        replica(Phase.SERVING, host="n1", port=20001),
        replica(Phase.PENDING, host="n1", port=20001),
        Replica("gone", "gone-1", "g1", Phase.STARTING, 1.0, 1.0, host="n1", port=20001),
    ],
)
def test_replicas_in_other_phases_are_not_asked(scene: Scene, one: Replica) -> None:
    scene.observer.ask([one])
    assert scene.asked == []
