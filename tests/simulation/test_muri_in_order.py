"""Groups without matching: neighbours in priority, no more than the GPUs ask for."""

import pytest

from sched_policy.model import StageProfile
from simulation import muri
from simulation.muri.interleaved import InOrder
from simulation.muri.matching import Bucket, Grouper
from simulation.traces.trace import ClusterShape, Trace
from tests.simulation.muri_jobs import model_job


def test_neighbours_share_until_the_gpus_suffice() -> None:
    buckets = [Bucket(1, (0,) * 6), Bucket(2, (0,) * 3)]
    # 6 + 2 x 3 = 12 GPUs wanted, 7 there: five must go, of the first bucket four (3 + 1), of the second one job of two.
    assert InOrder().groups(buckets, 7) == [[(0, 1, 2, 3), (4, 5)], [(0, 1), (2,)]]
    assert InOrder().groups(buckets, 10) == [[(0, 1, 2), (3,), (4,), (5,)], [(0,), (1,), (2,)]]
    assert InOrder().groups(buckets, 12) == [[(place,) for place in range(6)], [(0,), (1,), (2,)]]
    assert InOrder(max_members=2).groups(buckets, 1) == [[(0, 1), (2, 3), (4, 5)], [(0, 1), (2,)]]


def test_only_groups_of_four_cost_less_than_with_matching() -> None:
    profile = StageProfile(iteration_s=1.0, io_s=0.5, gpu_s=0.4, net_s=0.1)
    matched, in_order = Grouper(), InOrder()
    assert matched.kind(profile) == in_order.kind(profile) == 0
    for members in (1, 2, 3):
        assert in_order.iteration_s((0,) * members) == matched.iteration_s((0,) * members)
    assert in_order.iteration_s((0,) * 4) == pytest.approx(matched.iteration_s((0,) * 4) * 1.3 / 1.37)


def test_a_replay_groups_neighbours_where_matching_groups_what_fits() -> None:
    # Two jobs that read most of the time, then two that compute most of the time, on two GPUs.
    models = ("resnet18", "resnet18", "gpt2", "gpt2")
    trace = Trace.of([model_job(index, model, 1, 2000.0) for index, model in enumerate(models)])
    ends_s = {}
    for grouping in muri.Grouping:
        options = muri.MuriOptions(max_members=2, grouping=grouping)
        outcome = muri.simulate(trace, ClusterShape(1, 2), "muri-l", options)
        ends_s[grouping] = sum(job.end_s for job in outcome.jobs)
    assert ends_s[muri.Grouping.IN_ORDER] > 1.03 * ends_s[muri.Grouping.MATCHING]
