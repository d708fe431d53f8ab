"""Of an array with a limit of its own (`sbatch -a 0-7%1`) no more tasks are planned than may start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.plan import Preemption
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode
from slurm_plugin.observation.array_limits import throttled
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.beneficiaries import without_vain_preemptions
from tests.slurm_kit import record

NOW_S = 1e4
ONE = {"gpus": 1, "gpus_per_node": 1}
HELD = {**ONE, "state": "RUNNING", "gpu_nodes": (("n1", 1),), "node_names": ("n1",)}


def array(limit: int | None, tasks: int = 8, **fields: Any) -> SlurmJob:
    base = {"reason": "Resources", "array_job_id": 20, "array_tasks": tasks, "array_limit": limit, "natives": (60,)}
    return record(20, **{**ONE, **base, "priority": 60, "time_limit_s": 60.0, **fields})


def task(job_id: int, state: str = "RUNNING", **fields: Any) -> SlurmJob:
    return record(
        job_id, **{**HELD, "array_job_id": 20, "array_task_id": job_id, "start_s": 1.0, "state": state, **fields}
    )


def look(*jobs: SlurmJob) -> Observation:
    """Eight GPUs, all held by trainings of one user that may be preempted, unless `jobs` hold some."""
    free = 8 - sum(job.state != "PENDING" for job in jobs)
    held = {**HELD, "start_s": 1.0, "comment": "explsched:checkpoint=USR1", "time_limit_s": 9e4}
    trainings = [record(number, **held) for number in range(1, free + 1)]
    node = SlurmNode("n1", "ALLOCATED", 8, frozenset({"main"}))
    return observe(ClusterRecords((node,), (*trainings, *jobs), ()), ProgressSpool(Path("/nowhere")), NOW_S)


def startable(*jobs: SlurmJob) -> dict[int, int]:
    waiting = [job for job in throttled(jobs, NOW_S) if job.state == "PENDING"]
    return {job.job_id: job.array_tasks - job.throttled_tasks for job in waiting}


def test_as_many_tasks_as_the_limit_leaves() -> None:
    assert startable(array(None)) == {20: 8}
    assert startable(array(2)) == {20: 2}
    assert startable(array(9)) == {20: 8}
    assert startable(array(3), task(5), task(6, "SUSPENDED"), task(7, "COMPLETING")) == {20: 1}
    assert startable(array(2), task(5), task(6)) == {20: 0}
    assert startable(array(2), task(5, array_job_id=4), record(6)) == {20: 2, 6: 1}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"priority": 90}, {20: 1, 5: 1}),
        ({"priority": 0}, {20: 2, 5: 0}),
        ({"priority": 90, "reason": "JobArrayTaskLimit"}, {20: 1, 5: 1}),
        ({"priority": 90, "reason": "BeginTime", "eligible_s": NOW_S + 600}, {20: 2, 5: 0}),
        ({"priority": 90, "reason": "Dependency"}, {20: 2, 5: 0}),
    ],
)
def test_requeued_tasks_count_for_the_same_limit(fields: dict[str, Any], found: dict[int, int]) -> None:
    assert startable(array(2), task(5, "PENDING", **{"reason": "Priority", **fields})) == found


@pytest.mark.parametrize("policy", catalog.POLICIES.names())
def test_every_policy_plans_while_no_task_may_start(policy: str) -> None:
    """Slurm says Resources or Priority still, and a GPU is free."""
    node = SlurmNode("n1", "MIXED", 8, frozenset({"main"}))
    found = ClusterRecords((node,), (array(1), task(5)), ())
    seen = observe(found, ProgressSpool(Path("/nowhere")), NOW_S)
    plan = checked_plan(catalog.build(policy), seen.snapshot)
    assert 20 not in {start.job_id for start in plan.starts}


@pytest.mark.parametrize(("limit", "goes"), [(1, 1), (3, 3), (None, 8)])
def test_no_more_jobs_are_preempted_for_it(limit: int | None, goes: int) -> None:
    seen = look(array(limit))
    plan = without_vain_preemptions(catalog.build("srsf").plan(seen.snapshot), seen)
    assert [one.beneficiary for one in plan.preemptions] == [20] * goes


def test_those_of_its_tasks_that_run_count() -> None:
    seen = look(array(2), task(15))
    assert len(catalog.build("srsf").plan(seen.snapshot).preemptions) == 1


@pytest.mark.parametrize(("limit", "goes"), [(1, 1), (2, 0)])
def test_what_it_cannot_take_is_left_to_jobs_behind_it(limit: int, goes: int) -> None:
    """The preempted jobs leave two GPUs, for the array, which comes first, and the job behind it."""
    behind = record(21, **ONE, reason="Priority", natives=(50,), priority=50)
    seen = look(replace(array(limit), natives=(70,), priority=70), behind)
    plan = replace(
        catalog.build("fifo").plan(seen.snapshot), preemptions=(Preemption(1, "", 20), Preemption(2, "", 21))
    )
    kept = without_vain_preemptions(plan, seen).preemptions
    assert [one.job_id for one in kept if one.beneficiary == 21] == [2] * goes
