"""All replicas and what is written about them: nothing happens to one without a line in the event log."""

import json
from pathlib import Path
from typing import Any

import pytest

from inference_gateway.control.moves import Moves
from inference_gateway.control.replica import Phase, Replica, ReplicaObservation
from inference_gateway.control.replica_registry import ReplicaRegistry
from inference_gateway.control.service import ServiceControl
from inference_gateway.control.state import EventLog
from tests.inference_gateway.control.doubles import job
from tests.inference_gateway.control.test_service import NOW_S, control, failed


class Log:
    """A registry of one service `chat`, and its event log."""

    def __init__(self, directory: Path, *replicas: Replica, **scale: Any) -> None:
        self.path = directory / "events.jsonl"
        self.service: ServiceControl = control(**scale)
        self.registry = ReplicaRegistry({"chat": self.service}, replicas, EventLog(self.path))

    def events(self) -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = [json.loads(line) for line in lines]
        return [{key: value for key, value in one.items() if key not in ("time", "unix_s")} for one in found]

    def move(self, moves: Moves) -> list[Replica]:
        found = self.service.classify(self.registry.all(), NOW_S)
        return self.registry.move(self.service, found, moves, "because", NOW_S)

    def replica(self, name: str = "chat-1") -> Replica:
        return {one.name: one for one in self.registry.all()}[name]


def replica(phase: Phase, name: str = "chat-1", **fields: Any) -> Replica:
    known = {"job_id": 7, **fields}
    return Replica("chat", name, control().generation, phase, NOW_S, NOW_S - 10, **known)


def test_an_accepted_submission_gets_its_job_id(tmp_path: Path) -> None:
    log = Log(tmp_path, replica(Phase.SUBMITTING, job_id=None))
    log.registry.submitted("chat-1", 9)
    log.registry.submitted("ended-meanwhile", 10)
    assert [(one.name, one.job_id) for one in log.registry.all()] == [("chat-1", 9)]
    assert log.events() == [{"event": "submitted", "service": "chat", "replica": "chat-1", "job": 9}]


def test_a_refused_submission_is_dropped_and_counted(tmp_path: Path) -> None:
    log = Log(tmp_path, replica(Phase.SUBMITTING))
    log.registry.refused("chat-1", "no such partition", NOW_S)
    log.registry.refused("chat-1", "no such partition", NOW_S + 1)
    assert log.registry.all() == ()
    assert (log.service.attempts.refusals, log.service.attempts.failures) == (1, 0)
    (event,) = log.events()
    assert (event["event"], event["reason"]) == ("submission refused", "no such partition")


def test_jobs_are_cancelled_in_the_second_in_which_they_begin_to_end(tmp_path: Path) -> None:
    begun = replica(Phase.ENDING, "a", job_id=1)
    before = Replica("chat", "b", "g", Phase.ENDING, NOW_S - 1, NOW_S - 10, job_id=2)
    without = replica(Phase.ENDING, "c", job_id=None)
    log = Log(tmp_path, begun, before, without, replica(Phase.DRAINING, "d", job_id=4))
    assert log.registry.ended_at(NOW_S) == [1]


@pytest.mark.parametrize(
    ("minimum", "present", "bursts"),
    [(2, [], [False, False, True]), (0, [], [False, True, True]), (2, [False], [False, True, True]),
     (2, [True], [False, False, True]), (1, [False], [True, True, True])],
)  # fmt: skip
def test_replicas_up_to_the_minimum_are_not_burst_replicas(
    tmp_path: Path, minimum: int, present: list[bool], bursts: list[bool]
) -> None:
    """One is not, even where none has to be there. Burst ones that are there do not fill the place of one."""
    have = [replica(Phase.SERVING, f"chat-{n}", burst=burst) for n, burst in enumerate(present)]
    log = Log(tmp_path, *have, min=minimum)
    new = log.move(Moves(start=3))
    assert [one.burst for one in new] == bursts
    assert {one.name for one in new} <= log.registry.names()
    assert len({one.name for one in new}) == 3
    for one in new:
        assert (one.phase, one.since_s, one.asked_s, one.job_id) == (Phase.SUBMITTING, NOW_S, NOW_S, None)
        assert one.generation == log.service.generation
    assert [(one["event"], one["reason"], one.get("burst", False)) for one in log.events()] == [
        ("start", "because", burst) for burst in bursts
    ]


def test_leaving_replicas_are_cancelled_or_drained_with_a_reason(tmp_path: Path) -> None:
    pending, serving = replica(Phase.PENDING, "p", job_id=1), replica(Phase.SERVING, "s", job_id=2)
    log = Log(tmp_path, pending, serving)
    assert log.move(Moves(0, ((pending, "not needed"),), ((serving, "replaced"),))) == []
    assert log.replica("p") == pending.to(Phase.ENDING, NOW_S, "not needed: because")
    assert log.replica("s") == serving.to(Phase.DRAINING, NOW_S, "replaced")
    assert log.events() == [
        {"event": "cancelled", "service": "chat", "replica": "p", "job": 1, "reason": "not needed: because"},
        {"event": "draining", "service": "chat", "replica": "s", "job": 2, "reason": "replaced: because"},
    ]


def test_a_start_is_measured_and_after_a_minute_resets_the_count_of_failures(tmp_path: Path) -> None:
    log = Log(tmp_path, replica(Phase.STARTING, host="n1", port=1))
    failed(log.service, 0.0, 1.0)
    running = job(7, "chat-1", "", state="RUNNING")
    log.registry.step(log.replica(), ReplicaObservation(running, NOW_S, answered=True), NOW_S + 2.34)
    assert log.replica().phase is Phase.SERVING
    assert (log.service.start_s, log.service.attempts.failures) == (pytest.approx(12.34), 1)
    log.registry.step(log.replica(), ReplicaObservation(running, NOW_S), NOW_S + 62)
    assert log.service.attempts.failures == 1
    log.registry.step(log.replica(), ReplicaObservation(running, NOW_S), NOW_S + 63)
    assert log.service.attempts.failures == 0
    assert log.events() == [{"event": "serving", "service": "chat", "replica": "chat-1", "job": 7, "after_s": 12.3}]


@pytest.mark.parametrize("checks", [{"passed": False}, {"server_up": False}])
def test_a_start_has_not_proved_successful_while_its_health_checks_fail(tmp_path: Path, checks: dict[str, Any]) -> None:
    log = Log(tmp_path, replica(Phase.SERVING, host="n1", port=1))
    failed(log.service, 0.0, 1.0)
    running = job(7, "chat-1", "", state="RUNNING")
    for second in (50, 61):
        log.registry.step(log.replica(), ReplicaObservation(running, NOW_S, **checks), NOW_S + second)
        assert log.service.attempts.failures == 1
    healthy = ReplicaObservation(running, NOW_S, server_up=True, passed=True)
    log.registry.step(log.replica(), healthy, NOW_S + 62)
    assert log.service.attempts.failures == 0


def test_a_replica_has_the_limits_of_its_service(tmp_path: Path) -> None:
    log = Log(tmp_path, replica(Phase.STARTING))
    log.registry.step(log.replica(), ReplicaObservation(job(7, "chat-1", "", state="RUNNING"), NOW_S), NOW_S + 100)
    assert log.replica().phase is Phase.STARTING
    assert log.events() == []


def test_replicas_are_found_by_name_and_by_service(tmp_path: Path) -> None:
    log = Log(tmp_path, replica(Phase.SERVING))
    other = Replica("old", "old-1", "g", Phase.PENDING, NOW_S, NOW_S, job_id=3)
    log.registry.join([replica(Phase.PENDING, "chat-2"), other])
    assert log.registry.names() == {"chat-1", "chat-2", "old-1"}
    assert {name: [one.name for one in found] for name, found in log.registry.by_service().items()} == {
        "chat": ["chat-1", "chat-2"]
    }


def test_giving_up_after_failures_is_reported_once(tmp_path: Path) -> None:
    log = Log(tmp_path, attempts=2)
    for number in range(4):
        asked_s = NOW_S + 100 * number
        about = ("chat", f"chat-{number}", log.service.generation)
        one = Replica(*about, Phase.PENDING, asked_s, asked_s, job_id=number)
        log.registry.join([one])
        log.registry.step(one, ReplicaObservation(job(number, one.name, "", state="FAILED"), asked_s), asked_s + 50)
    assert [one["event"] for one in log.events()] == [
        "adopted", "failed", "adopted", "failed", "given up", "adopted", "failed", "adopted", "failed"
    ]  # fmt: skip
    assert log.events()[4]["reason"].startswith("2 starts failed in a row")
    assert log.registry.all() == ()


def test_a_failure_of_an_earlier_configuration_is_none_of_the_present_one(tmp_path: Path) -> None:
    log = Log(tmp_path, attempts=1)
    one = Replica("chat", "chat-1", "before", Phase.PENDING, NOW_S, NOW_S, job_id=1)
    log.registry.join([one])
    log.registry.step(one, ReplicaObservation(job(1, one.name, "", state="FAILED"), NOW_S), NOW_S + 50)
    assert [one["event"] for one in log.events()] == ["adopted", "failed"]


def test_a_replica_of_a_removed_service_finishes_its_requests(tmp_path: Path) -> None:
    serving = Replica("old", "old-1", "g", Phase.SERVING, NOW_S - 50, NOW_S - 90, job_id=3)
    log = Log(tmp_path, serving)
    running = job(3, "old-1", "", state="RUNNING")
    for second in (0, 1, 299):
        seen = ReplicaObservation(running, NOW_S, in_flight=1)
        log.registry.step(log.replica("old-1"), seen, NOW_S + second)
        assert log.registry.ended_at(NOW_S + second) == []
    assert log.registry.by_service() == {"chat": []}
    log.registry.step(log.replica("old-1"), ReplicaObservation(running, NOW_S), NOW_S + 300)
    assert log.registry.ended_at(NOW_S + 300) == [3]
    log.registry.step(log.replica("old-1"), ReplicaObservation(None, NOW_S + 301), NOW_S + 302)
    assert log.registry.all() == ()
    assert [(one["event"], one["reason"]) for one in log.events()] == [
        (event, "its service was removed") for event in ("draining", "drained", "ended")
    ]


def test_a_replica_of_a_removed_service_that_does_not_serve_is_cancelled(tmp_path: Path) -> None:
    log = Log(tmp_path, Replica("old", "old-1", "g", Phase.STARTING, NOW_S - 50, NOW_S - 90, job_id=3))
    log.registry.step(log.replica("old-1"), ReplicaObservation(job(3, "old-1", "", state="RUNNING"), NOW_S), NOW_S)
    assert log.registry.ended_at(NOW_S) == [3]
    assert [(one["event"], one["reason"]) for one in log.events()] == [("cancelled", "its service was removed")]


@pytest.mark.parametrize(("reason", "phase"), [("its service was removed", Phase.SERVING), ("late", Phase.DRAINING)])
def test_a_replica_whose_service_is_there_again_serves_on(tmp_path: Path, reason: str, phase: Phase) -> None:
    draining = replica(Phase.SERVING, job_id=7).to(Phase.DRAINING, NOW_S - 5, reason)
    log = Log(tmp_path, draining)
    running = job(7, "chat-1", "", state="RUNNING")
    log.registry.step(draining, ReplicaObservation(running, NOW_S, in_flight=1), NOW_S)
    assert log.replica().phase is phase
    assert not log.replica().replaceable
