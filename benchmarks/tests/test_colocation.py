"""The bound below which no placement can be."""

from benchmarks.colocation import bound
from simulation.colocation.dilu import SHARE_PLACEMENTS
from simulation.colocation.events import generate
from simulation.colocation.instance import GpuLoads, ShareBounds
from simulation.colocation.simulator import colocate


def test_no_placement_needs_fewer_gpus_than_the_bound() -> None:
    trace = generate(60, seed=7)
    least = bound(trace, ShareBounds())
    needed = colocate(trace.events, SHARE_PLACEMENTS["dilu"], GpuLoads.uniform(100, 4, 40 * 1024)).max_active_gpus
    assert 1 < least <= needed


def test_the_scarcest_of_requests_limits_and_memory_counts() -> None:
    trace = generate(60, seed=7)
    assert bound(trace, ShareBounds(request=0.01)) > bound(trace, ShareBounds())
    assert bound(trace, ShareBounds(limit=0.01)) > bound(trace, ShareBounds())
