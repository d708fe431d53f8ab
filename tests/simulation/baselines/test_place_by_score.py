"""The Go scheduler's placements, against scores computed by hand."""

import numpy as np
import pytest

from sched_policy import catalog
from sched_policy.model import GpuRequest, Node
from sched_policy.place import Place, Room
from sched_policy.snapshot import Nodes
from simulation.baselines import Balanced, Simple
from tests.sched_policy.builders import job, nodes, running, snapshot


def room(free: list[int], gpus: list[int], memory_mib: list[int] | None = None, tasks: list[int] | None = None) -> Room:
    memory_mib = memory_mib or [0] * len(gpus)
    made = Nodes(Node(f"n{i}", g, gpu_memory_mib=m) for i, (g, m) in enumerate(zip(gpus, memory_mib, strict=True)))
    return Room(np.array(free), np.array(tasks or [0] * len(gpus)), made)


def test_simple_takes_the_idle_node_with_the_fewest_gpus_to_spare() -> None:
    # 0.7 (8 - 2) = 4.2 and 0.7 (4 - 2) = 1.4; node 2 would score 0, but is not idle.
    assert Simple().place(GpuRequest(2), room([8, 4, 2], [8, 4, 4])) == ((1, 2),)


def test_memory_swamps_gpus_in_simple() -> None:
    # 0.7 (8-2) + 0.3 (8 x 16384 - 2 x 16000) = 29725.8; 0.7 (4-2) + 0.3 (4 x 40960 - 2 x 16000) = 39553.4.
    request = GpuRequest(2, gpu_memory_mib=16000)
    assert Simple().place(request, room([8, 4], [8, 4], [16384, 40960])) == ((0, 2),)


@pytest.mark.parametrize("place", [Simple(), Balanced()])
def test_gpus_with_too_little_memory_do_not_count(place: Place) -> None:
    request = GpuRequest(2, gpu_memory_mib=20000)
    assert place.place(request, room([4, 4], [4, 4], [16384, 40960])) == ((1, 2),)
    assert place.place(request, room([4, 4], [4, 4], [16384, 16384])) is None


def test_unknown_memory_is_taken_to_be_what_is_asked() -> None:
    # Known: 0.3 (4 x 20000 - 2 x 10000) + 1.4 = 18001.4. Unknown: 0.3 (4 x 10000 - 2 x 10000) + 1.4 = 6001.4.
    request = GpuRequest(2, gpu_memory_mib=10000)
    assert Simple().place(request, room([4, 4], [4, 4], [20000, 0])) == ((1, 2),)
    # Exactly as much as is asked scores the same, and the lower index wins.
    assert Simple().place(request, room([4, 4], [4, 4], [10000, 0])) == ((0, 2),)


def test_balanced_takes_the_node_with_few_tasks_and_many_free_gpus() -> None:
    # (2-6)/8 = -0.5, (1-3)/4 = -0.5, (0-2)/4 = -0.5: a tie goes to the lower index.
    assert Balanced().place(GpuRequest(1), room([6, 3, 2], [8, 4, 4], tasks=[2, 1, 0])) == ((0, 1),)
    # (2-5)/8 = -0.375 now.
    assert Balanced().place(GpuRequest(1), room([5, 3, 2], [8, 4, 4], tasks=[2, 1, 0])) == ((1, 1),)
    # Tasks tell apart what GPUs do not: (3-2)/4 against (1-2)/4.
    assert Balanced().place(GpuRequest(1), room([2, 2], [4, 4], tasks=[3, 1])) == ((1, 1),)


def test_a_task_wants_its_gpus_on_one_node() -> None:
    assert Balanced().place(GpuRequest(3), room([2, 2, 3], [4, 4, 4])) == ((2, 3),)


def test_several_nodes_with_a_share_each_are_the_best_ones() -> None:
    # Scores of balanced: -0.5, -1.0, -0.75.
    assert Balanced().place(GpuRequest.on_each(2, 2), room([2, 4, 3], [4, 4, 4])) == ((1, 2), (2, 2))
    assert Balanced().place(GpuRequest.on_each(3, 3), room([2, 4, 3], [4, 4, 4])) is None
    # Scores of simple: 0.7 x 6, 0.7 x 2; the third node is busy.
    assert Simple().place(GpuRequest.on_each(2, 2), room([8, 4, 2], [8, 4, 4])) == ((1, 2), (0, 2))


def test_gpus_of_any_nodes_fill_the_best_nodes_first() -> None:
    # Nothing holds 6; balanced prefers node 1 (-1.0) to node 2 (-0.75) to node 0 (-0.5).
    assert Balanced().place(GpuRequest(6), room([2, 4, 3], [4, 4, 4])) == ((1, 4), (2, 2))
    assert Balanced().place(GpuRequest(10), room([2, 4, 3], [4, 4, 4])) is None
    # At least two nodes: the first one leaves something for the second.
    assert Balanced().place(GpuRequest(4, nodes=2), room([2, 4, 3], [4, 4, 4])) == ((1, 3), (2, 1))
    assert Balanced().place(GpuRequest(4, nodes=4), room([2, 4, 3], [4, 4, 4])) is None


@pytest.mark.parametrize("place", [Simple(), Balanced()])
def test_nothing_fits_a_request_for_nothing(place: Place) -> None:
    assert place.place(GpuRequest(0), room([4], [4])) is None


def test_the_rows_are_greedy_and_in_order_of_arrival() -> None:
    busy = running(1, "n1", gpus=1)
    jobs = [job(2, gpus=4), job(3, gpus=4), job(4, gpus=3)]
    balanced = catalog.build("balanced").plan(snapshot(busy, *jobs, on=nodes(2)))
    assert [(s.job_id, s.placement[0].node) for s in balanced.starts] == [(2, "n2"), (4, "n1")]
    assert balanced.reservations == ()
    simple = catalog.build("simple").plan(snapshot(busy, *jobs, on=nodes(2)))
    assert [(s.job_id, s.placement[0].node) for s in simple.starts] == [(2, "n2")]


def test_simple_is_promised_a_node_that_will_be_idle() -> None:
    busy = running(1, "n1", gpus=1, ran_s=3000)  # leaves in 600 s
    policy = catalog.build("simple", catalog.PolicyOptions(reservation_depth=1))
    plan = policy.plan(snapshot(busy, job(2, gpus=2), on=nodes(1)))
    assert [(r.job_id, r.start_s - 10_000) for r in plan.reservations] == [(2, 600)]
