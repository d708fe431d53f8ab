"""Which replicas a control plane finds when it starts, or when a job turns up that it did not expect."""

from typing import Any

import pytest

from inference_gateway.control.replica import LOST_AFTER_S, Phase, Replica
from inference_gateway.control.replica_registry import adopted
from inference_gateway.model import ServerState
from slurm_plugin.client.records import SlurmJob
from tests.inference_gateway.control.doubles import job
from tests.slurm_kit import NOW_S

TAG = "igw:g:chat:g1"
SERVER = ServerState("chat", "chat-1", "n1", 20001, "up", 3)


def listed(state: str = "RUNNING", comment: str = TAG, **fields: Any) -> dict[str, SlurmJob]:
    return {"chat-1": job(7, "chat-1", comment, state=state, submit_s=NOW_S - 100, **fields)}


def remembered(phase: Phase, **fields: Any) -> Replica:
    return Replica("chat", "chat-1", "g1", phase, NOW_S - 50, NOW_S - 90, **fields)


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.STARTING, Phase.SERVING, Phase.DRAINING, Phase.ENDING])
def test_a_replica_in_the_state_file_keeps_its_phase(phase: Phase) -> None:
    known = remembered(phase, job_id=7, host="n2", port=5, burst=True)
    assert adopted(listed(), [known], [SERVER], NOW_S) == (known,)


def test_a_job_without_a_record_is_adopted_by_its_state_in_slurm() -> None:
    (found,) = adopted(listed("PENDING", "igw:g:chat:old"), (), (), NOW_S)
    assert found == Replica("chat", "chat-1", "old", Phase.PENDING, NOW_S, NOW_S - 100, job_id=7)


@pytest.mark.parametrize("state", ["up", "down"])
def test_an_adopted_replica_with_an_active_server_serves(state: str) -> None:
    server = ServerState("chat", "chat-1", "n1", 20001, state, 0)
    (found,) = adopted(listed(restarts=2), (), [server], NOW_S)
    known = (found.phase, found.since_s, found.host, found.port, found.restarts, found.job_id)
    assert known == (Phase.SERVING, NOW_S, "n1", 20001, 2, 7)


@pytest.mark.parametrize("state", ["draining", "maintenance"])
def test_an_adopted_replica_with_an_inactive_server_must_become_ready(state: str) -> None:
    server = ServerState("chat", "chat-1", "n1", 20001, state, 0)
    (found,) = adopted(listed(), (), [server], NOW_S)
    assert (found.phase, found.port) == (Phase.PENDING, 0)


def test_a_pending_job_does_not_serve_even_with_a_server_in_haproxy() -> None:
    (found,) = adopted(listed("PENDING"), (), [SERVER], NOW_S)
    assert (found.phase, found.port) == (Phase.PENDING, 0)


def test_a_submission_whose_job_exists_is_not_repeated() -> None:
    """The control plane died between sbatch and its next look."""
    asked = remembered(Phase.SUBMITTING, burst=True)
    (found,) = adopted(listed(), [asked], (), NOW_S)
    assert (found.phase, found.job_id, found.burst) == (Phase.PENDING, 7, True)


def test_a_fresh_submission_without_a_job_stays_and_an_old_one_is_forgotten() -> None:
    fresh = Replica("chat", "chat-2", "g1", Phase.SUBMITTING, NOW_S, NOW_S - LOST_AFTER_S + 1, burst=True)
    old = Replica("chat", "chat-3", "g1", Phase.SUBMITTING, NOW_S, NOW_S - LOST_AFTER_S)
    assert adopted({}, [fresh, old], (), NOW_S) == (fresh,)


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.STARTING, Phase.SERVING, Phase.DRAINING, Phase.ENDING])
def test_a_recorded_replica_without_a_job_is_dropped(phase: Phase) -> None:
    assert adopted({}, [remembered(phase, job_id=7)], [SERVER], NOW_S) == ()


@pytest.mark.parametrize("state", ["COMPLETED", "COMPLETING", "CANCELLED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"])
def test_an_ended_job_is_not_adopted_and_no_failed_start(state: str) -> None:
    assert adopted(listed(state), [remembered(Phase.SERVING)], [SERVER], NOW_S) == ()


@pytest.mark.parametrize("comment", ["", "igw", "igw:g:chat", "igw:g:chat:g1:more", "xgw:g:chat:g1"])
def test_a_job_without_a_replica_s_tag_is_left_alone(comment: str) -> None:
    assert adopted(listed(comment=comment), (), (), NOW_S) == ()
