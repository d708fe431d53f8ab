"""From an order within scopes to site factors: exactly Slurm's order between users, with few writes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sched_policy.plan import Plan, Score
from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.backfill_replay import on_own_places, started_on_own_places
from slurm_plugin.steering.places import place_changes, put_first
from tests.slurm_kit import record

NOW_S = 10_000.0
ALL = 1_000_000


def waiting(job_id: int, user: str, native: int, **fields: Any) -> SlurmJob:
    """A job as Slurm shows it before anybody has changed it."""
    base = {"user": user, "natives": (native,), "priority": native, "site_factor": 0, "submit_s": float(job_id)}
    return record(job_id, **{**base, "eligible_s": float(job_id), **fields})


def look(jobs: Sequence[SlurmJob], others: Mapping[int, int] | None = None) -> Observation:
    remembered = Remembered(base_factors=others or {})
    return observe(ClusterRecords((), tuple(jobs), ()), ProgressSpool(Path("/nowhere")), NOW_S, remembered=remembered)


def written(jobs: Sequence[SlurmJob], changes: Sequence[SetSiteFactor]) -> list[SlurmJob]:
    """The jobs as Slurm shows them afterwards."""
    factors = {change.job_id: change.site_factor for change in changes}
    after = []
    for job in jobs:
        factor = factors.get(job.job_id, job.site_factor or 0)
        after.append(replace(job, site_factor=factor, priority=job.priority_with(factor)))
    return after


def as_slurm_orders(jobs: Sequence[SlurmJob]) -> list[int]:
    return [job.job_id for job in sorted(jobs, key=lambda job: (-job.priority, job.submit_s, job.job_id))]


def settled(jobs: Sequence[SlurmJob], wanted: Sequence[int], most: int = ALL) -> tuple[list[SlurmJob], list[int]]:
    """The jobs when a pass finds nothing to change, and how much each pass wrote."""
    jobs, writes = list(jobs), []
    while changes := place_changes(look(jobs), wanted, most):
        jobs = written(jobs, changes)
        writes.append(len(changes))
        assert len(writes) < 1000
    return jobs, writes


def test_a_job_gets_the_priority_of_its_place() -> None:
    jobs = [waiting(1, "ada", 900), waiting(2, "bob", 800), waiting(3, "ada", 700)]
    assert set(place_changes(look(jobs), [3, 2, 1], ALL)) == {SetSiteFactor(1, -200), SetSiteFactor(3, 200)}


def test_the_order_between_users_is_slurms() -> None:
    jobs = [waiting(1, "ada", 900), waiting(2, "bob", 800), waiting(3, "ada", 700), waiting(4, "bob", 600)]
    after, writes = settled(jobs, [4, 2, 3, 1])  # as if one user's jobs were better than all of the other's
    assert as_slurm_orders(after) == [3, 4, 1, 2]
    assert len(writes) == 1


def test_the_head_is_written_first() -> None:
    jobs = [waiting(i, "ada", 1000 - 10 * i) for i in range(1, 51)]
    changes = place_changes(look(jobs), list(range(50, 0, -1)), 10)
    assert {change.job_id for change in changes} == {*range(1, 6), *range(46, 51)}  # who stands too high goes, too


def test_users_take_turns_where_a_pass_cannot_write_all() -> None:
    """Or one whose jobs change places in each pass would leave none of the writes to users whose jobs come later."""
    first = [waiting(i, "eve", 1000 - 20 * i) for i in range(1, 11)]
    later = [waiting(i, "ada", 1000 - 20 * i) for i in range(11, 15)]
    changes = place_changes(look([*first, *later]), [*range(10, 0, -1), *range(14, 10, -1)], 6)
    assert [{one.job_id for one in changes[at : at + 2]} for at in (0, 2, 4)] == [{1, 10}, {11, 14}, {2, 9}]


def test_a_job_that_moves_to_the_front_costs_a_write_for_each_user_it_passes() -> None:
    """Not one for each job: between two jobs of others only their order counts."""
    jobs = [waiting(i, "ada", 10_000 - 20 * i) for i in range(1, 101)]
    jobs += [waiting(200, "bob", 9_010)]  # between ada's 49th and 50th
    after, writes = settled(jobs, [100, *range(1, 100), 200])
    order = as_slurm_orders(after)
    assert order[0] == 100
    assert order.index(200) == as_slurm_orders(jobs).index(200)
    assert sum(writes) <= 6


def test_a_job_that_was_just_written_is_compared_by_the_same_clock() -> None:
    """Slurm computes its age anew at once, of the others later: nothing is written because of that."""
    jobs = [waiting(1, "ada", 900), waiting(2, "bob", 800), waiting(3, "ada", 700), waiting(4, "bob", 750)]
    after, _ = settled(jobs, [3, 1, 2, 4])
    aged = [replace(job, age_lag=150) for job in after]
    aged[2] = replace(after[2], natives=(850,), priority=1050)  # written again, or later than the others
    assert place_changes(look(aged), [3, 1, 2, 4], ALL) == ()
    behind = [replace(job, age_lag=0) for job in aged]  # as if Slurm's own priorities were really so
    assert place_changes(look(behind), [3, 1, 2, 4], ALL) != ()


def test_jobs_that_are_not_steered_keep_their_place_and_are_not_written() -> None:
    jobs = [waiting(1, "ada", 900), waiting(2, "bob", 800, gpus=0, gpus_per_node=None), waiting(3, "ada", 700)]
    after, writes = settled(jobs, [3, 1])
    assert as_slurm_orders(after) == [3, 2, 1]
    assert writes == [2]
    assert after[1].site_factor == 0


def test_a_priority_that_an_operator_has_set_is_lent_to_nobody() -> None:
    jobs = [waiting(1, "ada", 5000, site_factor=None), waiting(2, "bob", 800), waiting(3, "ada", 700)]
    after, writes = settled(jobs, [3, 1, 2])
    assert as_slurm_orders(after) == [1, 2, 3]
    assert writes == []


def test_what_backfill_has_put_back_is_written_again() -> None:
    jobs, _ = settled([waiting(1, "ada", 900), waiting(2, "ada", 700), waiting(3, "bob", 800)], [2, 1, 3])
    stale = [replace(job, priority=max(job.natives)) for job in jobs]
    assert place_changes(look(jobs), [2, 1, 3], ALL) == ()
    assert set(place_changes(look(stale), [2, 1, 3], ALL)) == {SetSiteFactor(1, -200), SetSiteFactor(2, 200)}


def test_a_job_in_several_partitions_is_in_force_if_one_of_its_priorities_is() -> None:
    job = waiting(1, "ada", 900, partition="main,long", natives=(900, 500), priority=500)
    assert job.is_in_force
    assert not replace(job, priority=700).is_in_force


def test_somebody_elses_site_factor_is_kept() -> None:
    jobs = [waiting(1, "ada", 900), waiting(2, "bob", 1000), waiting(3, "ada", 100, site_factor=1000, priority=1100)]
    seen = look(jobs, {3: 1000})
    assert place_changes(seen, [3, 2, 1], ALL) == ()  # it is first already, as somebody wanted
    changes = place_changes(seen, [1, 2, 3], ALL)
    assert set(changes) == {SetSiteFactor(1, 200), SetSiteFactor(3, 800)}  # the place of either


def test_equal_priorities_leave_room_for_an_order() -> None:
    jobs = [waiting(i, "ada" if i % 2 else "bob", 1) for i in range(1, 41)]
    wanted = list(range(40, 0, -1))
    after, writes = settled(jobs, wanted)
    assert as_slurm_orders(after) == [39 - 2 * (i // 2) if i % 2 == 0 else 40 - 2 * (i // 2) for i in range(40)]
    assert len(writes) <= 2


def test_who_takes_a_large_nice_back_stands_no_higher_than_without_it() -> None:
    """Slurm shows priorities below 1 as 1: a factor that makes up for the rest would be worth it without the --nice."""
    jobs = [waiting(i, "ada", 500 - 3000, priority=1, nice=3000) for i in range(1, 11)]
    after, _ = settled(jobs, list(range(10, 0, -1)))
    assert max(replace(job, natives=(500,), nice=0).priority_with(job.site_factor or 0) for job in after) <= 500
    assert as_slurm_orders(after) == list(range(1, 11))


def test_a_site_factor_from_before_a_large_nice_is_taken_back() -> None:
    jobs = [waiting(1, "ada", -100, site_factor=400, priority=300, nice=3000), waiting(2, "bob", 200)]
    assert place_changes(look(jobs), [1, 2], ALL) == (SetSiteFactor(1, 0),)
    assert place_changes(look(jobs, {1: 400}), [1, 2], ALL) == ()  # somebody else's


def test_a_throttled_array_stands_on_its_own_place() -> None:
    """Else Slurm would start one task after the other from the place that was lent to it once."""
    full = {"array_tasks": 9, "array_limit": 1, "array_job_id": 1}
    task = record(8, user="ada", state="RUNNING", array_job_id=1, array_task_id=0, start_s=1.0)
    shown = [waiting(1, "ada", 500, site_factor=400, priority=900, **full), waiting(2, "ada", 900, site_factor=-400)]
    assert place_changes(look([*shown, task]), [1, 2, 8], ALL)[0] == SetSiteFactor(1, 0)
    own = [replace(shown[0], site_factor=0, priority=500), replace(shown[1], site_factor=0, priority=900)]
    assert place_changes(look([*own, task]), [1, 2, 8], ALL) == ()
    assert as_slurm_orders(written(own, place_changes(look(own), [1, 2], ALL))) == [1, 2]  # the task has ended


def test_so_does_one_that_slurm_does_not_show_until_it_tests_it_again() -> None:
    full = {"array_tasks": 9, "array_limit": 1, "array_job_id": 1, "site_factor": None, "natives": ()}
    jobs = [waiting(1, "ada", 500, reason="JobArrayTaskLimit", **full), waiting(2, "bob", 700)]
    task = record(8, user="ada", state="RUNNING", array_job_id=1, array_task_id=0, start_s=1.0)

    def changes(*jobs: SlurmJob, **known: Any) -> Sequence[SetSiteFactor]:
        seen = observe(ClusterRecords((), jobs, ()), ProgressSpool(Path("/nowhere")), NOW_S)
        return place_changes(replace(seen, known=Remembered(**known)), [1, 2], ALL)

    assert changes(*jobs, task, throttled_factors={1: 400}) == (SetSiteFactor(1, 0),)
    assert changes(*jobs, task, throttled_factors={1: 400}, base_factors={1: 400}) == ()
    assert changes(*jobs, task, throttled_factors={1: 0}) == ()
    assert changes(*jobs, task) == ()  # it has been given nothing
    assert changes(*jobs, throttled_factors={1: 0}) == (SetSiteFactor(1, 0),)
    assert changes(*jobs, throttled_factors={1: 0}, tested_anew={1: 9}) == ()
    assert changes(*jobs, throttled_factors={1: 0}, tested_anew={1: 10}) == (SetSiteFactor(1, 0),)


def test_a_nice_that_others_site_factors_make_up_for_cuts_nothing_off() -> None:
    jobs = [waiting(i, "ada", -100 - i, site_factor=400, priority=300 - i, nice=3000) for i in (1, 2)]
    after = written(jobs, place_changes(look(jobs, {1: 400, 2: 400}), [2, 1], ALL))
    assert as_slurm_orders(after) == [2, 1]
    assert max(replace(job, natives=(2900,)).priority_with(job.site_factor or 0) for job in after) < 2900 + 400 + 20


def test_priorities_at_slurms_floor_are_lifted_above_it() -> None:
    """As where no factor of the priority has a weight."""
    jobs = [waiting(i, "ada", 0, priority=1) for i in range(1, 11)]
    after, writes = settled(jobs, list(range(10, 0, -1)))
    assert as_slurm_orders(after) == list(range(10, 0, -1))
    assert len(writes) == 1


def test_new_jobs_at_the_front_of_a_queue_of_equals_cost_few_writes() -> None:
    """Shortest first, for long, where Slurm's own priorities are all the same."""
    chance = random.Random(4)
    jobs = [waiting(i, "ada", 500) for i in range(1, 201)]
    length = {job.job_id: chance.random() for job in jobs}
    jobs, _ = settled(jobs, sorted(length, key=lambda i: length[i]))
    total = 0
    for new in range(201, 401):
        gone = as_slurm_orders(jobs)[0]
        length.pop(gone)
        length[new] = chance.random()
        jobs = [job for job in jobs if job.job_id != gone] + [waiting(new, "ada", 500)]
        wanted = sorted(length, key=lambda i: length[i])
        jobs, writes = settled(jobs, wanted)
        assert as_slurm_orders(jobs) == wanted
        total += sum(writes)
    assert total <= 200 * 4


_DRAWN = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.booleans()), min_size=1, max_size=25)


@settings(deadline=None)
@given(_DRAWN, st.integers(0, 1000), st.integers(1, 10))
def test_any_order_is_reached_and_stays(drawn: list[tuple[str, int, bool]], seed: int, most: int) -> None:
    """Users keep their places, jobs that are not steered stay, and then nothing is written any more."""
    spread = [
        waiting(i + 1, user, 100 * native, **({} if steered else {"gpus": 0, "gpus_per_node": None}))
        for i, (user, native, steered) in enumerate(drawn)
    ]
    natives = {max(job.natives) for job in spread if not job.gpus}
    jobs = [job for job in spread if not job.gpus or max(job.natives) not in natives]  # ties have a test of their own
    wanted = [job.job_id for job in jobs if job.gpus]
    random.Random(seed).shuffle(wanted)
    after, _ = settled(jobs, wanted, most)
    user = {job.job_id: (job.user if job.gpus else job.job_id) for job in jobs}
    assert [user[job_id] for job_id in as_slurm_orders(after)] == [user[job_id] for job_id in as_slurm_orders(jobs)]
    for name in "abc":
        own = [job_id for job_id in as_slurm_orders(after) if user[job_id] == name]
        assert own == [job_id for job_id in wanted if user[job_id] == name]
    assert all(job.site_factor == 0 for job in after if not job.gpus)


def test_nice_and_qos_stay_what_they_are() -> None:
    """A user's own wishes for a job, and what its QOS is worth, are in its place; nobody exchanges them away."""
    jobs = [
        waiting(1, "ada", 900),
        waiting(2, "ada", 400, nice=500),
        waiting(3, "ada", 2000, qos="high"),
        waiting(4, "ada", 800),
    ]
    after, _ = settled(jobs, [2, 4, 1, 3])
    assert as_slurm_orders(after) == [3, 4, 1, 2]


def test_scores_of_a_plan_reach_slurm_within_the_users_places() -> None:
    from slurm_plugin.steering.order import OrderLimits
    from slurm_plugin.steering.reconcile import SteeringLimits, reordered

    jobs = [waiting(1, "ada", 900), waiting(2, "bob", 800), waiting(3, "ada", 700)]
    plan = Plan(scores=(Score(2, 3.0, ""), Score(3, 2.0, ""), Score(1, 1.0, "")))
    limits = SteeringLimits(OrderLimits(1000, 100, 100), 120, "user")
    assert set(reordered(plan, [2, 3, 1], look(jobs), limits)) == {SetSiteFactor(1, -200), SetSiteFactor(3, 200)}


def test_jobs_for_which_others_made_room_come_first_in_their_partition_in_their_own_order() -> None:
    jobs = [
        waiting(1, "ada", 900),
        waiting(2, "bob", 800),
        waiting(3, "bob", 700),
        waiting(4, "eve", 9000, partition="long"),
    ]
    planned = (SetSiteFactor(2, 5), SetSiteFactor(1, 7))
    changes = put_first({2, 3}, look(jobs), planned)
    after = written(jobs, changes)
    assert as_slurm_orders(after) == [4, 2, 3, 1]  # nothing is ever before the other partition's
    assert SetSiteFactor(1, 7) in changes  # what else the pass wants stays
    assert put_first({2, 3}, look(after), (SetSiteFactor(2, 5),)) == ()  # they stand there already
    assert put_first(set(), look(jobs), planned) == planned


def on_nodes(*jobs: SlurmJob) -> Observation:
    """What a pass sees of a cluster of two nodes with four GPUs, of which the first is larger."""
    nodes = [SlurmNode(name, "IDLE", 4, frozenset({"main"}), features=has) for name, has in NODES.items()]
    return observe(ClusterRecords(tuple(nodes), jobs, ()), ProgressSpool(Path("/nowhere")), NOW_S)


NODES = {"n1": frozenset({"nvlink"}), "n2": frozenset[str]()}


def on(node: str, gpus: int, job: SlurmJob, start_s: float = NOW_S) -> SlurmJob:
    """The job once it has started there."""
    held = {"gpus": gpus, "gpus_per_node": gpus, "gpu_nodes": ((node, gpus),), "node_names": (node,)}
    return replace(job, state="RUNNING", start_s=start_s, natives=(), **held)


ONE = {"gpus": 1, "gpus_per_node": 1, "reason": "Resources"}
LARGE = waiting(1, "ada", 900, reason="Resources")
FULL = on("n1", 4, waiting(8, "eve", 0), 0.0)


def test_a_cycle_is_played_again_on_the_places_that_jobs_have_of_their_own() -> None:
    """Job 2 ran on job 1's place. On its own it would have started too where job 1, which is larger, fits nowhere."""
    small, other = waiting(2, "ada", 700, **ONE), waiting(3, "bob", 800, **ONE)
    waited = on_own_places(on_nodes(LARGE, small, other).snapshot)
    assert [one.job_id for one in waited.jobs] == [1, 3, 2]
    began = on("n2", 1, small), on("n2", 1, other)
    crowded = on_nodes(FULL, on("n2", 2, waiting(9, "eve", 0), 0.0), *began, LARGE)
    assert started_on_own_places(crowded, waited) == {2, 3}
    assert started_on_own_places(on_nodes(FULL, *began, LARGE), waited) == {1}  # it would have taken the node
    tight = on_nodes(FULL, on("n2", 3, waiting(9, "eve", 0), 0.0), began[0], other, LARGE)
    assert started_on_own_places(tight, waited) == {3}


def test_a_cycle_is_played_again_on_the_nodes_that_suited_a_job_which_nobody_else_waits_for() -> None:
    small = waiting(2, "ada", 700, features="nvlink", time_limit_s=60.0, **ONE)
    others = on("n1", 3, waiting(8, "eve", 0), NOW_S - 60), on("n2", 4, waiting(9, "eve", 0), NOW_S - 60)
    waited = on_own_places(on_nodes(LARGE, small, *others).snapshot)
    assert started_on_own_places(on_nodes(LARGE, on("n1", 1, small), *others), waited) == {2}


def test_tasks_of_an_array_have_started_on_its_own_place_if_all_of_them_would_have() -> None:
    array = waiting(2, "ada", 700, array_tasks=5, array_job_id=2, **ONE)
    earlier = on("n2", 1, replace(array, job_id=5, array_tasks=1), 0.0)
    held = on("n2", 1, waiting(9, "eve", 0), 0.0)
    waited = on_own_places(on_nodes(LARGE, array, earlier, FULL, held).snapshot)
    tasks = [on("n2", 1, replace(array, job_id=number, array_tasks=1)) for number in (6, 7)]
    left = replace(array, array_tasks=3)
    assert started_on_own_places(on_nodes(LARGE, left, earlier, FULL, held, *tasks), waited) == {2}
    other = waiting(3, "bob", 800, **ONE)
    waited = on_own_places(on_nodes(LARGE, other, array, earlier, FULL, held).snapshot)
    assert started_on_own_places(on_nodes(LARGE, other, left, earlier, FULL, held, *tasks), waited) == {3}
