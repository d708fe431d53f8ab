from itertools import combinations_with_replacement, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sched_policy.group.interleave import CONTENTION, Ordering, efficiency, iteration_s, iteration_times_s
from sched_policy.model import StageProfile
from simulation.muri.matching import efficiencies
from simulation.traces.generate import profile
from tests.sched_policy.group.profiles import different, profiles


def _cyclic_s(stages: list[tuple[float, ...]]) -> float:
    """The paper's general form: member i is i slots ahead; a slot lasts as long as its longest stage."""
    slots = len(stages[0])
    return sum(max(times[(slot - i) % slots] for i, times in enumerate(stages)) for slot in range(slots))


def _pipeline_s(order: tuple[StageProfile, ...]) -> float:
    """Period of two rounds of the pipeline, or of the first slots that repeat the last round's within a thousandth."""
    ends = [0.0] * 9
    for i in range(8):
        for member, job in enumerate(order):
            if member == (i + 1) % 4:
                ends[i + 1] = max(ends[i + 1], ends[i] + job.net_s)
            if member == (i + 2) % 4:
                ends[i + 1] = max(ends[i + 1], ends[i] + job.gpu_s)
            if member == (i + 3) % 4 and i > 0:
                ends[i + 1] = max(ends[i + 1], ends[i - 1] + job.io_s)
        if i >= 4:
            period_s, before_s = ends[i + 1] - ends[i - 3], ends[i] - ends[i - 4]
            if abs(period_s - before_s) <= 1e-3 * max(period_s, before_s):
                return period_s
    return ends[8] - ends[4]


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("gpus", [1, 8])
def test_iteration_time_is_that_of_the_best_of_all_orders(size: int, gpus: int) -> None:
    for members in combinations_with_replacement(profiles(gpus), size):
        period_s = min(_pipeline_s(order) for order in permutations(members))
        assert iteration_s(members) == pytest.approx(period_s * CONTENTION[size - 1])


def test_worst_order_is_the_longest_period() -> None:
    members = [profile(model, 8) for model in ("vgg16", "gpt2", "resnet18", "a2c")]
    period_s = max(_pipeline_s(order) for order in permutations(members))
    assert iteration_s(members, Ordering.WORST) == pytest.approx(period_s * CONTENTION[3])
    assert iteration_s(members, Ordering.WORST) > iteration_s(members)


_seconds = st.floats(0.01, 1.0)


@given(st.lists(st.tuples(_seconds, _seconds), min_size=3, max_size=4))
def test_without_reading_it_is_the_papers_general_form(times: list[tuple[float, float]]) -> None:
    members = [StageProfile(1.0, 0.0, gpu_s, net_s) for gpu_s, net_s in times]
    general_s = min(_cyclic_s([(0.0, p.gpu_s, p.net_s, 0.0) for p in order]) for order in permutations(members))
    assert iteration_s(members) == pytest.approx(general_s * CONTENTION[len(members) - 1])


def test_two_jobs_may_alternate() -> None:
    reader, computer = StageProfile(0.5, 0.5, 0.01, 0.0), StageProfile(0.4, 0.001, 0.4, 0.05)
    alternating_s = max(0.5, 0.45) + max(0.001, 0.01)
    assert iteration_s([reader, computer]) <= alternating_s * 1.33 / 1.015
    assert iteration_s([reader, computer]) == iteration_s([computer, reader])


def test_one_job_takes_its_own_iteration_time_whatever_its_stages() -> None:
    assert iteration_s([profile("gpt2")]) == profile("gpt2").iteration_s


def test_efficiency_is_the_busy_share_of_four_slots() -> None:
    members = [profile("a2c"), profile("gpt2")]
    busy_s = 0.514 + 0.014 + 0.0006 + 0.410
    assert efficiency(members) == pytest.approx(busy_s / (4 * iteration_s(members)))
    assert efficiency(members) > efficiency([profile("gpt2"), profile("gpt2")])


@pytest.mark.parametrize("size", [0, 5])
def test_groups_have_one_to_four_members(size: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 4 members, not {size}"):
        iteration_s([profile("dqn")] * size)


@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_many_groups_at_once_are_the_same(size: int, ordering: Ordering) -> None:
    jobs = different(40, size)
    groups = [jobs[start : start + size] for start in range(40 - size)]
    columns = np.array([[(job.iteration_s, job.io_s, job.gpu_s, job.net_s) for job in group] for group in groups])
    assert iteration_times_s(columns, ordering) == pytest.approx([iteration_s(group, ordering) for group in groups])
    assert efficiencies(columns, ordering) == pytest.approx([efficiency(group, ordering) for group in groups])
