"""Nobody is interrupted for a job that CPUs or memory would keep from starting all the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from explsched.preemption_record import Interruption, PreemptionRecord
from sched_policy import catalog
from sched_policy.plan import Plan, Preemption
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.beneficiaries import heirs, requeues_in_vain, without_vain_preemptions
from slurm_plugin.steering.release import Releases
from slurm_plugin.steering.slurm_order import on_places, wanted_order
from tests.slurm_kit import record


def preempted(node: dict[str, Any], **beneficiary: Any) -> int:
    """Preemptions that are left of one, on a node of 16 CPUs whose only GPU job has 8 of them and 8 GB."""
    held = {"state": "RUNNING", "start_s": 1.0, "gpu_nodes": (("n1", 4),), "node_names": ("n1",)}
    victim = record(1, cpus=8, memory_mib=8_000, comment="explsched:checkpoint=USR1", **held)
    shape = {"cpus": 16, "cpus_taken": 8, "memory_mib": 64_000, "memory_taken_mib": 8_000, **node}
    there = SlurmNode("n1", "ALLOCATED", 4, frozenset({"main"}), **shape)
    waits = record(2, reason="Resources", **{"cpus": 8, "memory_mib": 8_000, **beneficiary})
    seen = observe(ClusterRecords((there,), (victim, waits), ()), ProgressSpool(Path("/nowhere")), 10_000.0)
    return len(without_vain_preemptions(Plan(preemptions=(Preemption(1, "", 2),)), seen).preemptions)


def test_what_the_victim_leaves_is_enough() -> None:
    assert preempted({}) == 1
    assert preempted({"cpus_taken": 16, "memory_taken_mib": 64_000}) == 1


@pytest.mark.parametrize("needs", [{"cpus": 9}, {"cpus": 1, "cpus_per_gpu": 3}, {"memory_mib": 8_001}, {"nodes": 2}])
def test_jobs_without_gpus_hold_the_rest(needs: dict[str, Any]) -> None:
    assert preempted({"cpus_taken": 16, "memory_taken_mib": 64_000}, **needs) == 0


def test_what_slurm_does_not_tell_is_enough() -> None:
    assert preempted({"cpus": 0, "cpus_taken": 0, "memory_mib": 0, "memory_taken_mib": 0}, cpus=100) == 1


def test_gpus_of_any_nodes() -> None:
    assert preempted({}, gpus_per_node=None, gpus=4) == 1
    assert preempted({"cpus_taken": 16}, gpus_per_node=None, gpus=4, cpus=9) == 0


def one_gpu_for_job_2(
    *others: SlurmJob,
    rests: Mapping[int, float] = MappingProxyType({}),
    tiers: Mapping[str, int] = MappingProxyType({}),
    preempts_by_qos: bool = False,
    **beneficiary: Any,
) -> tuple[Plan, Observation]:
    """A plan that frees a GPU for job 2, with other jobs in the queue; `rests` as in `Remembered`."""
    held = {"state": "RUNNING", "start_s": 1.0, "gpus": 1, "gpus_per_node": 1, "gpu_nodes": (("n1", 1),)}
    victim = record(1, comment="explsched:checkpoint=USR1", node_names=("n1",), **held)
    full = record(9, node_names=("n1",), **{**held, "start_s": 1e4, "gpus": 3, "gpu_nodes": (("n1", 3),)})
    waits = record(2, reason="Resources", gpus=1, gpus_per_node=1, natives=(50,), **beneficiary)
    there = SlurmNode("n1", "ALLOCATED", 4, frozenset({"main", "fast"}), cpus=16)
    found = ClusterRecords((there,), (victim, full, waits, *others), (), tiers=tiers)
    found = replace(found, preempts_by_qos=preempts_by_qos)
    seen = observe(found, ProgressSpool(Path("/nowhere")), 1e4, remembered=Remembered(rests=rests))
    return replace(catalog.build("srsf").plan(seen.snapshot), preemptions=(Preemption(1, "", 2),)), seen


def queue(plan: Plan, seen: Observation) -> tuple[int, ...]:
    """The pending jobs as this plan, which starts none beside others, orders them."""
    return on_places(wanted_order(plan, seen.snapshot, Releases()), seen.snapshot)


def left(*others: SlurmJob, **beneficiary: Any) -> int:
    """Preemptions that are left of it."""
    return len(without_vain_preemptions(*one_gpu_for_job_2(*others, **beneficiary)).preemptions)


@pytest.mark.parametrize(
    ("first", "heir"),
    [
        ({"user": "alice"}, 3),
        ({"user": "bob"}, None),  # the victim makes room for its owner's jobs only
        ({"user": "alice", "reason": "Dependency"}, None),
        ({"user": "alice", "gpus": 2, "gpus_per_node": 2}, None),  # what the victim leaves is not enough
    ],
)
def test_only_the_same_owners_job_that_came_first_and_would_start_takes_over(
    first: dict[str, Any], heir: int | None
) -> None:
    plan, seen = one_gpu_for_job_2(other(**{"time_limit_s": 60.0, **first}), user="alice", time_limit_s=7200.0)
    assert heirs(plan, queue(plan, seen), seen, {2: {1}}, {2}, {}) == {2: heir}
    assert heirs(plan, queue(plan, seen), seen, {2: {1}}, set(), {}) == {}


def test_each_of_several_has_an_heir_of_its_own() -> None:
    held = {"state": "RUNNING", "start_s": 1.0, "gpus": 1, "gpus_per_node": 1, "gpu_nodes": (("n1", 1),)}
    victims = [record(n, comment="explsched:checkpoint=USR1", node_names=("n1",), **held) for n in (1, 2)]
    long = [other(n, time_limit_s=7200.0, natives=(50,), priority=50) for n in (3, 4)]
    short = [other(n, time_limit_s=60.0) for n in (5, 6)]
    there = SlurmNode("n1", "ALLOCATED", 2, frozenset({"main"}), cpus=16)
    seen = observe(ClusterRecords((there,), (*victims, *long, *short), ()), ProgressSpool(Path("/nowhere")), 1e4)
    plan = catalog.build("srsf").plan(seen.snapshot)
    assert heirs(plan, queue(plan, seen), seen, {3: {1}, 4: {2}}, {3, 4}, {}) == {3: 5, 4: 6}


@pytest.mark.parametrize(("ready", "in_vain"), [({}, set()), ({2: {1}}, {2})])
def test_a_requeue_does_not_count_on_what_others_that_were_asked_have_not_left_yet(
    ready: dict[int, set[int]], in_vain: set[int]
) -> None:
    """Job 9 was asked to go, too; as long as it has not, the first in the queue takes all that job 1 leaves."""
    plan, seen = one_gpu_for_job_2(other())
    jobs = [replace(job, asked_to_leave=job.job_id in (1, 9)) for job in seen.snapshot.jobs]
    seen = replace(seen, snapshot=Snapshot.of(seen.snapshot.now_s, seen.snapshot.nodes, jobs))
    assert requeues_in_vain(plan, queue(plan, seen), seen, {2: {1}}, {}, ready) == in_vain


@pytest.mark.parametrize(
    ("second", "kept"), [({}, {1, 4}), ({"gpus": 2, "gpus_per_node": 2}, {1}), ({"cpus": 99}, {1})]
)
def test_room_is_made_for_several_at_once(second: dict[str, Any], kept: set[int]) -> None:
    """Of what job 4 leaves nothing is left over for the first in the queue, who gets what job 1 leaves."""
    held = {"state": "RUNNING", "start_s": 1.0, "gpus": 1, "gpus_per_node": 1, "gpu_nodes": (("n1", 1),)}
    running = [record(n, comment="explsched:checkpoint=USR1", node_names=("n1",), **held) for n in (1, 4)]
    alike = {"reason": "Resources", "gpus": 1, "gpus_per_node": 1, "natives": (50,), "priority": 50}
    behind = {**alike, "natives": (40,), "priority": 40, "reason": "Priority", **second}
    waits = (record(2, **alike), record(3, **behind))
    there = SlurmNode("n1", "ALLOCATED", 2, frozenset({"main"}), cpus=16)
    seen = observe(ClusterRecords((there,), (*running, *waits), ()), ProgressSpool(Path("/nowhere")), 1e4)
    preemptions = (Preemption(1, "", 2), Preemption(4, "", 3))
    plan = replace(catalog.build("srsf").plan(seen.snapshot), preemptions=preemptions)
    assert {one.job_id for one in without_vain_preemptions(plan, seen).preemptions} == kept
    jobs = [replace(job, asked_to_leave=job.job_id in (1, 4)) for job in seen.snapshot.jobs]
    asked = replace(seen, snapshot=Snapshot.of(seen.snapshot.now_s, seen.snapshot.nodes, jobs))
    both = {2: {1}, 3: {4}}
    if len(kept) == 2:
        assert requeues_in_vain(plan, queue(plan, asked), asked, both, {}, both) == frozenset()
        assert requeues_in_vain(plan, queue(plan, asked), asked, both, {}, {2: {1}}) == frozenset()
        assert requeues_in_vain(plan, queue(plan, asked), asked, both, {}, {3: {4}}) == {3}


def other(job_id: int = 3, **fields: Any) -> SlurmJob:
    base = {"reason": "Resources", "user": "bob", "gpus": 1, "gpus_per_node": 1, "natives": (60,), "priority": 60}
    return record(job_id, **{**base, **fields})


@pytest.mark.parametrize(
    ("in_force", "factors", "in_vain"),
    [
        (49, {}, set()),
        (51, {}, {2}),
        (51, {3: -5}, set()),  # this pass writes it
        (49, {3: 15}, {2}),
    ],
)
def test_a_requeue_waits_while_another_job_is_ahead_by_its_age(
    in_force: int, factors: dict[int, int], in_vain: set[int]
) -> None:
    """By one clock job 2 comes first; but Slurm has not computed the age of one of them anew yet."""
    plan, seen = one_gpu_for_job_2(other(natives=(40,), priority=in_force), priority=50)
    assert without_vain_preemptions(plan, seen).preemptions == plan.preemptions
    assert requeues_in_vain(plan, queue(plan, seen), seen, {2: {1}}, factors) == in_vain


@pytest.mark.parametrize("state", [{"reason": "BeginTime", "eligible_s": 1.05e4}, {"reason": "Resources"}])
@pytest.mark.parametrize(
    ("rests", "fields", "in_vain"), [({3}, {}, set()), ({3}, {"deadline_s": 9e4}, {2}), (set(), {}, {2})]
)
def test_a_training_that_its_sweep_keeps_paused_takes_nothing_whatever_its_priority(
    state: dict[str, Any], rests: set[int], fields: dict[str, Any], in_vain: set[int]
) -> None:
    """It has been delayed before, or is in this pass. One that may start again, or that has a deadline, is not."""
    paused = {"priority": 100, "restarts": 1, "submit_s": 9e3, "comment": "explsched:sweep=a&checkpoint=USR1"}
    plan, seen = one_gpu_for_job_2(other(**paused, **state, **fields), rests={3: 0.0}, priority=50)
    plan = replace(plan, rests=frozenset(rests))
    assert {one.beneficiary for one in without_vain_preemptions(plan, seen).preemptions} == {2} - in_vain
    assert requeues_in_vain(plan, queue(plan, seen), seen, {2: {1}}, {}, {2: {1}}) == in_vain


def test_nobody_leaves_for_a_training_that_its_sweep_keeps_paused_by_now() -> None:
    plan, seen = one_gpu_for_job_2(comment="explsched:sweep=a&checkpoint=USR1", restarts=1)
    assert requeues_in_vain(plan, queue(plan, seen), seen, {2: {1}}, {}) == frozenset()
    assert requeues_in_vain(replace(plan, rests=frozenset({2})), queue(plan, seen), seen, {2: {1}}, {}) == {2}


TIERS = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(("reason", "preemptions"), [("Resources", 0), ("None", 0), (TIERS, 0), ("Priority", 1)])
def test_room_is_kept_for_another_partitions_job_that_may_be_next(reason: str, preemptions: int) -> None:
    """It may be of a higher tier, whatever its priority; it is too large to start at once. None: not looked at yet."""
    large = other(natives=(40,), priority=40, partition="fast", gpus=4, gpus_per_node=4, reason=reason)
    assert left(large, time_limit_s=90_000.0) == preemptions


FAST_IS = {tier: {"main": 1, "fast": tier} for tier in (0, 1, 2)}
BEHIND = {"natives": (40,), "priority": 40}


@pytest.mark.parametrize("reason", ["Resources", "None", TIERS, "Priority"])
@pytest.mark.parametrize("partition", ["fast", "fast,main"])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("tier", "place", "preemptions"), [(1, BEHIND, 1), (0, BEHIND, 1), (2, BEHIND, 0), (1, {}, 0), (2, {}, 0)]
)
def test_a_job_of_another_partition_counts_only_where_slurm_considers_it_first(
    reason: str, partition: str, size: int, tier: int, place: dict[str, Any], preemptions: int
) -> None:
    """By the tiers of the partitions, and in one tier by priority: it takes what comes free, or it is kept for it."""
    natives = place.get("natives", (60,)) * len(partition.split(","))
    one = other(partition=partition, gpus=size, gpus_per_node=size, reason=reason, **{**place, "natives": natives})
    assert left(one, tiers=FAST_IS[tier], time_limit_s=90_000.0, priority=50) == preemptions
    plan, seen = one_gpu_for_job_2(one, tiers=FAST_IS[tier], time_limit_s=90_000.0, priority=50)
    assert (not requeues_in_vain(plan, queue(plan, seen), seen, {2: {1}}, {}, {2: {1}})) == bool(preemptions)


def test_one_of_a_lower_tier_is_behind_whatever_its_priority() -> None:
    assert left(other(partition="fast"), tiers=FAST_IS[0]) == 1
    assert left(other(partition="fast,main"), tiers=FAST_IS[0]) == 0


@pytest.mark.parametrize(
    "doubtful",
    [
        {"natives": ()},
        {"natives": (40, 30), "partition": "fast,main"},
        {"partition": "elsewhere,fast"},
        {"reservation": "course"},
        {"het_job_id": 3},
    ],
    ids=[
        "masked, or set by an operator",
        "another in each partition",
        "tier unknown",
        "in a reservation",
        "a component",
    ],
)
def test_it_also_counts_where_what_slurm_goes_by_is_not_known(doubtful: dict[str, Any]) -> None:
    behind = {"partition": "fast", **BEHIND}
    assert left(other(**behind), tiers=FAST_IS[1], priority=50) == 1
    assert left(other(**{**behind, **doubtful}), tiers=FAST_IS[1], priority=50) == 0
    assert left(other(**behind), tiers={"main": 1}, priority=50) == 0
    assert left(other(**behind), tiers=FAST_IS[1], priority=50, reservation="explsched_2") == 0


@pytest.mark.parametrize(("by_qos", "qos", "goes"), [(True, "high", 0), (True, "low", 1), (False, "high", 1)])
def test_it_also_counts_if_its_qos_may_preempt_that_of_the_beneficiary(*, by_qos: bool, qos: str, goes: int) -> None:
    rival = other(**{"partition": "fast", **BEHIND, "qos": qos})
    assert left(rival, tiers=FAST_IS[1], preempts_by_qos=by_qos, qos="low", priority=50) == goes
    large = {
        "gpus": 4,
        "gpus_per_node": 4,
        "time_limit_s": 3600.0,
    }  # if it is first, Slurm keeps GPUs for it
    ahead = replace(rival, **large)
    assert left(ahead, tiers=FAST_IS[1], preempts_by_qos=by_qos, qos="low", priority=50, time_limit_s=7200.0) == goes


def test_a_job_of_a_partition_that_is_not_steered_counts_whatever_its_priority() -> None:
    plan, seen = one_gpu_for_job_2(other(partition="fast", **BEHIND), tiers=FAST_IS[1], priority=50)
    apart = [job for job in seen.snapshot.jobs if job.job_id != 3]
    seen = replace(seen, snapshot=Snapshot.of(seen.snapshot.now_s, seen.snapshot.nodes, apart))
    plan = replace(plan, scores=tuple(score for score in plan.scores if score.job_id != 3))
    assert without_vain_preemptions(plan, seen).preemptions == ()


@pytest.mark.parametrize(
    "first",
    [
        other(het_job_id=3),
        other(licenses="matlab", reason="None"),
        other(natives=(40,), partition="fast"),
        other(),
    ],
    ids=["component of a heterogeneous job", "not modelled", "a partition that may have a higher tier", "modelled"],
)
def test_nobody_is_interrupted_where_another_job_would_take_what_comes_free(first: SlurmJob) -> None:
    assert left() == 1
    assert left(first) == 0


@pytest.mark.parametrize(
    "behind",
    [
        other(het_job_id=3, natives=(40,)),
        other(het_job_id=3, reason="Dependency"),
        other(het_job_id=3, eligible_s=2e4),
        other(het_job_id=3, gpus=2, gpus_per_node=2),
        other(het_job_id=3, priority=0, reason="JobHeldUser"),
        other(gpus=0, gpus_per_node=None),
    ],
    ids=["later", "kept by a dependency", "kept by its begin time", "too large", "held", "without GPUs"],
)
def test_jobs_that_would_not_take_it_are_no_obstacle(behind: SlurmJob) -> None:
    assert left(behind) == 1


@pytest.mark.parametrize(("limit_s", "goes"), [(7200.0, 0), (60.0, 1)])
def test_nobody_is_interrupted_where_slurm_keeps_what_comes_free_for_a_larger_job_ahead(
    limit_s: float, goes: int
) -> None:
    """All four GPUs are free in an hour, and the larger job is to start then."""
    ahead = other(gpus=4, gpus_per_node=4, time_limit_s=3600.0)
    assert left(ahead, time_limit_s=limit_s) == goes
    assert left(replace(ahead, natives=(40,)), time_limit_s=limit_s) == 1


def six_run(*waiting: SlurmJob, enforced: bool = True, qos: str = "scavenge") -> Observation:
    """Six jobs of this QOS hold all GPUs, one each, and may be preempted."""
    held = {"qos": qos, "state": "RUNNING", "start_s": 1.0, "gpus": 1, "gpus_per_node": 1, "gpu_nodes": (("n1", 1),)}
    rest = {"comment": "explsched:checkpoint=USR1", "node_names": ("n1",), "time_limit_s": 9e4}
    running = [record(n, **held, **rest) for n in range(1, 7)]
    there = SlurmNode("n1", "ALLOCATED", 6, frozenset({"main"}), cpus=16)
    found = ClusterRecords((there,), (*running, *waiting), (), enforces_limits=enforced)
    return observe(found, ProgressSpool(Path("/nowhere")), 1e4)


def planned(seen: Observation, *asked_for: int) -> list[int | None]:
    """For whom jobs leave, once for each of them."""
    plan = without_vain_preemptions(catalog.build("srsf").plan(seen.snapshot), seen, asked_for)
    return [one.beneficiary for one in plan.preemptions]


def small(job_id: int, **fields: Any) -> SlurmJob:
    return other(job_id, **{"user": "ada", "time_limit_s": 60.0, "submit_s": float(job_id), **fields})


SIX = tuple(small(n) for n in range(20, 26))


def test_where_limits_are_enforced_room_is_made_for_one_job_at_a_time() -> None:
    """Slurm gives all of them the reason Resources or Priority, also those that a limit will keep waiting."""
    assert planned(six_run(*SIX, enforced=False)) == list(range(20, 26))
    assert planned(six_run(*SIX)) == [20]
    assert planned(six_run(small(20), small(21, qos="high"), small(22, account="lab"), small(23))) == [20, 21, 22]


def test_jobs_whose_victims_leave_as_much_of_the_same_limits_need_no_turn() -> None:
    assert planned(six_run(*SIX, qos=SIX[0].qos)) == list(range(20, 26))
    for more in ({"cpus": 2}, {"memory_mib": 2048}):
        assert planned(six_run(*(replace(job, **more) for job in SIX), qos=SIX[0].qos)) == [20]
    gang = small(20, gpus=2, gpus_per_node=2)
    assert planned(six_run(gang, replace(gang, job_id=21), qos=gang.qos)) == [20, 20, 21, 21]


def test_while_others_are_asked_to_leave_for_the_first_nobody_is_for_the_next() -> None:
    assert planned(six_run(*SIX), 20) == [20]
    assert planned(six_run(*SIX), 24) == []  # those before it would take what is freed
    assert planned(six_run(*SIX), 99) == [20]  # it has started, or left the queue


def test_nobody_leaves_for_a_job_behind_one_whose_turn_has_not_come() -> None:
    """It would take what is freed."""
    assert planned(six_run(small(20), small(21), small(22, qos="high"))) == [20]


@pytest.mark.parametrize(
    ("ago_s", "reason", "served"),
    [(60.0, "QOSMaxGRESPerUser", []), (60.0, "Resources", [21]), (3700.0, "QOSMaxGRESPerUser", [21])],
)
def test_where_a_limit_kept_the_first_waiting_nobody_leaves_for_the_next(
    ago_s: float, reason: str, served: list[int]
) -> None:
    """For whom a job was requeued is in its AdminComment."""
    past = PreemptionRecord(0.0, (Interruption(0, 1e4 - ago_s, 1, 0.0, "", 20),)).text()
    gone = small(30, priority=0, reason="BeginTime", eligible_s=2e4, restarts=1, admin_comment=past)
    first = small(20, reason=reason, time_limit_s=9e3)  # behind the others: it takes nothing that is freed for them
    assert planned(six_run(first, *SIX[1:], gone)) == served
    assert planned(six_run(first, *SIX[1:], gone, enforced=False)) == list(range(21, 26))


@pytest.mark.parametrize("gpus", [1, 2])
def test_of_an_array_room_is_made_for_one_task_at_a_time(gpus: int) -> None:
    array = small(20, gpus=gpus, gpus_per_node=gpus, array_tasks=3, array_job_id=20)
    assert planned(six_run(array, enforced=False)) == 3 * gpus * [20]
    assert planned(six_run(array)) == gpus * [20]
    assert planned(six_run(array), 20) == []
