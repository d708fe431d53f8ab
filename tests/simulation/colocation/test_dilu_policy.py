"""Dilu's placement of parts of GPUs, against its rules by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.model import GpuPart, GpuRequest, Job, NodeGpus
from tests.sched_policy.builders import job, nodes, running, snapshot


def part(job_id: int, request: float, limit: float, memory: float) -> Job:
    return replace(job(job_id, gpus=1), part=GpuPart(request, limit, memory))


def on_shard(job_id: int, node: str, taken: GpuPart) -> Job:
    return replace(running(job_id, node), part=taken, allocation=(NodeGpus(node, 1, (0,)),))


def where(*jobs: Job, on: int = 2, gpus: int = 1) -> dict[int, tuple[str, tuple[int, ...]]]:
    plan = catalog.build("dilu").plan(snapshot(*jobs, on=nodes(on, gpus)))
    return {start.job_id: (start.placement[0].node, start.placement[0].indices) for start in plan.starts}


def test_what_asks_for_too_much_together_is_kept_apart() -> None:
    assert where(part(1, 0.5, 0.6, 0.1), part(2, 0.6, 0.6, 0.1)) == {1: ("n1", (0,)), 2: ("n2", (0,))}
    assert where(part(1, 0.2, 0.9, 0.1), part(2, 0.2, 0.7, 0.1)) == {1: ("n1", (0,)), 2: ("n2", (0,))}
    assert where(part(1, 0.2, 0.3, 0.6), part(2, 0.2, 0.3, 0.5)) == {1: ("n1", (0,)), 2: ("n2", (0,))}
    assert where(part(1, 0.5, 0.7, 0.5), part(2, 0.5, 0.8, 0.5)) == {1: ("n1", (0,)), 2: ("n1", (0,))}


def test_the_gpu_on_which_least_is_left_wins() -> None:
    # Left of the GPU: 0.6 (1 - 0.9) + 0.4 (1 - 0.8) = 0.14 beside job 1, 0.6 (1 - 0.8) + 0.4 (1 - 0.9) = 0.16.
    found = where(part(1, 0.6, 0.7, 0.5), part(2, 0.5, 0.7, 0.6), part(3, 0.3, 0.4, 0.3))
    assert found[3] == found[1] == ("n1", (0,))
    # With more memory the other one: 0.6 x 0.1 + 0.4 x 0.5 = 0.26 against 0.6 x 0.2 + 0.4 x 0.1 = 0.16.
    found = where(part(1, 0.6, 0.7, 0.2), part(2, 0.5, 0.7, 0.6), part(3, 0.3, 0.4, 0.3))
    assert found[3] == found[2] == ("n2", (0,))


def test_what_runs_counts_and_whole_gpus_are_not_shared() -> None:
    whole = replace(running(1, "n1", gpus=1), may_share=False)
    beside = on_shard(2, "n2", GpuPart(0.5, 0.5, 0.5))
    found = where(whole, beside, part(3, 0.6, 0.7, 0.1), part(4, 0.5, 0.5, 0.1), part(5, 0.1, 0.1, 0.1), on=3)
    assert found == {3: ("n3", (0,)), 4: ("n2", (0,)), 5: ("n3", (0,))}


def test_a_better_gpu_where_the_job_may_not_go_is_passed_over() -> None:
    free, best = on_shard(1, "n1", GpuPart(0.3, 0.4, 0.3)), on_shard(2, "n2", GpuPart(0.5, 0.6, 0.5))
    waiting = part(3, 0.3, 0.4, 0.3)
    demanding = replace(waiting, request=GpuRequest(1, gpu_memory_mib=40_960))
    first, second = nodes(2, 1)
    for other, job_ in (
        (replace(second, partitions=frozenset({"others"})), waiting),
        (replace(second, schedulable=False), waiting),
        (replace(second, gpu_memory_mib=16_384), demanding),
    ):
        plan = catalog.build("dilu").plan(snapshot(free, best, job_, on=(first, other)))
        assert [(start.job_id, start.placement) for start in plan.starts] == [(3, (NodeGpus("n1", 1, (0,)),))]


def test_nobody_is_started_where_nothing_fits() -> None:
    assert set(where(part(1, 0.9, 0.9, 0.5), part(2, 0.9, 0.9, 0.5), part(3, 0.9, 0.9, 0.5))) == {1, 2}


SHARE = st.integers(1, 100).map(lambda percent: percent / 100)


@given(st.lists(st.tuples(SHARE, SHARE, SHARE), max_size=20))
def test_bounds_hold_on_every_gpu(shares: list[tuple[float, float, float]]) -> None:
    parts = {i: GpuPart(request, max(request, limit), memory) for i, (request, limit, memory) in enumerate(shares, 1)}
    found = where(*(part(i, p.request, p.limit, p.memory) for i, p in parts.items()), on=3, gpus=2)
    for gpu in set(found.values()):
        here = [parts[i] for i, there in found.items() if there == gpu]
        assert sum(p.request for p in here) <= 1.0 + 1e-6
        assert sum(p.limit for p in here) <= 1.5 + 1e-6
        assert sum(p.memory for p in here) <= 1.0 + 1e-6
