"""From planned groups to pins and marks, and what is made of those when jobs start and end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sched_policy.model import NodeGpus
from sched_policy.plan import Group, Plan, Score, Start
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.changes import Change, SetAdminComment, TargetJob
from slurm_plugin.client.records import ShardRule, SlurmJob
from slurm_plugin.observation.group_annotation import GroupAnnotation, may_be_annotated
from slurm_plugin.observation.observe import Observation
from slurm_plugin.steering.grouping import (
    PATIENCE_S,
    differences,
    group_changes,
    in_order,
    live_groups,
    withdrawal,
)
from slurm_plugin.steering.release import choice, free_shards, releases
from tests.sched_policy.builders import NOW_S
from tests.slurm_plugin.steering.grouped import PER_GPU, look, on_gpu, waiting

MARKS = st.builds(
    GroupAnnotation,
    st.one_of(st.none(), st.integers(1, 99)),
    st.integers(2, 4),
    st.sampled_from(("", "n1", "gpu-07.site")),
    st.integers(1, 2**31),
    st.integers(0, 2**31),
)


def plan(*starts: tuple[int, int], groups: tuple[tuple[int, ...], ...] = (), node: str = "n1") -> Plan:
    made = [Start(job_id, (NodeGpus(node, 1, (gpu,)),), "") for job_id, gpu in starts]
    return Plan((), tuple(made), groups=tuple(Group(group, "") for group in groups))


def carried_out(made: Plan, seen: Observation) -> tuple[Change, ...]:
    return group_changes(made, releases(made, seen), seen)


def after(seen: Observation, changes: tuple[Change, ...], later_s: float = 1.0) -> Observation:
    """What is seen when Slurm has made the changes and has started nothing."""
    jobs = dict(seen.jobs)
    for change in changes:
        if isinstance(change, TargetJob):
            jobs[change.job_id] = replace(
                jobs[change.job_id], required_nodes=change.nodes, admin_comment=change.admin_comment
            )
        elif isinstance(change, SetAdminComment):
            jobs[change.job_id] = replace(jobs[change.job_id], admin_comment=change.admin_comment)
    later_s += seen.snapshot.now_s - NOW_S
    return look(*jobs.values(), nodes=len(seen.nodes), rule=seen.cluster.shard_rule, later_s=later_s)


@given(MARKS)
def test_a_mark_survives_slurm(note: GroupAnnotation) -> None:
    kept = replace(
        note,
        size=note.size if note.group is not None else 0,
        since_s=note.since_s if note.node else 0,
    )
    assert (str(kept) == "") is (kept == GroupAnnotation())
    for words in ("", "JS1:H4s= explsched:since=5&n=0"):
        text = kept.written(words)
        assert may_be_annotated(text)
        assert GroupAnnotation.of(text) == kept
        assert GroupAnnotation().written(text) == words


@pytest.mark.parametrize(
    "text", ["", "JS1:H4sI", "explsched:since=5", "explsched-group:group=1", "xexplsched-group:pause=5"]
)
def test_somebody_elses_words_are_no_mark(text: str) -> None:
    assert GroupAnnotation.of(text) == GroupAnnotation()


def test_words_that_could_not_be_written_back_are_left_alone() -> None:
    assert not may_be_annotated('{"a": 1}')
    assert not may_be_annotated("x" * 1000)


def test_slurms_rules() -> None:
    assert choice([0, 1, 4, 4], 1, ShardRule.FIRST_FIT) == 1
    assert choice([0, 1, 4, 4], 2, ShardRule.FIRST_FIT) == 2
    assert choice([0, 1, 4, 4], 1, ShardRule.LEAST_LOADED) == 2
    assert choice([0, 1], 2, ShardRule.FIRST_FIT) is None


def test_free_shards_of_gpus_that_are_shared_and_held_whole() -> None:
    seen = look(gpus=3)
    whole = on_gpu(9, 2, shards_per_node=0, gpus=1)
    assert free_shards(seen.nodes["n1"], [on_gpu(1, 0), on_gpu(2, 0, shards_per_node=2), whole]) == [1, 4, 0]
    assert free_shards(seen.nodes["n1"], [on_gpu(1, 0, gpu_indices=())]) is None
    across = on_gpu(1, 0, shards_per_node=2, gpu_indices=(("n1", (0, 1)),))  # how many on which is not told
    assert free_shards(seen.nodes["n1"], [across]) == [0, 0, 4]
    assert free_shards(seen.nodes["n1"], [on_gpu(1, 7)]) is None  # a node that has fewer GPUs than before


@given(
    held=st.lists(st.integers(0, 3), max_size=6),
    wanted=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=8),
    rule=st.sampled_from(ShardRule),
)
def test_slurm_puts_the_released_where_they_belong(
    held: list[int], wanted: list[tuple[int, int]], rule: ShardRule
) -> None:
    """In the order of the release, Slurm's rule puts all that share a GPU together, and nobody else beside them."""
    running = [on_gpu(i + 1, gpu) for i, gpu in enumerate(held) if held[:i].count(gpu) < PER_GPU]
    new = [waiting(100 + i, shards) for i, (_gpu, shards) in enumerate(wanted)]
    seen = look(*running, *new, gpus=4, rule=rule)
    made = plan(*((job.job_id, gpu) for job, (gpu, _) in zip(new, wanted, strict=True)))
    found = releases(made, seen)
    free = free_shards(seen.nodes["n1"], running)
    assert free is not None
    where = {job.job_id: dict(job.gpu_indices)["n1"][0] for job in running}
    for job_id in found.order:
        shards = seen.jobs[job_id].shards_per_node
        gpu = choice(free, shards, rule)
        assert gpu is not None
        free[gpu] -= shards
        where[job_id] = gpu
    assert sorted(found.order) == sorted(job_id for sharers in found.sharers for job_id in sharers.starting)
    for sharers in found.sharers:
        (gpu,) = {where[job_id] for job_id in sharers.job_ids}
        assert set(sharers.job_ids) == {job_id for job_id, other in where.items() if other == gpu}
    planned = dict(zip((job.job_id for job in new), (gpu for gpu, _ in wanted), strict=True))
    for sharers in found.sharers:
        assert len({planned[job_id] for job_id in sharers.starting}) == 1


def test_a_group_of_four_is_pinned_and_marked_at_once() -> None:
    seen = look(*map(waiting, (1, 2, 3, 4)), waiting(5))
    made = plan((1, 1), (2, 1), (3, 1), (4, 1))
    changes = carried_out(made, seen)
    note = GroupAnnotation(1, 4, "n1", int(NOW_S))
    assert changes == tuple(TargetJob(job_id, ("n1",), str(note)) for job_id in (1, 2, 3, 4))
    again = after(seen, changes)
    assert carried_out(made, again) == ()


def test_who_is_pinned_is_not_marked_as_waiting_besides() -> None:
    made = plan((1, 1), (2, 1), groups=((1, 2),))
    note = GroupAnnotation(1, 2, "n1", int(NOW_S))
    assert carried_out(made, look(waiting(1), waiting(2))) == tuple(
        TargetJob(job_id, ("n1",), str(note)) for job_id in (1, 2)
    )


def test_a_newcomer_joins_and_the_group_gets_a_new_mark() -> None:
    seen = look(on_gpu(1, 0), on_gpu(2, 0), waiting(3))
    noted, also, pinned = carried_out(plan((3, 0)), seen)
    assert (noted, also) == (
        SetAdminComment(1, "explsched-group:group=1&of=3"),
        SetAdminComment(2, "explsched-group:group=1&of=3"),
    )
    assert pinned == TargetJob(3, ("n1",), f"explsched-group:group=1&of=3&node=n1&since={NOW_S:.0f}")


def test_the_pins_of_jobs_that_have_run_for_long_are_no_pins_that_do_not_help() -> None:
    since = f"node=n1&since={NOW_S - PATIENCE_S - 1:.0f}"
    pinned = {"admin_comment": f"explsched-group:group=1&of=2&{since}", "required_nodes": ("n1",)}
    seen = look(on_gpu(1, 0, **pinned), on_gpu(2, 0, **pinned), waiting(3))
    assert carried_out(plan((3, 0)), seen)[:2] == (
        SetAdminComment(1, f"explsched-group:group=1&of=3&{since}"),
        SetAdminComment(2, f"explsched-group:group=1&of=3&{since}"),
    )


def test_who_would_land_on_another_gpu_is_left_to_slurm() -> None:
    # Slurm takes the first GPU with room, which is not the one of the plan.
    assert carried_out(plan((3, 1)), look(on_gpu(1, 0), on_gpu(2, 1), waiting(3))) == ()
    # With LL_SHARED_GRES it would start the second of a group on an unused GPU.
    pair = look(waiting(1), waiting(2), rule=ShardRule.LEAST_LOADED)
    assert [change.job_id for change in carried_out(plan((1, 0), (2, 0)), pair)] == [1]  # type: ignore[union-attr]


def test_a_pin_goes_when_the_plan_changes() -> None:
    seen = look(waiting(1), waiting(2))
    pinned = after(seen, carried_out(plan((1, 0), (2, 0)), seen))
    assert carried_out(plan(), pinned) == (TargetJob(1, (), ""), TargetJob(2, (), ""))
    assert withdrawal(pinned.jobs.values()) == (TargetJob(1, (), ""), TargetJob(2, (), ""))


def test_a_pin_that_does_not_help_becomes_a_pause() -> None:
    seen = look(waiting(1))
    made = plan((1, 0))
    late = after(seen, carried_out(made, seen), PATIENCE_S + 1)
    (let_go,) = carried_out(made, late)
    assert let_go == TargetJob(1, (), f"explsched-group:pause={late.snapshot.now_s + 600:.0f}")
    paused = after(late, (let_go,))
    assert carried_out(made, paused) == ()
    assert carried_out(made, after(paused, (), 700))[0] == TargetJob(
        1, ("n1",), str(GroupAnnotation(None, 0, "n1", int(late.snapshot.now_s + 701)))
    )


def test_a_daemon_that_stops_leaves_running_jobs_their_marks() -> None:
    pinned = "explsched-group:group=1&of=2&node=n1&since=5"
    runs = on_gpu(1, 0, admin_comment=pinned, required_nodes=("n1",))
    assert withdrawal([runs, waiting(2, admin_comment=pinned, required_nodes=("n1",))]) == (TargetJob(2, (), ""),)


@pytest.mark.parametrize("theirs", ['{"a":  "b\tc"}', "JS1:abc\nx  y"])
def test_what_others_wrote_beside_a_pin_stays_as_it_is(theirs: str) -> None:
    noted = f"{theirs} explsched-group:group=1&of=2&node=n1&since=5"
    assert withdrawal([waiting(2, admin_comment=noted, required_nodes=("n1",))]) == (TargetJob(2, (), theirs),)


@pytest.mark.parametrize(
    "fields",
    [
        {"required_nodes": ("n1",)},
        {"required_nodes": ("n2",), "admin_comment": f"explsched-group:node=n1&since={NOW_S - 10:.0f}"},
        {"admin_comment": "'quoted'"},
        {"array_tasks": 3},
        {"gpus": 1, "shards_per_node": 0},
    ],
)
def test_what_others_asked_for_is_not_touched(fields: dict[str, object]) -> None:
    job = waiting(1, **fields)
    targets = [change for change in carried_out(plan((1, 0)), look(job)) if isinstance(change, TargetJob)]
    assert targets == []
    assert releases(plan((1, 0)), look(job)).order == ()  # nor is it foreseen where it will run


@pytest.mark.parametrize("fields", [{"required_nodes": ("n1",)}, {"array_tasks": 3}, {"eligible_s": NOW_S + 100}])
def test_a_group_that_waits_is_not_marked_if_one_of_it_cannot_be_pinned(fields: dict[str, object]) -> None:
    assert carried_out(plan(groups=((1, 2),)), look(waiting(1, **fields), waiting(2))) == ()


def test_what_slurm_would_not_start_now_is_not_foreseen() -> None:
    delayed = waiting(1, restarts=1, eligible_s=NOW_S + 100)
    assert carried_out(plan((1, 0)), look(delayed)) == ()
    across = Plan((), (Start(1, (NodeGpus("n1", 1, (0,)), NodeGpus("n2", 1, (0,))), ""),))
    assert carried_out(across, look(waiting(1, nodes=2), nodes=2)) == ()


def test_a_waiting_group_is_marked_and_stands_together_in_the_order() -> None:
    seen = look(*(on_gpu(i, i % 2) for i in range(1, 9)), *(waiting(i) for i in range(11, 17)))
    scores = tuple(Score(job_id, -float(job_id), "") for job_id in (*range(1, 9), *range(11, 17)))
    made = replace(plan(groups=((11, 15), (12, 16))), scores=scores)
    changes = carried_out(made, seen)
    assert changes == tuple(
        SetAdminComment(job_id, f"explsched-group:group={number}&of=2")
        for job_id, number in ((11, 11), (12, 12), (15, 11), (16, 12))
    )
    order = [score.job_id for score in in_order(made, releases(made, seen))]
    assert order[8:] == [11, 15, 12, 16, 13, 14]


def groups_of(*jobs: SlurmJob) -> list[tuple[tuple[int, ...], bool, bool | None]]:
    return [(group.job_ids, group.is_complete, group.verified) for group in live_groups(jobs)]


def test_a_group_is_verified_by_the_gpus_its_jobs_hold() -> None:
    note = "explsched-group:group=1&of=2&node=n1&since=5"
    first, second = on_gpu(1, 0, admin_comment=note), on_gpu(2, 0, admin_comment=note)
    assert groups_of(first, waiting(2, admin_comment=note)) == [((1, 2), True, None)]
    assert groups_of(first, second) == [((1, 2), True, True)]
    assert groups_of(first, replace(second, gpu_indices=(("n1", (1,)),))) == [((1, 2), True, False)]
    assert groups_of(first, replace(second, gpu_indices=(("n2", (0,)),))) == [((1, 2), True, False)]
    assert groups_of(*(replace(job, gpu_indices=()) for job in (first, second))) == [((1, 2), True, None)]
    assert groups_of(first, replace(second, gpu_indices=())) == [((1, 2), True, None)]
    assert groups_of(first) == [((1,), False, None)]


def test_a_group_is_over_when_a_job_has_ended_or_is_elsewhere() -> None:
    note = "explsched-group:group=1&of=2&node=n1&since=5"
    alone = GroupAnnotation(None, 0, "n1", 5)
    left = look(on_gpu(1, 0, admin_comment=note))
    assert carried_out(plan(), left) == (SetAdminComment(1, str(alone)),)
    apart = look(on_gpu(1, 0, admin_comment=note), on_gpu(2, 1, admin_comment=note))
    assert carried_out(plan(), apart) == (SetAdminComment(1, str(alone)), SetAdminComment(2, str(alone)))
    together = look(on_gpu(1, 0, admin_comment=note), on_gpu(2, 0, admin_comment=note))
    assert carried_out(plan(), together) == ()


def test_jobs_started_as_the_plan_before_had_them_are_groups_as_they_run() -> None:
    first, second = ("explsched-group:group=1&of=2", "explsched-group:group=3&of=2")
    jobs = [
        on_gpu(1, 0, admin_comment=first),
        on_gpu(2, 1, admin_comment=first),
        on_gpu(3, 0, admin_comment=second),
        on_gpu(4, 1, admin_comment=second),
    ]
    changes = carried_out(plan(), look(*jobs))
    now = after(look(*jobs), changes)
    assert [(group.job_ids, group.verified) for group in live_groups(now.jobs.values())] == [
        ((1, 3), True),
        ((2, 4), True),
    ]
    assert carried_out(plan(), now) == ()


def test_what_slurm_took_of_a_late_pass_leaves_groups_as_they_run() -> None:
    """Groups of four have started; of a plan with others Slurm took the annotations that come without a pin."""
    sizes = {1: 3, 2: 4, 3: 4, 4: 4, 5: 2, 6: 2, 7: 4, 8: 4}
    jobs = [
        on_gpu(job, job // 5, admin_comment=f"explsched-group:group={1 + job // 5 * 4}&of={size}")
        for job, size in sizes.items()
    ]
    now = after(look(*jobs), carried_out(plan(), look(*jobs)))
    assert [(group.job_ids, group.verified) for group in live_groups(now.jobs.values())] == [
        ((1, 2, 3, 4), True),
        ((5, 6, 7, 8), True),
    ]
    assert carried_out(plan(), now) == ()


def test_a_group_is_over_when_a_job_is_being_cleaned_up() -> None:
    note = "explsched-group:group=1&of=2&node=n1&since=5"
    stays, ends = on_gpu(1, 0, admin_comment=note), on_gpu(2, 0, admin_comment=note, state="COMPLETING")
    assert groups_of(stays, ends) == [((1,), False, None)]
    assert carried_out(plan(), look(stays, ends)) == (SetAdminComment(1, str(GroupAnnotation(None, 0, "n1", 5))),)


def test_what_is_being_noted_of_a_job_that_yields_is_not_overwritten() -> None:
    note = "explsched-group:group=1&of=2&node=n1&since=5"
    seen = look(on_gpu(1, 0, admin_comment=note))
    yields = Snapshot.of(NOW_S, seen.snapshot.nodes, [replace(seen.snapshot.jobs[0], asked_to_leave=True)])
    assert carried_out(plan(), replace(seen, snapshot=yields)) == ()


def test_who_cannot_be_marked_is_not_counted_in_the_group() -> None:
    seen = look(on_gpu(1, 0, admin_comment="'quoted'"), on_gpu(2, 0), waiting(3))
    assert carried_out(plan((3, 0)), seen) == (
        SetAdminComment(2, "explsched-group:group=2&of=2"),
        TargetJob(3, ("n1",), f"explsched-group:group=2&of=2&node=n1&since={NOW_S:.0f}"),
    )


def test_a_requeued_job_is_let_go_of_the_node_it_was_pinned_to() -> None:
    note = "explsched-group:group=1&of=2&node=n1&since=5"
    requeued = look(waiting(1, admin_comment=note, required_nodes=("n1",), restarts=1))
    assert carried_out(plan(), requeued) == (TargetJob(1, (), ""),)


def test_the_log_tells_a_groups_life_once() -> None:
    note = "explsched-group:group=1&of=2&node=n1&since=5"
    waits = live_groups([waiting(1, admin_comment=note), waiting(2, admin_comment=note)])
    begins = live_groups([on_gpu(1, 0, admin_comment=note), waiting(2, admin_comment=note)])
    runs = live_groups([on_gpu(1, 0, admin_comment=note), on_gpu(2, 0, admin_comment=note)])
    told = [
        [message.split(":")[0] for _, message, _ in differences(before, now)]
        for before, now in ((waits, waits), (waits, begins), (begins, runs), (runs, runs), (runs, ()), (waits, ()))
    ]
    assert told == [[], ["group starts"], ["group verified"], [], ["group dissolved"], []]
    elsewhere = live_groups([on_gpu(1, 0, admin_comment=note), on_gpu(2, 1, admin_comment=note)])
    assert [message.split(":")[0] for _, message, _ in differences(begins, elsewhere)] == ["group is apart"]


def placed(job_id: int, node: str) -> Plan:
    start = Start(job_id, (NodeGpus(node, 1),), "")
    return Plan((), (start,), placed=frozenset({job_id}))


def test_a_job_whose_node_is_decided_is_pinned_there_and_let_go_when_it_does_not_start() -> None:
    job = waiting(5, 0, gpus=1, gpus_per_node=1)
    seen = look(job, nodes=2)
    changes = carried_out(placed(5, "n2"), seen)
    assert [(change.job_id, change.nodes) for change in changes if isinstance(change, TargetJob)] == [(5, ("n2",))]
    stays = after(seen, changes)
    assert carried_out(placed(5, "n2"), stays) == ()
    late = after(stays, (), later_s=PATIENCE_S + 1)
    (let_go,) = carried_out(placed(5, "n2"), late)
    assert isinstance(let_go, TargetJob)
    assert let_go.nodes == ()
    assert GroupAnnotation.of(let_go.admin_comment).pause_s > late.snapshot.now_s
    assert carried_out(placed(5, "n2"), after(late, (let_go,))) == ()  # Slurm decides for a while


@pytest.mark.parametrize("fields", [{"required_nodes": ("n1",)}, {"array_tasks": 3}, {"reservation": "explsched_5"}])
def test_jobs_that_have_a_place_already_are_not_pinned(fields: dict[str, object]) -> None:
    seen = look(waiting(5, 0, gpus=1, gpus_per_node=1, **fields), nodes=2)
    assert carried_out(placed(5, "n2"), seen) == ()


@pytest.mark.parametrize("state", ["IDLE+CLOUD+POWERED_DOWN", "IDLE+POWERED_DOWN"])
def test_no_job_is_pinned_to_a_node_that_is_powered_down(state: str) -> None:
    """The emptiest node would be booted while others are idle; Slurm goes by weights, and boots it if none is left."""
    seen = look(waiting(5, 0, gpus=1, gpus_per_node=1), nodes=2)
    off = replace(seen, nodes={**seen.nodes, "n2": replace(seen.nodes["n2"], state=state)})
    assert carried_out(placed(5, "n2"), off) == ()
    (job,) = after(seen, carried_out(placed(5, "n2"), seen)).jobs.values()
    goes_off = replace(look(job, nodes=2), nodes=off.nodes)
    assert carried_out(placed(5, "n2"), goes_off) == (TargetJob(5, (), ""),)


def test_starts_that_bind_nobody_to_a_node_are_left_to_slurm() -> None:
    seen = look(waiting(5, 0, gpus=1, gpus_per_node=1), nodes=2)
    assert carried_out(Plan((), (Start(5, (NodeGpus("n2", 1),), ""),)), seen) == ()
