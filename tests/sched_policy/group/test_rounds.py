import pytest

from sched_policy.group.rounds import Rounds
from simulation.traces.generate import profile


@pytest.mark.parametrize(("jobs", "sizes"), [(1, [1]), (2, [2]), (3, [3]), (4, [4]), (8, [4, 4])])
def test_jobs_end_up_in_as_few_groups_as_rounds_lead_to(jobs: int, sizes: list[int]) -> None:
    rounds = Rounds()
    kinds = [rounds.kind(profile(model)) for model in ["a2c", "gpt2"] * 4][:jobs]
    groups = rounds.fewest(kinds)
    assert sorted(len(group) for group in groups) == sizes
    assert sorted(place for group in groups for place in group) == list(range(jobs))


def test_jobs_that_complement_each_other_are_paired_first() -> None:
    rounds = Rounds()
    kinds = [rounds.kind(profile(model)) for model in ("a2c", "dqn", "gpt2", "bert")]
    pairs = rounds.merged(kinds, [(place,) for place in range(4)], most=2)
    assert all(len({0, 1} & set(pair)) == 1 for pair in pairs)
