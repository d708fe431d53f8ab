"""Nobody makes room twice for a job that did not start."""

from __future__ import annotations

from typing import Any

from explsched.preemption_record import Interruption, PreemptionRecord
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.memory import served_in_vain
from tests.slurm_kit import record

SERVED_S = 5_000.0


def in_vain(*jobs: SlurmJob, served_s: dict[int, float] | None = None, told: tuple[int, ...] = ()) -> frozenset[int]:
    latest = tuple(Interruption(i, SERVED_S, 1, 0.0, "", job_id) for i, job_id in enumerate(told))
    return served_in_vain({job.job_id: job for job in jobs}, served_s or {}, [PreemptionRecord(0.0, latest)])


def waiting(job_id: int = 5, **fields: Any) -> SlurmJob:
    return record(job_id, **{"submit_s": 100.0, **fields})


def test_a_job_that_still_waits_after_others_left_for_it() -> None:
    assert in_vain(waiting(), waiting(6), served_s={5: SERVED_S}) == {5}


def test_what_the_last_daemon_did_is_known_from_the_jobs_it_requeued() -> None:
    assert in_vain(waiting(), waiting(6), told=(5,)) == {5}
    assert in_vain(waiting(), told=()) == frozenset()


def test_a_job_that_started_may_be_served_again() -> None:
    assert in_vain(waiting(state="RUNNING"), told=(5,)) == frozenset()
    came_back = waiting(restarts=1, submit_s=SERVED_S + 60)
    assert in_vain(came_back, told=(5,)) == frozenset()
    assert in_vain(came_back, told=(5,), served_s={5: SERVED_S + 90}) == {5}


def test_a_job_that_ran_before_it_was_served_has_not_started_since() -> None:
    assert in_vain(waiting(restarts=1, submit_s=SERVED_S - 60), told=(5,)) == {5}


def test_an_array_has_started_when_one_of_its_tasks_has() -> None:
    """The record of the tasks that wait keeps its id, and waits on."""
    array = waiting(array_job_id=5, array_tasks=3)
    task = record(7, array_job_id=5, array_task_id=1, state="RUNNING")
    assert in_vain(array, told=(5,)) == {5}
    assert in_vain(array, record(7, array_job_id=5, state="RUNNING", start_s=SERVED_S - 60), told=(5,)) == {5}
    assert in_vain(array, task, told=(5,)) == {5}  # its start is not known
    assert in_vain(array, record(7, array_job_id=5, state="RUNNING", start_s=SERVED_S + 2), told=(5,)) == frozenset()


def test_jobs_that_are_gone_are_forgotten() -> None:
    assert in_vain(served_s={5: SERVED_S}, told=(6,)) == frozenset()
