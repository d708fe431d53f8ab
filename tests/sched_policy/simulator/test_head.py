"""Which of the plan's starts Slurm's main scheduler makes without the policy."""

from __future__ import annotations

from typing import Any

from sched_policy.model import GpuRequest, Job, NodeGpus
from sched_policy.plan import Group, Plan, Resize, Score, Start
from sched_policy.simulator.head import head
from tests.sched_policy.builders import job, nodes, running, snapshot

WAITING = (job(1), job(2), job(3), job(4))


def plan(order: tuple[int, ...], starts: tuple[int, ...], **fields: Any) -> Plan:
    scores = tuple(Score(job_id, -float(i), "") for i, job_id in enumerate(order))
    return Plan(scores, tuple(Start(n, (NodeGpus("n1", 1),), "") for n in starts), **fields)


def started(wanted: Plan, ordered_s: float = 100.0, jobs: tuple[Job, ...] = WAITING) -> list[int]:
    return [start.job_id for start in head(wanted, snapshot(*jobs), ordered_s)]


def test_it_ends_at_the_first_job_that_does_not_start() -> None:
    assert started(plan((3, 1, 2, 4), (1, 3, 4))) == [3, 1]


def test_jobs_that_came_since_the_last_pass_stand_behind_all_others() -> None:
    assert started(plan((4, 3, 1, 2), (1, 2, 3, 4)), ordered_s=2.5) == [1, 2, 3, 4]
    assert started(plan((4, 3, 1, 2), (1, 3, 4)), ordered_s=2.5) == [1]


def test_jobs_that_hold_gpus_are_not_in_the_queue() -> None:
    assert started(plan((9, 1), (1,)), jobs=(running(9, "n1"), job(1))) == [1]


def test_a_blocked_job_holds_up_its_own_partition_only() -> None:
    jobs = (job(1), job(2, partition="other"))
    assert started(plan((1, 2), (2,)), jobs=jobs) == [2]


def test_a_gang_far_from_its_start_holds_up_nobody() -> None:
    jobs = (running(8, "n1", 4), running(9, "n2", 3), job(1, request=GpuRequest.on_each(2, 4)), job(2))
    assert len(nodes()) == 2
    assert started(plan((1, 2, 8, 9), (2,)), jobs=jobs) == [2]


def test_what_the_policy_has_to_change_first_waits_for_it() -> None:
    assert started(plan((1, 2), (1, 2), resizes=(Resize(1, GpuRequest(2), ""),))) == []
    assert started(plan((1, 2), (1, 2), groups=(Group((2, 3), ""),))) == [1]
