"""Scopes: a policy permutes the places that Slurm gives to a user's jobs, and nobody's reports decide over others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from sched_policy import catalog
from sched_policy.backfill import Backfill
from sched_policy.catalog import PolicyOptions
from sched_policy.checked import checked_plan
from sched_policy.model import Exploration, GpuRequest, Job
from sched_policy.order import Srsf
from sched_policy.place import Consolidate, Indexed, Room
from sched_policy.queue_order import within_scopes
from sched_policy.snapshot import Snapshot
from sched_policy.utility import ByUtility
from tests.sched_policy.builders import EXPLORING, NOW_S, curve, job, row, running, snapshot


def of(user: str, job_id: int, priority: float = 100.0, gpus: int = 1, **fields: Any) -> Job:
    """A user's waiting job; all of a user's are peers."""
    return job(job_id, gpus, user=user, scope=user, native_priority=priority, **fields)


def order(seen: Snapshot) -> list[int]:
    ranking = within_scopes(Srsf().rank(seen), seen)
    return [score.job_id for score in ranking]


def test_a_short_job_takes_the_best_place_of_its_own_user_only() -> None:
    jobs = (
        of("ada", 1, 900, time_limit_s=5000.0),
        of("bob", 2, 800, time_limit_s=900.0),
        of("ada", 3, 700, time_limit_s=10.0),
        of("bob", 4, 600, time_limit_s=20.0),
        of("ada", 5, 500, time_limit_s=600.0),
    )
    assert order(snapshot(*jobs)) == [3, 4, 5, 2, 1]


def test_only_equals_exchange_their_places() -> None:
    jobs = (
        of("ada", 1, 900, time_limit_s=5000.0, peers="low"),
        of("ada", 2, 800, time_limit_s=10.0, peers="high"),
        of("ada", 3, 700, time_limit_s=20.0, peers="low"),
    )
    assert order(snapshot(*jobs)) == [3, 2, 1]


_JOBS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 4), st.integers(1, 50), st.booleans()),
    max_size=30,
)


@given(_JOBS)
def test_whose_turn_it_is_stays_slurms_decision(drawn: list[tuple[str, str, int, int, bool]]) -> None:
    jobs = [
        of(user, i + 1, priority, peers=peers, time_limit_s=60.0 * minutes, is_overdue=overdue)
        for i, (user, peers, priority, minutes, overdue) in enumerate(drawn)
    ]
    seen = snapshot(*jobs)
    by_id = {one.job_id: one for one in jobs}
    slurms = sorted(jobs, key=lambda one: (-one.native_priority, one.submit_s))
    ours = [by_id[job_id] for job_id in order(seen)]
    assert [(one.user, one.peers) for one in ours] == [(one.user, one.peers) for one in slurms]
    for kind in {(one.user, one.peers) for one in jobs}:
        mine = [one for one in ours if (one.user, one.peers) == kind]
        late = sum(one.is_overdue for one in mine)
        assert all(one.is_overdue for one in mine[:late])
        assert [one.submit_s for one in mine[:late]] == sorted(one.submit_s for one in mine[:late])
        assert [one.time_limit_s for one in mine[late:]] == sorted(one.time_limit_s or 0 for one in mine[late:])


def test_one_scope_is_the_policys_own_order() -> None:
    seen = snapshot(job(1, time_limit_s=500.0), running(2, "n1"), job(3, time_limit_s=50.0))
    ranking = Srsf().rank(seen)
    assert within_scopes(ranking, seen) is ranking


def test_the_policies_that_take_turns_are_known() -> None:
    """They preempt without naming a beneficiary, so nothing could keep them within a scope."""
    from sched_policy.group.muri import Interleave

    policies = {name: catalog.build(name) for name in catalog.POLICIES.names()}
    in_turns = {name for name, one in policies.items() if isinstance(getattr(one, "sharing", None), Interleave)}
    assert in_turns == catalog.TAKES_TURNS


@pytest.mark.parametrize("name", sorted(set(catalog.POLICIES.names()) - catalog.TAKES_TURNS))
def test_an_overdue_job_comes_first_in_every_policy(name: str) -> None:
    """Whatever a policy prefers: here the overdue job is the longest, the largest, and reports the least."""
    others = [of("ada", i, exploration=EXPLORING, points=curve(0.1, 0.9, 600.0), total_steps=100) for i in range(2, 9)]
    late = of("ada", 9, gpus=4, time_limit_s=90_000.0, is_overdue=True)
    full = [running(20 + i, f"n{i}", 4, user="ada", scope="ada") for i in (1, 2)]
    seen = snapshot(*others, late, *full)
    plan = catalog.build(name).plan(seen)
    waiting = [score.job_id for score in plan.scores if score.job_id < 20]
    assert waiting[0] == 9


def test_an_overdue_job_is_promised_a_start_even_by_greedy_policies() -> None:
    late = of("ada", 9, gpus=8, is_overdue=True)
    short = of("ada", 10, gpus=4, time_limit_s=1e6)
    seen = snapshot(late, short, running(1, "n1", 4, user="ada", scope="ada"))
    plan = row("srsf").plan(seen)
    assert [promise.job_id for promise in plan.reservations] == [9]
    assert plan.starts == ()  # it would delay the planned start
    assert row("srsf").backfill == Backfill(0)


def test_an_overdue_job_that_runs_is_not_preempted() -> None:
    victim = running(1, "n1", 4, exploration=EXPLORING, time_limit_s=90_000.0)
    short = job(3, 4, time_limit_s=60.0)
    full = running(2, "n2", 4)
    policy = row("srsf")
    assert [p.job_id for p in policy.plan(snapshot(victim, full, short)).preemptions] == [1]
    assert policy.plan(snapshot(replace(victim, is_overdue=True), full, short)).preemptions == ()


def test_nobody_makes_room_for_another_users_job() -> None:
    held = [running(i, f"n{i}", 4, user="bob", scope="bob", exploration=EXPLORING) for i in (1, 2)]
    short = of("ada", 3, gpus=4, time_limit_s=1.0)
    policy = row("srsf")
    assert policy.plan(snapshot(*held, short)).preemptions == ()
    own = replace(held[0], scope="ada")
    assert [p.job_id for p in policy.plan(snapshot(own, held[1], short)).preemptions] == [1]


def test_another_users_job_makes_room_only_where_fair_share_favours_the_waiting_one() -> None:
    held = [running(i, f"n{i}", 4, user="bob", scope="bob", exploration=EXPLORING, fair_share=100.0) for i in (1, 2)]
    short = of("ada", 3, gpus=4, time_limit_s=1.0, fair_share=400.0)
    policy = row("srsf")

    def gone(*jobs: Job) -> list[int]:
        return [preemption.job_id for preemption in checked_plan(policy, snapshot(*jobs)).preemptions]

    assert gone(*held, short) == [1]
    assert gone(*held, replace(short, fair_share=149.0)) == []  # not by the margin
    assert gone(*held, replace(short, fair_share=None)) == []
    assert gone(*(replace(one, fair_share=None) for one in held), short) == []
    assert gone(*(replace(one, lane="high") for one in held), short) == []
    assert gone(*(replace(one, exploration=None) for one in held), short) == []
    own = replace(held[0], scope="ada", user="ada", fair_share=400.0)
    assert gone(own, replace(held[1], fair_share=1.0), short) == [1]  # its owner's come first


def test_nobody_makes_room_if_another_user_would_get_it() -> None:
    """What comes free goes to whom Slurm puts first."""
    own = running(1, "n1", 4, user="ada", scope="ada", exploration=EXPLORING)
    full = running(2, "n2", 4, user="eve", scope="eve")
    short = of("ada", 3, 100, gpus=4, time_limit_s=1.0)
    before = of("bob", 4, 200, gpus=2)
    policy = row("srsf")
    assert policy.plan(snapshot(own, full, before, short)).preemptions == ()
    after = replace(before, native_priority=50.0)
    assert [p.job_id for p in policy.plan(snapshot(own, full, after, short)).preemptions] == [1]


class CountingPlace(Struct):
    """Counts how often somebody looks for room."""

    looks: int = 0

    @property
    def binds(self) -> bool:
        return False

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        self.looks += 1
        return Consolidate().place(request, room)


def test_jobs_alike_of_one_user_are_turned_down_together() -> None:
    """However many of them wait behind another user's job that would get what comes free."""

    def looks(count: int) -> int:
        held = [running(i, f"n{i}", 4, user="ada", scope="ada", exploration=EXPLORING) for i in (1, 2)]
        before = of("bob", 3, 900, gpus=2)
        short = [of("ada", 10 + i, 100, gpus=4, time_limit_s=1.0 + i) for i in range(count)]
        place = CountingPlace()
        assert replace(row("srsf"), place=place).plan(snapshot(*held, before, *short)).preemptions == ()
        return place.looks

    assert looks(100) == looks(2)


def test_a_job_like_one_that_was_turned_down_is_asked_about_again_when_less_is_free() -> None:
    """The GPU that is vacated would let Bob's job start once Ada's victim went, until a job of hers gets it."""
    held = [
        running(1, "n1", 3, user="ada", scope="ada", exploration=EXPLORING),
        running(2, "n1", 1, user="eve", scope="eve", asked_to_leave=True),
        running(3, "n2", 4, user="eve", scope="eve"),
    ]
    bob = of("bob", 4, 900, gpus=4)
    first, last = of("ada", 5, 800, gpus=3, time_limit_s=1.0), of("ada", 7, 600, gpus=3, time_limit_s=2.0)
    small = of("ada", 6, 700, gpus=1, time_limit_s=4.0)
    policy = row("srsf")
    assert policy.plan(snapshot(*held, bob, first, last)).preemptions == ()
    assert [p.beneficiary for p in policy.plan(snapshot(*held, bob, first, small, last)).preemptions] == [7]


def test_a_lie_about_progress_moves_nobody_elses_job() -> None:
    """With and without a neighbour who invents a steep curve: the same plan for the others."""

    def plan_of_others(*liars: Job) -> tuple[list[int], list[int], list[int]]:
        held = running(1, "n1", 4, user="ada", scope="ada", exploration=EXPLORING, points=curve(0.9, 0.1, 9000.0))
        full = running(2, "n2", 4, user="bob", scope="bob")
        waiting = [
            of("ada", 11, 300, gpus=4, exploration=EXPLORING, points=curve(0.2, 0.8, 3000.0)),
            of("ada", 12, 200, gpus=4, time_limit_s=500.0),
            of("ada", 13, 100, gpus=4, exploration=EXPLORING, points=curve(0.4, 0.7, 3000.0)),
        ]
        plan = catalog.build("explsched", PolicyOptions(reservation_depth=3)).plan(
            snapshot(held, full, *waiting, *liars)
        )
        others = {1, 2, 11, 12, 13}
        return (
            [score.job_id for score in plan.scores if score.job_id in others and score.job_id > 10],  # those that wait
            [p.job_id for p in plan.preemptions if p.job_id in others],
            [promise.job_id for promise in plan.reservations if promise.job_id in others],
        )

    steep = of("liar", 99, 50, gpus=4, exploration=EXPLORING, points=curve(0.0, 9.0, 1.0))
    assert plan_of_others(steep) == plan_of_others()


_LIES: dict[str, dict[str, Any]] = {
    "faked": {"points": curve(0.0, 9.0, 1.0)},
    "constant": {"points": curve(1.0, 1.0, 3000.0)},
    "missing": {"points": ()},
    "perfect": {"points": curve(0.0, 9.0, 1.0, reports=1), "total_steps": 1},
    "sweeps": {"points": (), "exploration": Exploration(sweep="of its own", checkpoint_signal="USR1")},
}


@pytest.mark.parametrize("lie", _LIES)
@pytest.mark.parametrize("name", sorted(set(catalog.POLICIES.names()) - catalog.TAKES_TURNS))
def test_a_lie_gives_its_teller_no_place_and_no_gpu_of_somebody_elses(name: str, lie: str) -> None:
    """In every policy, whatever a user says: whose turn it is at each place, and what of others is interrupted."""

    def of_all(told: dict[str, Any]) -> tuple[list[str], list[int], list[int]]:
        honest = {"gpus": 4, "exploration": EXPLORING, "points": curve(0.3, 0.7, 3000.0)}
        held = running(1, "n1", 4, user="ada", scope="ada", exploration=EXPLORING, points=curve(0.9, 0.1, 9000.0))
        own = running(2, "n2", 4, user="liar", scope="liar", **{"exploration": EXPLORING, **told})
        waiting = [of("ada", number, 1000 - 10 * number, **honest) for number in (11, 13, 15)]
        lying = [of("liar", number, 1000 - 10 * number, **{**honest, **told}) for number in (10, 12, 14)]
        seen = snapshot(held, own, *waiting, *lying)
        plan, owner = catalog.build(name).plan(seen), {job.job_id: job.user for job in seen.jobs}
        ranked = [score.job_id for score in plan.scores if score.job_id >= 10]
        places = [owner[job_id] for job_id in ranked]
        others = [job_id for job_id in ranked if owner[job_id] != "liar"]
        return places, others, [gone.job_id for gone in plan.preemptions if owner[gone.job_id] != "liar"]

    assert of_all(_LIES[lie]) == of_all({"points": curve(0.3, 0.7, 3000.0)})


def test_silent_jobs_are_ranked_among_their_own_users_curves() -> None:
    own = [of("ada", i, exploration=EXPLORING, points=curve(0.3, 0.5, 2000.0 * i)) for i in (1, 2, 3)]
    silent = of("ada", 4, time_limit_s=100.0)
    liar = of("liar", 5, exploration=EXPLORING, points=curve(0.0, 9.0, 1.0))

    def place(*jobs: Job) -> int:
        seen = Snapshot.of(NOW_S, (), jobs)
        ranked = [score.job_id for score in ByUtility().rank(seen) if score.job_id != 5]
        return ranked.index(4)

    assert place(*own, silent, liar) == place(*own, silent)


def test_the_plan_of_another_package_may_not_preempt_across_scopes() -> None:
    from sched_policy.checked import checked_plan
    from sched_policy.plan import Plan, Preemption

    class Across:
        name = "across"
        summary = ""
        needs_durations = False

        def plan(self, _snapshot: Snapshot) -> Plan:
            return Plan(preemptions=(Preemption(1, "", 3),))

    victim = running(1, "n1", 4, user="bob", scope="bob", exploration=EXPLORING)
    with pytest.raises(Exception, match="preempts job 1 of scope 'bob' for job 3 of 'ada'"):
        checked_plan(Across(), snapshot(victim, of("ada", 3, gpus=4)))
