"""From plan to changes: as few as possible, and only what is ours."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from sched_policy.model import Exploration, GpuRequest, Job, NodeGpus
from sched_policy.plan import Plan, Reservation, Resize, Score, Start
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.changes import (
    AttachReservation,
    Change,
    ChangeFailure,
    CreateReservation,
    DelayStart,
    DeleteReservation,
    ExtendReservation,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    StartAtOnce,
)
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmReservation, Topology
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requeue_delay import returns_at_once
from slurm_plugin.observation.standing import REST_S, SETTLE_S
from slurm_plugin.steering.leases import lease_changes
from slurm_plugin.steering.order import OrderLimits
from slurm_plugin.steering.reconcile import SteeringLimits, beside_order, reordered, resize_changes, restored
from slurm_plugin.steering.release import releases
from slurm_plugin.steering.slurm_order import wanted_order
from tests.sched_policy.builders import NOW_S, job, nodes
from tests.slurm_kit import record

SLACK_S = 120.0
LIMITS = SteeringLimits(OrderLimits(highest=1000, depth=100, max_per_pass=100), SLACK_S)


def seen(*records: SlurmJob, leases: tuple[SlurmReservation, ...] = (), jobs: tuple[Job, ...] = ()) -> Observation:
    """Of requeued jobs each has run for long enough to return at once."""
    lasted = frozenset((one.job_id, one.restarts - 1) for one in records)
    returning = (one.job_id for one in records if returns_at_once(one, None, JobProgress(), lasted, NOW_S))
    cluster, by_id = ClusterRecords((), records, leases), {one.job_id: one for one in records}
    return Observation(Snapshot.of(NOW_S, nodes(), jobs), cluster, by_id, returning=frozenset(returning))


def changes(plan: Plan, seen: Observation, limits: SteeringLimits) -> tuple[Change, ...]:
    """Order, sizes, leases and groups."""
    released = releases(plan, seen)
    order = reordered(plan, wanted_order(plan, seen.snapshot, released), seen, limits)
    return (*order, *beside_order(plan, released, seen, limits.slack_s, order))


def promise(job_id: int, start_s: float = NOW_S + 600, gpus: int = 4) -> Reservation:
    return Reservation(job_id, (NodeGpus("n1", gpus),), start_s, start_s + 3600, "")


def lease(job_id: int, start_s: float = NOW_S + 600, node: str = "n1") -> SlurmReservation:
    return SlurmReservation(f"explsched_{job_id}", start_s, start_s + 120, (node,), ("ada",), frozenset())


def test_only_waiting_jobs_are_labelled() -> None:
    plan = Plan(scores=(Score(1, 2.0, ""), Score(2, 1.0, "")))
    wanted = changes(plan, seen(record(1, state="RUNNING"), record(2)), LIMITS)
    assert [change.job_id for change in wanted if isinstance(change, SetSiteFactor)] == [2]


def test_jobs_that_may_not_start_take_no_writes_from_those_that_may() -> None:
    """Slurm shows no site factor of theirs, so each pass would write it again."""
    held = record(1, site_factor=None, reason="JobHeldUser", eligible_s=None)
    delayed = {"site_factor": None, "restarts": 1, "reason": "BeginTime", "eligible_s": NOW_S + 100, "submit_s": NOW_S}
    back, rests = (record(job_id, **delayed) for job_id in (2, 3))
    planned = tuple(job(job_id, exploration=Exploration(checkpoint_signal="USR1")) for job_id in (2, 3))
    plan = Plan(scores=tuple(Score(job_id, 9.0 - job_id, "") for job_id in (1, 2, 3, 4)), rests=frozenset({3}))
    wanted = changes(plan, seen(held, back, rests, record(4), jobs=planned), LIMITS)
    assert [change.job_id for change in wanted if isinstance(change, SetSiteFactor)] == [2, 4]


def test_a_promise_becomes_a_short_lease() -> None:
    wanted = lease_changes(Plan(reservations=(promise(5),)), seen(record(5)), SLACK_S)
    assert wanted == (
        CreateReservation("explsched_5", NOW_S + 600, 2, ("n1",), ("ada",), "main"),
        AttachReservation(5, "explsched_5"),
    )


def test_a_lease_overtakes_no_job_that_slurm_is_about_to_start() -> None:
    """Jobs in reservations come first in Slurm, also on nodes that it has not yet given to those whose turn it is."""
    plan = Plan(starts=(Start(6, (NodeGpus("n1", 1),), ""),), reservations=(promise(5),))
    assert lease_changes(plan, seen(record(5), record(6)), SLACK_S) == ()
    elsewhere = replace(plan, starts=(Start(6, (NodeGpus("n2", 1),), ""),))
    assert lease_changes(elsewhere, seen(record(5), record(6)), SLACK_S) != ()
    held = record(7, state="RUNNING", node_names=("n1",), gpu_nodes=(("n1", 3),))
    assert lease_changes(plan, seen(record(5), record(6), held), SLACK_S) != ()
    without_gpus = record(8, state="RUNNING", node_names=("n1",), gpus=0, gpus_per_node=None)
    assert lease_changes(plan, seen(record(5), record(6), without_gpus), SLACK_S) == ()


def test_a_lease_leaves_time_to_the_jobs_that_the_plan_starts_on_its_nodes_now() -> None:
    """Slurm starts them some seconds later, and would start none that ends after the lease has begun."""
    plan = Plan(reservations=(promise(5),), starts=(Start(6, (NodeGpus("n1", 1),), ""),))
    there = seen(record(5), record(6), record(7, state="RUNNING", node_names=("n1",), gpus=1))
    (create, _attach) = lease_changes(plan, there, SLACK_S)
    assert isinstance(create, CreateReservation)
    assert create.start_s == NOW_S + 600 + SLACK_S / 2
    made = replace(lease(5, create.start_s), end_s=create.start_s + 120)
    stands = seen(replace(record(5), reservation=made.name), *list(there.jobs.values())[1:], leases=(made,))
    assert lease_changes(replace(plan, starts=()), stands, SLACK_S) == (), "it is right once they have started, too"


def test_where_slurm_places_gangs_by_a_network_that_is_not_known_only_single_nodes_are_leased() -> None:
    two = replace(promise(6), placement=(NodeGpus("n1", 4), NodeGpus("n2", 4)))
    plan = Plan(reservations=(promise(5), two))
    flat = lease_changes(plan, seen(record(5), record(6, nodes=2)), SLACK_S)
    assert [c.name for c in flat if isinstance(c, CreateReservation)] == ["explsched_5", "explsched_6"]
    two_nodes = seen(record(5), record(6, nodes=2))
    torus = replace(two_nodes, cluster=replace(two_nodes.cluster, topology=Topology(fault="a torus")))
    assert [c.name for c in lease_changes(plan, torus, SLACK_S) if isinstance(c, CreateReservation)] == ["explsched_5"]


def test_a_lease_never_starts_in_the_past() -> None:
    (create, _attach) = lease_changes(Plan(reservations=(promise(5, NOW_S - 5),)), seen(record(5)), SLACK_S)
    assert isinstance(create, CreateReservation)
    assert create.start_s >= NOW_S + 60


def test_part_of_a_node_is_not_leased() -> None:
    assert lease_changes(Plan(reservations=(promise(5, gpus=3),)), seen(record(5)), SLACK_S) == ()


def test_a_small_drift_moves_nothing_a_large_one_replaces() -> None:
    held = record(5, reservation="explsched_5")
    near = Plan(reservations=(promise(5, NOW_S + 700),))
    far = Plan(reservations=(promise(5, NOW_S + 1700),))
    assert lease_changes(near, seen(held, leases=(lease(5),)), SLACK_S) == ()
    kinds = [type(change) for change in lease_changes(far, seen(held, leases=(lease(5),)), SLACK_S)]
    assert kinds == [AttachReservation, DeleteReservation, CreateReservation, AttachReservation]


def test_a_lease_on_other_nodes_or_past_its_end_is_replaced() -> None:
    held = record(5, reservation="explsched_5")
    replaced = [AttachReservation, DeleteReservation, CreateReservation, AttachReservation]
    for wrong in (lease(5, node="n2"), replace(lease(5, NOW_S - 100), end_s=NOW_S)):
        plan = Plan(reservations=(promise(5, wrong.start_s),))
        assert [type(change) for change in lease_changes(plan, seen(held, leases=(wrong,)), SLACK_S)] == replaced


def test_a_lease_that_has_begun_is_extended_while_its_job_still_waits() -> None:
    held = record(5, reservation="explsched_5")
    late = Plan(reservations=(promise(5, NOW_S + 30),))  # a job on its nodes has not ended yet
    fresh, ending = lease(5, NOW_S - 10), lease(5, NOW_S - 70)
    assert lease_changes(late, seen(held, leases=(fresh,)), SLACK_S) == ()
    assert lease_changes(late, seen(held, leases=(ending,)), SLACK_S) == (
        ExtendReservation("explsched_5", NOW_S + 120),
    )
    later = Plan(reservations=(promise(5, NOW_S + 1700),))
    kinds = [type(change) for change in lease_changes(later, seen(held, leases=(ending,)), SLACK_S)]
    assert kinds == [AttachReservation, DeleteReservation, CreateReservation, AttachReservation]


def test_a_lease_is_readopted_after_a_restart() -> None:
    plan = Plan(reservations=(promise(5),))
    assert lease_changes(plan, seen(record(5), leases=(lease(5),)), SLACK_S) == (AttachReservation(5, "explsched_5"),)


def test_a_started_job_is_taken_out_before_its_lease_is_deleted() -> None:
    started = record(5, state="RUNNING", reservation="explsched_5")
    wanted = lease_changes(Plan(), seen(started, leases=(lease(5),)), SLACK_S)
    assert wanted == (AttachReservation(5, ""), DeleteReservation("explsched_5"))


def test_leases_of_vanished_jobs_go_and_foreign_reservations_stay() -> None:
    foreign = replace(lease(1), name="maintenance")
    almost = [replace(lease(1), name=name) for name in ("explsched_x", "explsched_1_course", "my_explsched_1")]
    wanted = lease_changes(Plan(), seen(leases=(lease(9), foreign, *almost)), SLACK_S)
    assert wanted == (DeleteReservation("explsched_9"),)


def test_a_job_in_its_owners_reservation_is_left_there() -> None:
    own = record(5, reservation="workshop")
    assert lease_changes(Plan(reservations=(promise(5),)), seen(own), SLACK_S) == ()


def test_only_jobs_that_wait_are_leased() -> None:
    runs = record(5, state="RUNNING")
    assert lease_changes(Plan(reservations=(promise(5),)), seen(runs), SLACK_S) == ()


@pytest.mark.parametrize("fields", [{"reason": "Licenses"}, {"reason": "None"}, {"het_job_id": 4}])
def test_only_jobs_that_wait_for_room_get_a_lease(fields: dict[str, Any]) -> None:
    assert lease_changes(Plan(reservations=(promise(5),)), seen(record(5, **fields)), SLACK_S) == ()


def test_a_lease_stays_while_slurm_has_not_tested_its_job_again_and_goes_when_the_job_cannot_start() -> None:
    """Attaching a job to its lease is a change, which makes the reason None."""
    plan = Plan(reservations=(promise(5),))
    held = record(5, reservation="explsched_5")
    for reason in ("None", "Reservation", "Resources", "Priority"):
        assert lease_changes(plan, seen(replace(held, reason=reason), leases=(lease(5),)), SLACK_S) == (), reason
    limited = replace(held, reason="PartitionTimeLimit")
    gone = (AttachReservation(5, ""), DeleteReservation("explsched_5"))
    assert lease_changes(plan, seen(limited, leases=(lease(5),)), SLACK_S) == gone


def test_a_lease_that_has_kept_nodes_in_vain_is_taken_away_and_given_no_more() -> None:
    plan = Plan(reservations=(promise(5),))
    held = record(5, reservation="explsched_5")
    in_vain = replace(seen(held, leases=(lease(5),)), known=Remembered(leased_in_vain=frozenset({5})))
    assert lease_changes(plan, in_vain, SLACK_S) == (AttachReservation(5, ""), DeleteReservation("explsched_5"))
    without = replace(seen(record(5)), known=Remembered(leased_in_vain=frozenset({5})))
    assert lease_changes(plan, without, SLACK_S) == ()


@pytest.mark.parametrize("named", ["explsched_5", "explsched_5,", "course,explsched_5"])
def test_jobs_that_their_owner_has_put_into_the_lease_of_another_are_taken_out(named: str) -> None:
    """Slurm starts jobs in reservations before all others, and takes lists of them."""
    plan = Plan(reservations=(promise(5),))
    held, other = record(5, reservation="explsched_5"), record(6, reservation=named)
    for state in ("PENDING", "RUNNING"):  # Slurm deletes no reservation with a running job
        there = seen(held, replace(other, state=state), leases=(lease(5),))
        assert lease_changes(plan, there, SLACK_S) == (AttachReservation(6, ""),)
    leaving = seen(held, replace(other, state="COMPLETING"), leases=(lease(5),))
    assert lease_changes(plan, leaving, SLACK_S) == ()


def test_the_name_of_a_lease_that_ran_out_is_taken_off_the_job() -> None:
    orphan = record(5, reservation="explsched_5")
    assert lease_changes(Plan(), seen(orphan), SLACK_S) == (AttachReservation(5, ""),)
    runs = record(6, reservation="explsched_6", state="RUNNING")  # Slurm would refuse
    assert lease_changes(Plan(), seen(runs), SLACK_S) == ()


def test_the_requeue_delay_is_lifted_for_jobs_that_allow_preemption_only() -> None:
    opted_in = job(5, exploration=Exploration(checkpoint_signal="USR1"))
    other = job(6)
    # The reason is not BeginTime before Slurm has looked at the job, which it may not do for minutes.
    waiting = [record(i, restarts=1, eligible_s=NOW_S - SETTLE_S + 121, submit_s=NOW_S - SETTLE_S) for i in (5, 6)]
    wanted = changes(Plan(), seen(*waiting, jobs=(opted_in, other)), LIMITS)
    assert [c for c in wanted if isinstance(c, StartAtOnce)] == [StartAtOnce(5)]


def test_the_requeue_delay_is_not_lifted_before_the_old_run_is_surely_over() -> None:
    job_5 = job(5, exploration=Exploration(checkpoint_signal="USR1"))
    fresh = record(5, restarts=1, eligible_s=NOW_S - SETTLE_S / 2 + 121, submit_s=NOW_S - SETTLE_S / 2)
    assert not any(isinstance(c, StartAtOnce) for c in changes(Plan(), seen(fresh, jobs=(job_5,)), LIMITS))


def test_a_running_job_has_no_delay_to_lift() -> None:
    """Slurm's clock may be ahead of ours, and the run have begun after our now."""
    job_5 = job(5, exploration=Exploration(checkpoint_signal="USR1"))
    runs = record(5, state="RUNNING", restarts=1, eligible_s=NOW_S + 2, submit_s=NOW_S - SETTLE_S)
    assert not any(isinstance(c, StartAtOnce) for c in changes(Plan(), seen(runs, jobs=(job_5,)), LIMITS))


def test_who_rests_is_put_off_again_and_again() -> None:
    job_5 = job(5, exploration=Exploration(checkpoint_signal="USR1"))

    def wanted(plan: Plan, eligible_s: float) -> list[object]:
        waits = record(5, restarts=1, eligible_s=eligible_s, submit_s=NOW_S - 5000)
        found = changes(plan, seen(waits, jobs=(job_5,)), LIMITS)
        return [change for change in found if isinstance(change, StartAtOnce | DelayStart)]

    rests = Plan(rests=frozenset({5}))
    delayed = [DelayStart(5, math.ceil(NOW_S + REST_S))]
    assert wanted(rests, NOW_S - 4000) == delayed
    assert wanted(rests, NOW_S + 0.4 * REST_S) == delayed
    assert wanted(rests, NOW_S + 0.9 * REST_S) == []
    assert wanted(Plan(), NOW_S - 4000) == []


def test_a_begin_time_that_somebody_wants_is_not_lifted() -> None:
    job_5 = job(5, exploration=Exploration(checkpoint_signal="USR1"))
    for ahead_s, requeued_s in ((7200, 60), (500, 5000), (590, 10)):
        postponed = record(5, restarts=1, eligible_s=NOW_S + ahead_s, submit_s=NOW_S - requeued_s)
        assert not any(isinstance(c, StartAtOnce) for c in changes(Plan(), seen(postponed, jobs=(job_5,)), LIMITS))


@pytest.mark.parametrize("after_requeue_s", [300, 301])
def test_the_delay_that_the_site_has_set_is_lifted(after_requeue_s: int) -> None:
    job_5 = job(5, exploration=Exploration(checkpoint_signal="USR1"))
    requeued = {"restarts": 1, "submit_s": NOW_S - 10, "eligible_s": NOW_S - 10 + after_requeue_s}
    waits = record(5, requeue_delay_s=300.0, **requeued)
    assert StartAtOnce(5) in changes(Plan(), seen(waits, jobs=(job_5,)), LIMITS)
    elsewhere = record(5, **requeued)
    assert StartAtOnce(5) not in changes(Plan(), seen(elsewhere, jobs=(job_5,)), LIMITS)


def test_the_requeue_delay_is_lifted_only_once_slurm_has_taken_the_new_size() -> None:
    """Or the job could start at its old one, and be restarted once more."""
    job_5 = job(5, exploration=Exploration(checkpoint_signal="USR1"))
    asks = {"nodes": 1, "gpus_per_node": 2, "gres_per_node": "gpu:2"}
    waiting = record(5, restarts=1, eligible_s=NOW_S - SETTLE_S + 121, submit_s=NOW_S - SETTLE_S, **asks)
    grown = resized(5, 1, 4)
    first = changes(grown, seen(waiting, jobs=(job_5,)), LIMITS)
    assert [c for c in first if isinstance(c, SetGres | StartAtOnce)] == [SetGres(5, "gpu:4")]
    taken = replace(waiting, gpus_per_node=4, gres_per_node="gpu:4")
    then = changes(grown, seen(taken, jobs=(job_5,)), LIMITS)
    assert [c for c in then if isinstance(c, SetGres | StartAtOnce)] == [StartAtOnce(5)]


def resized(job_id: int, nodes: int, gpus: int) -> Plan:
    return Plan(resizes=(Resize(job_id, GpuRequest.on_each(nodes, gpus), "why"),))


def test_a_waiting_job_is_resized_and_a_running_one_is_not() -> None:
    asks = {"nodes": 1, "gpus_per_node": 4, "gres_per_node": "gpu:a100:4,nvme:1"}
    assert resize_changes(resized(5, 1, 2), seen(record(5, **asks))) == (SetGres(5, "gpu:a100:2,nvme:1"),)
    assert resize_changes(resized(5, 1, 2), seen(record(5, state="RUNNING", **asks))) == ()
    assert resize_changes(resized(5, 1, 1), seen(record(5, gres_per_node="gpu"))) == (SetGres(5, "gpu:1"),)


@pytest.mark.parametrize("of_type", ["gpu:a100", "gpu:2080ti", "gpu:3090", "gpu:1g.5gb"])
def test_a_resized_job_asks_for_gpus_of_the_same_type(of_type: str) -> None:
    asks = {"nodes": 1, "gpus_per_node": 4, "gres_per_node": f"{of_type}:4"}
    assert resize_changes(resized(5, 1, 2), seen(record(5, **asks))) == (SetGres(5, f"{of_type}:2"),)


def test_tasks_and_cpus_follow_the_nodes() -> None:
    asks = {"nodes": 2, "gpus_per_node": 4, "gres_per_node": "gpu:4", "tasks": 4, "cpus": 16}
    assert resize_changes(resized(5, 3, 4), seen(record(5, **asks))) == (SetNodeCount(5, 3, 6, 24),)
    refused = ChangeFailure(SetNodeCount(5, 3, 6, 24), "no")
    assert restored([refused, ChangeFailure(SetGres(5, "gpu:1"), "no")], {5: record(5, **asks)}) == (
        SetNodeCount(5, 2, 4, 16),
    )
    assert restored([refused], {}) == ()


def test_site_factors_are_part_of_the_changes() -> None:
    plan = Plan(scores=(Score(1, 2.0, ""),))
    assert changes(plan, seen(record(1)), LIMITS) == (SetSiteFactor(1, 500),)


def test_negative_site_factors_of_earlier_releases_are_replaced() -> None:
    plan = Plan(scores=(Score(1, 2.0, ""), Score(2, 1.0, "")))
    [change] = changes(plan, seen(record(1, site_factor=700), record(2, site_factor=-300)), LIMITS)
    assert isinstance(change, SetSiteFactor)
    assert change.job_id == 2
    assert 0 < change.site_factor < 700


def test_a_fresh_lease_stays_although_the_plan_has_moved() -> None:
    """Each change of a reservation ends a backfill cycle that has let go of its locks."""
    held = record(5, reservation="explsched_5")
    fresh = replace(seen(held, leases=(lease(5),)), known=Remembered(fresh_leases=frozenset({5})))
    elsewhere = Plan(reservations=(replace(promise(5), placement=(NodeGpus("n2", 4),)),))
    assert lease_changes(elsewhere, fresh, SLACK_S) == ()
    assert lease_changes(Plan(), fresh, SLACK_S) == ()
    assert lease_changes(elsewhere, replace(fresh, known=Remembered()), SLACK_S) != ()
    started = replace(fresh, jobs={5: replace(held, state="RUNNING")})
    assert lease_changes(Plan(), started, SLACK_S) == (AttachReservation(5, ""), DeleteReservation("explsched_5"))
    begun = replace(fresh, cluster=replace(fresh.cluster, reservations=(lease(5, NOW_S - 30),)))
    assert DeleteReservation("explsched_5") in lease_changes(elsewhere, begun, SLACK_S)


def test_no_lease_is_asked_for_beside_one_that_stays_on_its_nodes() -> None:
    held = record(5, reservation="explsched_5")
    fresh = replace(seen(held, record(6), leases=(lease(5),)), known=Remembered(fresh_leases=frozenset({5})))
    assert lease_changes(Plan(reservations=(promise(6, NOW_S + 719),)), fresh, SLACK_S) == ()  # Slurm refuses overlaps
    for room in (promise(6, NOW_S + 720), replace(promise(6), placement=(NodeGpus("n2", 4),))):
        created = lease_changes(Plan(reservations=(room,)), fresh, SLACK_S)
        assert [type(change) for change in created] == [CreateReservation, AttachReservation]
