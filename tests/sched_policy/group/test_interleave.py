from itertools import combinations_with_replacement, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sched_policy.group.interleave import CONTENTION, Ordering, Profile, efficiency, iteration_s
from tests.sched_policy.group.profiles import profile, profiles


def _cyclic_s(stages: list[tuple[float, ...]]) -> float:
    """The paper's general form: member i is i slots ahead; a slot lasts as long as its longest stage."""
    slots = len(stages[0])
    return sum(max(times[(slot - i) % slots] for i, times in enumerate(stages)) for slot in range(slots))


def _long_run_s(order: tuple[Profile, ...], rounds: int = 20) -> float:
    """Average period of the pipeline over many rounds: member i talks in slot i, computed before, read before that.

    Reading may begin one slot early, so it has to end two slots after its beginning.
    """
    ends = [0.0]
    for slot in range(4 * rounds):
        waits = [ends[slot] + order[(slot + 1) % 4].net_s] if (slot + 1) % 4 < len(order) else []
        waits += [ends[slot] + order[(slot + 2) % 4].gpu_s] if (slot + 2) % 4 < len(order) else []
        waits += [ends[slot - 1] + order[(slot + 3) % 4].io_s] if slot > 0 and (slot + 3) % 4 < len(order) else []
        ends.append(max(waits, default=0.0))
    return (ends[-1] - ends[-1 - 4 * (rounds // 2)]) / (rounds // 2)


@pytest.mark.parametrize("size", [3, 4])
def test_iteration_time_is_the_long_run_period_of_the_best_order(size: int) -> None:
    """Within 2 %: the formula takes a pipeline for steady when two rounds differ by less than a thousandth."""
    for members in combinations_with_replacement(profiles(8), size):
        period_s = min(_long_run_s(order) for order in set(permutations(members)))
        assert iteration_s(members) == pytest.approx(period_s * CONTENTION[size - 1], rel=2e-2)


def test_worst_order_is_the_longest_period() -> None:
    members = [profile(model, 8) for model in ("vgg16", "gpt2", "resnet18", "a2c")]
    period_s = max(_long_run_s(order) for order in permutations(members))
    assert iteration_s(members, Ordering.WORST) == pytest.approx(period_s * CONTENTION[3], rel=2e-3)
    assert iteration_s(members, Ordering.WORST) > iteration_s(members)


_seconds = st.floats(0.01, 1.0)


@given(st.lists(st.tuples(_seconds, _seconds), min_size=3, max_size=4))
def test_without_reading_it_is_the_papers_general_form(times: list[tuple[float, float]]) -> None:
    members = [Profile(1.0, 0.0, gpu_s, net_s) for gpu_s, net_s in times]
    general_s = min(_cyclic_s([(0.0, p.gpu_s, p.net_s, 0.0) for p in order]) for order in permutations(members))
    assert iteration_s(members) == pytest.approx(general_s * CONTENTION[len(members) - 1])


def test_two_jobs_may_alternate() -> None:
    reader, computer = Profile(0.5, 0.5, 0.01, 0.0), Profile(0.4, 0.001, 0.4, 0.05)
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
