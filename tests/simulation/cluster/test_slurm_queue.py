"""What Slurm's main scheduler and its backfill start in a given order."""

from __future__ import annotations

from sched_policy.model import GpuRequest, Job, Node
from simulation.cluster.engine import backfill_starts, main_starts
from tests.sched_policy.builders import job, nodes, running, snapshot

WAITING = (job(1), job(2), job(3), job(4))
WHOLE = GpuRequest(4)


def by_main(order: tuple[int, ...], *jobs: Job) -> list[int]:
    return [start.job_id for start in main_starts(order, snapshot(*jobs))]


def by_backfill(order: tuple[int, ...], *jobs: Job) -> list[int]:
    return [start.job_id for start in backfill_starts(order, snapshot(*jobs))]


def test_the_main_scheduler_ends_at_the_first_job_that_does_not_fit() -> None:
    assert [node.gpus for node in nodes()] == [4, 4]
    blocked = job(1, request=GpuRequest.on_each(2, 4))
    assert by_main((3, 1, 2, 4), blocked, *WAITING[1:]) == [3]
    assert by_main((3, 2, 4, 1), blocked, *WAITING[1:]) == [3, 2, 4]


def test_jobs_that_the_policy_has_not_yet_put_in_order_stand_behind_all_others() -> None:
    whole = [job(number, request=WHOLE) for number in (1, 2, 3)]
    assert by_main((3,), *whole) == [3, 1]
    assert by_backfill((3,), *whole) == [3, 1]
    assert by_main((), *reversed(whole)) == [1, 2]


def test_jobs_that_hold_gpus_are_not_in_the_queue_but_their_gpus_are_taken() -> None:
    assert by_main((9, 1, 2), running(9, "n1", 4), job(1, request=WHOLE), job(2, request=WHOLE)) == [1]


def test_a_blocked_job_holds_up_its_own_partition_only() -> None:
    jobs = (job(1, request=GpuRequest.on_each(3, 4)), job(2), job(3, partition="other"))
    both = (Node("n1", 4, frozenset({"main", "other"})),)
    assert [start.job_id for start in main_starts((1, 2, 3), snapshot(*jobs, on=both))] == [3]


def test_backfill_starts_what_ends_before_the_gpus_that_it_delays_are_needed() -> None:
    """Both nodes are promised to job 1 as soon as job 9 may be over, 60 s from now."""
    busy = running(9, "n1", 4, ran_s=40.0, time_limit_s=100.0)
    blocked = job(1, request=GpuRequest.on_each(2, 4), time_limit_s=100.0)
    short, long = job(2, time_limit_s=60.0), job(3, time_limit_s=61.0)
    assert by_backfill((1, 3, 2), busy, blocked, short, long) == [2]
    assert by_backfill((3, 1, 2), busy, blocked, short, long) == [3, 2]
