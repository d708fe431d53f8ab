"""The books of shared GPUs: what a start takes, a delete gives back, whatever happened in between."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explsched.errors import PolicyError
from sched_policy.model import Node, NodeGpus
from sched_policy.snapshot import Nodes
from simulation.colocation.instance import GpuLoads, Hosted, InstanceShare
from tests.simulation.colocation.builders import cluster, inference, on, training


def test_gpus_are_numbered_through_unequal_nodes() -> None:
    loads = GpuLoads(Nodes([Node("a", 2, gpu_memory_mib=10), Node("b", 0), Node("c", 3, schedulable=False)]))
    assert loads.node.tolist() == [0, 0, 2, 2, 2]
    assert loads.position.tolist() == [0, 1, 0, 1, 2]
    assert loads.capacity_mib.tolist() == [10, 10, 0, 0, 0]
    assert loads.usable.tolist() == [True, True, False, False, False]
    assert loads.index(2, 1) == 3
    shares = tuple(InstanceShare(gpu, 1, 1, 1) for gpu in (4, 0, 3))
    assert loads.named(shares) == (NodeGpus("a", 1, (0,)), NodeGpus("c", 2, (1, 2)))


def test_a_delete_gives_back_every_gpu_of_a_training() -> None:
    loads = cluster(on(0, training(gib=(30, 25, 35)), 1, 2, 3))
    assert loads.memory_mib[1:4].tolist() == [30 * 1024, 25 * 1024, 35 * 1024]
    loads.remove(0)
    for sums in (loads.memory_mib, loads.request_ppb, loads.limit_ppb, loads.instances):
        assert not sums.any()
    assert loads.on_gpu(1) == () and loads.of_service("train") == () and loads.hosted == ()


def test_keys_are_used_once() -> None:
    loads = cluster(on(0, inference(), 1))
    with pytest.raises(PolicyError, match=r"instance 0 \(web\) runs already"):
        loads.add(on(0, inference(), 2))
    with pytest.raises(PolicyError, match="no instance 5 runs here"):
        loads.remove(5)
    assert loads.instances.sum() == 1


@settings(max_examples=100)
@given(
    shares=st.lists(st.tuples(st.integers(0, 7), st.floats(1e-9, 1.0), st.integers(1, 50)), min_size=1, max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_deletes_in_any_order_leave_what_was_there_to_the_bit(
    shares: list[tuple[int, float, int]], order: object
) -> None:
    loads = cluster(on(1000, inference("first", request=0.1, limit=1 / 3), 0))
    before = [sums.copy() for sums in (loads.request_ppb, loads.limit_ppb, loads.memory_mib, loads.instances)]
    keys = list(range(len(shares)))
    for key, (gpu, share, gib) in zip(keys, shares, strict=True):
        loads.add(on(key, inference("s", request=share, limit=share, gib=gib), gpu))
    assert loads.instances.sum() == 1 + len(shares)
    order.shuffle(keys)  # type: ignore[attr-defined]
    for key in keys:
        loads.remove(key)
    after = (loads.request_ppb, loads.limit_ppb, loads.memory_mib, loads.instances)
    assert all(np.array_equal(was, now) for was, now in zip(before, after, strict=True))
    assert [hosted.key for hosted in loads.hosted] == [1000]


def test_a_copy_is_independent() -> None:
    loads = cluster(on(0, inference(), 1))
    other = loads.copy()
    other.add(Hosted(1, inference(), (InstanceShare(1, 5, 5, 5),)))
    assert (loads.instances[1], other.instances[1]) == (1, 2)
