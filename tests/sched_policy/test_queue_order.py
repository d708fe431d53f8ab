"""Slurm should see the jobs in an order in which it starts what the plan would start."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sched_policy import catalog
from sched_policy.catalog import PolicyOptions
from sched_policy.model import GpuRequest, Job, JobState, Node, NodeGpus
from sched_policy.plan import Plan, Reservation, Score, Start
from sched_policy.queue_order import HEAD, queue_order
from sched_policy.snapshot import Snapshot
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot


def wide(job_id: int, over: int = 2, **fields: Any) -> Job:
    return job(job_id, request=GpuRequest.on_each(over, 4), **fields)


def ranked(*job_ids: int, **fields: Any) -> Plan:
    return Plan(scores=tuple(Score(job_id, -float(i), "") for i, job_id in enumerate(job_ids)), **fields)


FULL = (running(1, "n1", 4), running(2, "n2", 4))


def test_a_gang_that_no_single_end_makes_room_for_stands_behind_those_it_would_hold_up() -> None:
    assert queue_order(ranked(3, 4, 5, 1, 2), snapshot(*FULL, wide(3), job(4, 4), job(5))) == (4, 5, 1, 2, 3)


def test_a_gang_keeps_its_place_where_one_end_makes_room_for_it() -> None:
    assert queue_order(ranked(3, 4, 1), snapshot(FULL[0], wide(3), job(4, 4))) == (3, 4, 1)


def test_a_gang_keeps_its_place_where_one_job_holds_all_its_nodes() -> None:
    large = running(1, "n1", 8, allocation=(NodeGpus("n1", 4), NodeGpus("n2", 4)))
    assert queue_order(ranked(3, 4, 1), snapshot(large, wide(3), job(4, 4))) == (3, 4, 1)


def test_gpus_that_are_being_vacated_count_as_free() -> None:
    vacating = (running(1, "n1", 4, asked_to_leave=True), FULL[1])
    assert queue_order(ranked(3, 4), snapshot(*vacating, wide(3), job(4, 4))) == (3, 4)
    cleaned_up = (running(1, "n1", 4, state=JobState.COMPLETING), FULL[1])
    assert queue_order(ranked(3, 4), snapshot(*cleaned_up, wide(3), job(4, 4))) == (3, 4)


def test_gpus_that_are_shared_do_not_take_from_the_free_ones() -> None:
    sharing = [running(10 + i, "n1", allocation=(NodeGpus("n1", 1, (i % 4,)),)) for i in range(6)]
    assert queue_order(ranked(3, 4), snapshot(*sharing, job(3, request=GpuRequest(4)), job(4))) == (3, 4)


def test_a_node_that_is_wide_enough_is_counted_once() -> None:
    held = (running(1, "n1", 2), *(running(10 + i, "n2", 1) for i in range(4)))
    gang = job(3, request=GpuRequest.on_each(2, 2))
    assert queue_order(ranked(3, 4), snapshot(*held, gang, job(4))) == (4, 3)


def test_a_promised_job_keeps_its_place() -> None:
    everywhere = (NodeGpus("n1", 4), NodeGpus("n2", 4))
    promise = Reservation(3, everywhere, NOW_S + 600, NOW_S + 700, "")
    assert queue_order(ranked(3, 4, reservations=(promise,)), snapshot(*FULL, wide(3), job(4, 4))) == (3, 4)


def test_a_job_that_starts_now_keeps_its_place() -> None:
    plan = ranked(3, 4, starts=(Start(3, (NodeGpus("n1", 4), NodeGpus("n2", 4)), ""),))
    assert queue_order(plan, snapshot(wide(3), job(4))) == (3, 4)


def test_shares_of_a_gang_may_be_of_any_size_if_it_asks_for_none() -> None:
    half = (running(1, "n1", 2), running(2, "n2", 2))
    gang = job(3, request=GpuRequest(6, nodes=2))
    assert queue_order(ranked(3, 4), snapshot(*half, gang, job(4))) == (3, 4)
    assert queue_order(ranked(3, 4), snapshot(*half, running(5, "n1", 2), running(6, "n2", 2), gang, job(4))) == (4, 3)


def test_other_partitions_nodes_do_not_count() -> None:
    assert queue_order(ranked(3, 4), snapshot(job(3, 4, partition="elsewhere"), job(4))) == (4, 3)
    apart = (Node("n1", 4, frozenset({"main"})), Node("n2", 4, frozenset({"other"})))
    held = running(2, "n2", 4, partition="other")
    assert queue_order(ranked(3, 4), snapshot(held, job(3, request=GpuRequest(8)), job(4), on=apart)) == (4, 3)


def test_jobs_that_run_are_not_the_head_of_the_queue() -> None:
    held = [running(1000 + i, f"n{i // 4 + 1}") for i in range(HEAD)]
    seen = snapshot(*held, wide(3), job(4), on=nodes(HEAD // 4 + 1))
    ids = [each.job_id for each in held]
    assert queue_order(ranked(*ids, 3, 4), seen) == (*ids, 4, 3)


def test_gangs_keep_their_places_behind_the_head_of_the_queue() -> None:
    # Else each start and end of a job would move them all, and the labels of their neighbours with them.
    single = tuple(job(100 + i) for i in range(HEAD))
    order = (10, *(each.job_id for each in single[:-1]), 11, single[-1].job_id, 12, 13)
    waiting = (wide(10), wide(11), *single, wide(12), job(13))
    assert queue_order(ranked(*order), snapshot(*FULL, *waiting)) == (
        *(each.job_id for each in single),
        12,
        13,
        10,
        11,
    )


@given(
    holds=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    asks=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_every_job_is_there_once_and_each_part_keeps_the_policys_order(
    holds: list[int], asks: list[tuple[int, int]]
) -> None:
    held = [running(i + 1, f"n{i + 1}", gpus) for i, gpus in enumerate(holds) if gpus]
    waiting = [job(10 + i, request=GpuRequest.on_each(*ask)) for i, ask in enumerate(asks)]
    seen = Snapshot.of(NOW_S, nodes(3), (*held, *waiting))
    plan = catalog.build("fifo", PolicyOptions(reservation_depth=0)).plan(seen)
    order = queue_order(plan, seen)
    places = {score.job_id: place for place, score in enumerate(plan.scores)}
    assert sorted(order) == sorted(places)
    falls = sum(places[a] > places[b] for a, b in pairwise(order))
    assert falls <= 1
