"""Backfill differs by reservation_depth alone; gangs are placed on nodes, not on a cluster-wide count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sched_policy.backfill import ALL, Backfill
from sched_policy.checked import checked_plan
from sched_policy.model import GpuRequest, Job, NodeGpus
from sched_policy.order import Fifo
from sched_policy.plan import Plan
from sched_policy.policy import Policy
from tests.sched_policy.builders import NOW_S, job, nodes, running, snapshot


def plan(depth: int, *jobs: Job, count: int = 2) -> Plan:
    policy = Policy("test", "", Fifo(), backfill=Backfill(depth))
    return policy.plan(snapshot(*jobs, on=nodes(count)))


def started(p: Plan) -> list[int]:
    return [start.job_id for start in p.starts]


def test_greedy_starts_whatever_fits() -> None:
    busy = running(1, "n1", gpus=4)
    p = plan(0, busy, job(2, gpus=8, request=GpuRequest.on_each(2, 4)), job(3, gpus=4))
    assert started(p) == [3]
    assert p.reservations == ()


def test_easy_lets_nothing_delay_the_first_blocked_job() -> None:
    busy = running(1, "n1", gpus=4, ran_s=3000)  # leaves in 600 s
    gang = job(2, request=GpuRequest.on_each(2, 4))
    long, short = job(3, gpus=4, time_limit_s=3600), job(4, gpus=4, time_limit_s=500)
    p = plan(1, busy, gang, long, short)
    assert [(r.job_id, r.start_s) for r in p.reservations] == [(2, NOW_S + 600)]
    assert {share.node for share in p.reservations[0].placement} == {"n1", "n2"}
    assert started(p) == [4]


def test_depth_bounds_the_promises() -> None:
    busy = [running(i, f"n{i}", gpus=4, ran_s=3000) for i in (1, 2)]
    waiting = [job(i, request=GpuRequest.on_each(2, 4)) for i in (3, 4, 5)]
    for depth, promised in ((0, []), (1, [3]), (2, [3, 4]), (ALL, [3, 4, 5])):
        assert [r.job_id for r in plan(depth, *busy, *waiting).reservations] == promised


def test_conservative_promises_come_one_after_the_other() -> None:
    busy = running(1, "n1", gpus=4, ran_s=3000)
    p = plan(ALL, busy, *[job(i, request=GpuRequest.on_each(2, 4), time_limit_s=100.0) for i in (2, 3)])
    assert [r.start_s - NOW_S for r in p.reservations] == [600, 700]


def test_gangs_need_room_on_single_nodes() -> None:
    # 4 GPUs are free, but two on each node: a 4-GPU job on one node does not fit, one on two nodes does.
    busy = [running(i, f"n{i}", gpus=2) for i in (1, 2)]
    assert started(plan(1, *busy, job(3, request=GpuRequest.on_each(1, 4)))) == []
    assert started(plan(1, *busy, job(4, request=GpuRequest.on_each(2, 2)))) == [4]
    assert started(plan(1, *busy, job(5, request=GpuRequest(4)))) == [5]


def test_a_job_array_starts_as_many_tasks_as_fit() -> None:
    assert started(plan(1, job(1, gpus=3, array_tasks=5))) == [1, 1]
    assert started(plan(1, job(1, gpus=3, array_tasks=5, throttled_tasks=4))) == [1]
    nobody = plan(1, job(1, gpus=3, array_tasks=5, throttled_tasks=5))
    assert (started(nobody), nobody.reservations) == ([], ())


def test_the_last_task_of_an_array_is_promised_nothing() -> None:
    """A promise is the array's, and would hold for all its tasks at once."""
    p = plan(1, job(1, gpus=3, array_tasks=3))
    assert (started(p), p.reservations) == ([1, 1], ())


def test_no_promise_beyond_the_window() -> None:
    busy, gang = running(1, "n1", gpus=4, ran_s=3000), job(2, request=GpuRequest.on_each(2, 4))  # 600 s are left
    for window_s, promised in ((600.0, [2]), (599.0, [])):
        policy = Policy("test", "", Fifo(), backfill=Backfill(1, window_s=window_s))
        assert [promise.job_id for promise in policy.plan(snapshot(busy, gang)).reservations] == promised


def test_no_promise_without_an_end_in_sight() -> None:
    endless = running(1, "n1", gpus=4, time_limit_s=None)
    p = plan(1, endless, job(2, request=GpuRequest.on_each(2, 4)))
    assert p.reservations == ()


def test_unschedulable_nodes_and_other_partitions_are_not_planned() -> None:
    policy = Policy("test", "", Fifo(), backfill=Backfill(1))
    drained = (*nodes(1), nodes(1)[0].__class__("n9", 4, frozenset({"main"}), schedulable=False))
    p = policy.plan(snapshot(job(1, gpus=4), job(2, gpus=1), on=drained))
    assert [start.job_id for start in p.starts] == [1]
    other = policy.plan(snapshot(job(1, partition="debug")))
    assert other.starts == ()


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 10), st.integers(1, 5)), min_size=1, max_size=12),
    depth=st.sampled_from([0, 1, 3, ALL]),
)
def test_never_more_gpus_than_there_are(sizes: list[tuple[int, int]], depth: int) -> None:
    jobs = [job(i + 1, gpus=g, time_limit_s=60.0 * t) for i, (g, t) in enumerate(sizes)]
    p = plan(depth, *jobs, count=3)
    bookings = [(NOW_S, NOW_S + limit(jobs, s.job_id), s.placement) for s in p.starts]
    bookings += [(r.start_s, r.end_s, r.placement) for r in p.reservations]
    for moment in {start for start, _, _ in bookings}:
        held: dict[str, int] = {}
        for start, end, placement in bookings:
            if start <= moment < end:
                for share in placement:
                    held[share.node] = held.get(share.node, 0) + share.gpus
        assert all(gpus <= 4 for gpus in held.values())
    for s in p.starts:
        assert sum(share.gpus for share in s.placement) == jobs[s.job_id - 1].request.total


def limit(jobs: list[Job], job_id: int) -> float:
    return jobs[job_id - 1].time_limit_s or 0.0


def test_the_same_snapshot_gives_the_same_plan() -> None:
    jobs = [job(i, gpus=i % 4 + 1) for i in range(1, 20)]
    assert plan(3, *jobs) == plan(3, *jobs)


def test_a_job_past_its_limit_still_holds_its_gpus() -> None:
    late = running(1, "n1", gpus=4, ran_s=7200)
    p = plan(1, late, job(2, request=GpuRequest.on_each(2, 4)))
    assert started(p) == []
    assert p.reservations[0].start_s >= NOW_S


@pytest.mark.parametrize("free", [[4, 4], [4, 0]])
def test_consolidation_takes_the_fullest_node_that_fits(free: list[int]) -> None:
    busy = [running(i + 1, f"n{i + 1}", gpus=4 - g) for i, g in enumerate(free) if g < 4]
    p = plan(1, *busy, running(7, "n1", gpus=2), job(9, gpus=2))
    assert p.starts[0].placement == (NodeGpus("n1", 2),)


def test_a_job_that_should_be_over_takes_room_all_the_same() -> None:
    overdue = job(1, gpus=4, time_limit_s=None, expected_s=10.0, earlier_s=10.0)
    p = plan(1, overdue, job(2, gpus=4), count=1)
    assert started(p) == [1]
    assert [r.job_id for r in p.reservations] == [2]
    assert p.reservations[0].start_s > NOW_S


def test_a_request_whose_numbers_do_not_multiply_ends_no_pass() -> None:
    odd = job(1, request=GpuRequest(3, nodes=2, per_node=2))
    policy = Policy("test", "", Fifo(), backfill=Backfill(1))
    assert started(checked_plan(policy, snapshot(odd))) == [1]
