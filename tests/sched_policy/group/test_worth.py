"""Groups by worth: who runs, who shares, and what runs already."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from sched_policy.group.interleave import MAX_MEMBERS
from sched_policy.group.worth import MOST_KINDS, Packer, SizeBucket, worth_of
from sched_policy.model import StageProfile
from tests.sched_policy.group.profiles import different, profiles

READS = StageProfile(1.0, 0.9, 0.1, 0.0)
COMPUTES = StageProfile(1.0, 0.1, 0.9, 0.0)


def bucket(packer: Packer, kinds: list[StageProfile], worths: list[float], gpus: int = 1, **more: Any) -> SizeBucket:
    return SizeBucket(gpus, tuple(packer.kind(kind) for kind in kinds), tuple(worths), **more)


def test_everyone_runs_alone_while_there_is_room() -> None:
    packer = Packer()
    assert packer.pack([bucket(packer, [READS, COMPUTES], [1.0, 1.0])], 2) == [[(0,), (1,)]]


def test_jobs_that_suit_each_other_share_the_only_gpu() -> None:
    packer = Packer()
    (groups,) = packer.pack([bucket(packer, [COMPUTES, COMPUTES, READS], [1.0, 1.0, 1.0])], 1)
    assert [tuple(sorted(group)) for group in groups] == [(0, 2)]


def test_a_job_worth_much_more_keeps_its_gpu_to_itself() -> None:
    packer = Packer()
    assert packer.pack([bucket(packer, [READS, COMPUTES], [10.0, 1.0])], 1) == [[(0,)]]
    # Muri's matching would make a pair of them, whatever they are worth.


def test_a_large_job_waits_for_small_ones_that_are_worth_more_per_gpu() -> None:
    packer = Packer(max_members=1)
    small = bucket(packer, [READS] * 3, [3.0, 2.0, 0.5])
    large = bucket(packer, [COMPUTES], [1.0], gpus=2)
    assert packer.pack([small, large], 4) == [[(0,), (1,)], [(0,)]]
    assert packer.pack([small, large], 2) == [[(0,), (1,)], []]


def test_members_get_gpus_of_their_own_while_some_are_left() -> None:
    packer = Packer()
    small = bucket(packer, [READS, COMPUTES], [1.0, 1.0])
    large = bucket(packer, [READS], [0.1], gpus=4)  # wanted, but there is no room for it
    groups, none = packer.pack([small, large], 3)
    assert sorted(groups) == [(0,), (1,)]
    assert none == []


def test_nobody_gains_by_stages_that_are_shorter_than_the_iteration() -> None:
    idle = StageProfile(1.0, 0.001, 0.001, 0.001)
    packer = Packer(max_members=2)
    assert packer.pack([bucket(packer, [COMPUTES, idle, idle], [3.0, 1.0, 1.0])], 1) == [[(0, 1)]]
    running = bucket(packer, [COMPUTES, idle, idle], [3.0, 1.0, 1.0], together=((0,),))
    assert packer.pack([running], 1) == [[(0, 1)]]
    assert packer.worth(running, (1, 2)) == pytest.approx(2.0)


def test_more_jobs_than_a_group_has_that_share_a_gpu_all_the_same_are_kept_or_given_up_together() -> None:
    packer = Packer()
    five = tuple(range(MAX_MEMBERS + 1))
    kinds, worths = [COMPUTES] * (len(five) + 1), [1.0] * len(five)
    assert packer.pack([bucket(packer, kinds, [*worths, 0.1], together=(five,))], 1) == [[five]]
    assert packer.pack([bucket(packer, kinds, [*worths, 9.0], together=(five,))], 1) == [[(len(five),)]]


class Counting(Packer):
    """Counts how many groups are looked at one by one."""

    looked_at = 0

    def iteration_s(self, kinds: Iterable[int]) -> float:
        self.looked_at += 1
        return super().iteration_s(kinds)


def test_a_running_group_is_offered_the_best_of_many_kinds_only() -> None:
    packer = Counting(max_members=2)
    jobs = different(20 * MOST_KINDS, 1)
    packer.pack([bucket(packer, jobs, [1.0 + i for i in range(len(jobs))], together=((0,),))], 1)
    assert packer.looked_at < 3 * MOST_KINDS


def test_jobs_that_share_with_nobody_are_alone() -> None:
    packer = Packer()
    assert packer.pack([bucket(packer, [READS, COMPUTES], [1.0, 1.0], may_share=False)], 1) == [[(0,)]]


def test_a_group_that_runs_is_kept_unless_others_are_worth_clearly_more() -> None:
    packer = Packer(stay=1.5)
    for worth, kept in ((1.4, [(0,)]), (20.0, [(1,)])):
        alike = bucket(packer, [COMPUTES, COMPUTES], [1.0, worth], together=((0,),))
        assert packer.pack([alike], 1) == [kept]


def test_a_waiting_job_joins_a_running_one_that_it_suits() -> None:
    packer = Packer(stay=1.5)
    assert packer.pack([bucket(packer, [READS, COMPUTES], [1.0, 1.0], together=((0,),))], 1) == [[(0, 1)]]
    # Who runs together is not split: both would have to move.
    apart = bucket(packer, [READS, COMPUTES, COMPUTES], [1.0, 1.0, 1.0], together=((0, 1),))
    assert sorted(packer.pack([apart], 2)[0]) == [(0, 1), (2,)]


def test_the_first_group_is_the_best_of_all_groups() -> None:
    kinds = [*profiles(8), *profiles(8)[:3]]
    ones = np.ones(len(kinds))
    worths = worth_of(np.geomspace(100.0, 1e6, len(kinds)), ones, ones, 8).tolist()
    packer = Packer()
    everyone = bucket(packer, kinds, worths, gpus=8)
    (groups,) = packer.pack([everyone], 8)
    subsets = chain.from_iterable(combinations(range(len(kinds)), size) for size in range(1, 5))
    best = max(packer.worth(everyone, subset) for subset in subsets)
    assert packer.worth(everyone, groups[0]) == pytest.approx(best)


def test_a_large_job_takes_the_place_of_small_ones_that_leave_gpus_unused() -> None:
    packer = Packer(max_members=1)
    buckets = [bucket(packer, [COMPUTES], [1.0]), bucket(packer, [COMPUTES], [0.9], gpus=2)]
    assert packer.pack(buckets, 2) == [[], [(0,)]]
    assert packer.pack(buckets, 3) == [[(0,)], [(0,)]]
    buckets[0] = bucket(packer, [COMPUTES, COMPUTES], [1.0, 1.0])
    assert packer.pack(buckets, 2) == [[(0,), (1,)], []]


def test_a_job_is_worth_the_waiting_of_those_behind_it_and_its_own() -> None:
    service, gpus, price = np.array([10.0, 30.0, 20.0, 20.0]), np.array([1, 1, 2, 4]), np.array([1.0, 0.5, 1.0, 0.5])
    # Costs are 10, 15, 20, 10 GPU-seconds: two, one, none and two cost more; a second is worth that on 4 GPUs.
    expected = [1 + 2 / 4, 1 + 0.5 / 4, 1 / 2, 1 / 4 + 0.5 * 2 / 4]
    assert worth_of(service, gpus, price, 4).tolist() == pytest.approx(expected)


def test_prices_are_what_each_kind_costs_among_good_partners() -> None:
    packer = Packer(max_members=2)
    kinds = [packer.kind(profile) for profile in (READS, COMPUTES, COMPUTES)]
    reads, computes, again = packer.prices(kinds)
    pair_s = packer.iteration_s(kinds[:2])
    assert computes == again
    assert reads + computes == pytest.approx(pair_s)  # of two seconds of work, one each
    assert packer.prices(kinds[:1]).tolist() == pytest.approx([packer.iteration_s([kinds[0]] * 2) / 2])


def test_a_plan_solves_for_prices_only_where_the_jobs_are_not_those_of_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plans of a quiet cluster differ in nothing but the time, and a replay of months has tens of thousands."""
    solve, solved = optimize.linprog, []

    def counting(*problem: Any, **how: Any) -> Any:
        solved.append(problem)
        return solve(*problem, **how)

    monkeypatch.setattr(optimize, "linprog", counting)
    jobs = different(5, 77)
    found = []
    for plan in (jobs, jobs, jobs[:4]):
        packer = Packer(max_members=2)
        found.append(packer.prices([packer.kind(profile) for profile in plan]).tolist())
    assert found[0] == found[1]
    assert len(solved) == 2


def test_stages_far_shorter_than_their_iteration_have_prices() -> None:
    packer = Packer()
    stages = ((1e-9, 0, 0), (0, 1e-9, 0), (0, 0, 1e-9))  # as much as the option takes: 999999999/0.000001/0/0
    kinds = [packer.kind(StageProfile(999_999.999, *times)) for times in stages]
    assert (packer.prices([*kinds, packer.kind(StageProfile(0.01, 0.001, 0.002, 0.003))]) > 0).all()


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_no_job_runs_twice_and_no_gpu_is_given_twice(jobs: int, capacity: int, seed: int) -> None:
    """Also with many more kinds than are looked at together."""
    packer = Packer()
    made = different(jobs, seed)
    assert jobs <= MOST_KINDS or len(set(made)) > MOST_KINDS
    price = packer.prices([packer.kind(kind) for kind in made])
    worths = worth_of(np.random.default_rng(seed).uniform(1.0, 1e6, jobs), np.ones(jobs), price, capacity).tolist()
    buckets = [bucket(packer, made[::2], worths[::2]), bucket(packer, made[1::2], worths[1::2], gpus=2)]
    packed = packer.pack(buckets, capacity)
    for groups in packed:
        places = [place for group in groups for place in group]
        assert len(places) == len(set(places))
    wanted = sum(one.gpus * len(groups) for one, groups in zip(buckets, packed, strict=True))
    assert wanted <= capacity
    assert wanted >= min(capacity - 1, sum(one.gpus * len(one.kinds) for one in buckets))


def test_group_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="1 to 4"):
        Packer(max_members=5)
