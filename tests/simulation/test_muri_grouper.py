import pytest

from simulation.muri.matching import Bucket, Grouper
from simulation.traces.generate import profile


def _grouper(*models: str, max_members: int = 4) -> tuple[Grouper, tuple[int, ...]]:
    grouper = Grouper(max_members)
    return grouper, tuple(grouper.kind(profile(model)) for model in models)


def test_nobody_is_grouped_while_there_is_room() -> None:
    grouper, kinds = _grouper("a2c", "gpt2")
    assert grouper.groups([Bucket(2, kinds)], capacity_gpus=4) == [[(0,), (1,)]]


def test_jobs_that_complement_each_other_are_paired() -> None:
    grouper, kinds = _grouper("a2c", "dqn", "gpt2", "bert")
    groups = grouper.groups([Bucket(1, kinds)], capacity_gpus=2)[0]
    readers = {0, 1}
    assert len(groups) == 2
    assert all(len(readers & set(group)) == 1 for group in groups)


def test_pairs_are_merged_only_until_the_groups_fit() -> None:
    grouper, kinds = _grouper(*["a2c", "gpt2"] * 4)
    assert sorted(len(group) for group in grouper.groups([Bucket(1, kinds)], capacity_gpus=7)[0]) == [1] * 6 + [2]
    assert grouper.groups([Bucket(1, kinds)], capacity_gpus=7)[0][0] == (0, 1)


def test_the_second_round_makes_groups_of_four() -> None:
    grouper, kinds = _grouper(*["a2c", "gpt2"] * 4)
    assert sorted(len(group) for group in grouper.groups([Bucket(1, kinds)], capacity_gpus=2)[0]) == [4, 4]
    assert sorted(len(group) for group in grouper.groups([Bucket(1, kinds)], capacity_gpus=1)[0]) == [4, 4]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_groups_are_no_larger_than_asked(most: int) -> None:
    grouper, kinds = _grouper(*["a2c", "gpt2"] * 4, max_members=most)
    groups = grouper.groups([Bucket(1, kinds)], capacity_gpus=1)[0]
    assert max(len(group) for group in groups) <= most
    assert sorted(place for group in groups for place in group) == list(range(8))


def test_a_pair_and_a_single_job_make_three() -> None:
    grouper, kinds = _grouper("a2c", "gpt2", "bert", max_members=3)
    assert [sorted(group) for group in grouper.groups([Bucket(1, kinds)], capacity_gpus=1)[0]] == [[0, 1, 2]]


def test_earlier_buckets_are_merged_first_and_sizes_never_mix() -> None:
    grouper, kinds = _grouper("a2c", "gpt2")
    groups = grouper.groups([Bucket(4, kinds), Bucket(1, kinds)], capacity_gpus=6)
    assert groups == [[(0, 1)], [(0,), (1,)]]
