"""From plan to changes: as few as possible, and only what is ours."""

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sched_policy.model import Exploration, GpuRequest, Job, NodeGpus
from sched_policy.plan import Plan, Reservation, Resize, Score
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.protocol import (
    AttachReservation,
    ChangeFailure,
    CreateReservation,
    DeleteReservation,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    SlurmJob,
    SlurmReservation,
    StartAtOnce,
)
from slurm_plugin.observe import Observation
from slurm_plugin.reconcile import (
    SteeringLimits,
    changes,
    lease_changes,
    order_changes,
    relabel,
    resize_changes,
    restored,
)
from tests.sched_policy.builders import NOW_S, job, nodes

LIMITS = SteeringLimits(site_factor_range=1000, slack_s=120)


def record(job_id: int, **fields: Any) -> SlurmJob:
    base = SlurmJob(
        job_id,
        "j",
        "ada",
        1000,
        "",
        "main",
        "",
        "PENDING",
        "Priority",
        1,
        0,
        0.0,
        0.0,
        None,
        3600.0,
        1,
        4,
        4,
        (),
        "",
        "",
        0,
    )
    return replace(base, **fields)


def seen(*records: SlurmJob, leases: tuple[SlurmReservation, ...] = (), jobs: tuple[Job, ...] = ()) -> Observation:
    return Observation(Snapshot.of(NOW_S, nodes(), jobs), {r.job_id: r for r in records}, leases, {}, {})


def promise(job_id: int, start_s: float = NOW_S + 600, gpus: int = 4) -> Reservation:
    return Reservation(job_id, (NodeGpus("n1", gpus),), start_s, start_s + 3600, "")


def lease(job_id: int, start_s: float = NOW_S + 600, node: str = "n1") -> SlurmReservation:
    return SlurmReservation(f"explsched_{job_id}", start_s, start_s + 120, (node,), ("ada",), frozenset())


@given(st.lists(st.one_of(st.none(), st.integers(-600, 600)), max_size=40))
def test_labels_fall_strictly_within_the_range(current: list[int | None]) -> None:
    labels = relabel(current, 500)
    assert all(a > b for a, b in itertools.pairwise(labels))
    assert all(-500 < label < 500 for label in labels)


def test_a_right_order_changes_nothing() -> None:
    assert relabel([400, 7, 3, -20], 500) == [400, 7, 3, -20]


def test_one_job_moving_to_the_front_is_one_change() -> None:
    current = [-20, 400, 7, 3]  # in wanted order; only the first stands wrong
    assert [old != new for old, new in zip(current, relabel(current, 500), strict=True)] == [True, False, False, False]


def test_more_jobs_than_labels_share_the_lowest() -> None:
    labels = relabel([None] * 50, 10)
    assert labels == sorted(labels, reverse=True)
    assert min(labels) == -9


def test_only_waiting_jobs_are_labelled() -> None:
    plan = Plan(scores=(Score(1, 2.0, ""), Score(2, 1.0, "")))
    wanted = order_changes(plan, seen(record(1, state="RUNNING"), record(2, site_factor=None)), LIMITS)
    assert [change.job_id for change in wanted] == [2]


def test_a_promise_becomes_a_short_lease() -> None:
    wanted = lease_changes(Plan(reservations=(promise(5),)), seen(record(5)), LIMITS)
    assert wanted == (
        CreateReservation("explsched_5", NOW_S + 600, 2, ("n1",), ("ada",), "main"),
        AttachReservation(5, "explsched_5"),
    )


def test_a_lease_never_starts_in_the_past() -> None:
    (create, _attach) = lease_changes(Plan(reservations=(promise(5, NOW_S - 5),)), seen(record(5)), LIMITS)
    assert isinstance(create, CreateReservation)
    assert create.start_s >= NOW_S + 60


def test_part_of_a_node_is_not_leased() -> None:
    assert lease_changes(Plan(reservations=(promise(5, gpus=3),)), seen(record(5)), LIMITS) == ()


def test_a_small_drift_moves_nothing_a_large_one_replaces() -> None:
    held = record(5, reservation="explsched_5")
    near = Plan(reservations=(promise(5, NOW_S + 700),))
    far = Plan(reservations=(promise(5, NOW_S + 1700),))
    assert lease_changes(near, seen(held, leases=(lease(5),)), LIMITS) == ()
    kinds = [type(change) for change in lease_changes(far, seen(held, leases=(lease(5),)), LIMITS)]
    assert kinds == [AttachReservation, DeleteReservation, CreateReservation, AttachReservation]


def test_a_lease_is_readopted_after_a_restart() -> None:
    plan = Plan(reservations=(promise(5),))
    assert lease_changes(plan, seen(record(5), leases=(lease(5),)), LIMITS) == (AttachReservation(5, "explsched_5"),)


def test_a_started_job_is_taken_out_before_its_lease_is_deleted() -> None:
    started = record(5, state="RUNNING", reservation="explsched_5")
    wanted = lease_changes(Plan(), seen(started, leases=(lease(5),)), LIMITS)
    assert wanted == (AttachReservation(5, ""), DeleteReservation("explsched_5"))


def test_leases_of_vanished_jobs_go_and_foreign_reservations_stay() -> None:
    foreign = replace(lease(1), name="maintenance")
    almost = replace(lease(1), name="explsched_x")
    wanted = lease_changes(Plan(), seen(leases=(lease(9), foreign, almost)), LIMITS)
    assert wanted == (DeleteReservation("explsched_9"),)


def test_a_job_in_its_owners_reservation_is_left_there() -> None:
    own = record(5, reservation="workshop")
    assert lease_changes(Plan(reservations=(promise(5),)), seen(own), LIMITS) == ()


def test_the_name_of_a_lease_that_ran_out_is_taken_off_the_job() -> None:
    orphan = record(5, reservation="explsched_5")
    assert lease_changes(Plan(), seen(orphan), LIMITS) == (AttachReservation(5, ""),)


def test_the_requeue_delay_is_lifted_for_consenting_jobs_only() -> None:
    consenting = job(5, exploration=Exploration(checkpoint_signal="USR1"))
    other = job(6)
    # The reason is not BeginTime before Slurm has looked at the job, which it may not do for minutes.
    waiting = [record(i, restarts=1, eligible_s=NOW_S + 100) for i in (5, 6)]
    wanted = changes(Plan(), seen(*waiting, jobs=(consenting, other)), LIMITS)
    assert [c for c in wanted if isinstance(c, StartAtOnce)] == [StartAtOnce(5)]


def resized(job_id: int, nodes: int, gpus: int) -> Plan:
    return Plan(resizes=(Resize(job_id, GpuRequest.on_each(nodes, gpus), "why"),))


def test_a_waiting_job_is_resized_and_a_running_one_is_not() -> None:
    asks = {"nodes": 1, "gpus_per_node": 4, "gres_per_node": "gpu:a100:4,nvme:1"}
    assert resize_changes(resized(5, 1, 2), seen(record(5, **asks))) == (SetGres(5, "gpu:a100:2,nvme:1"),)
    assert resize_changes(resized(5, 1, 2), seen(record(5, state="RUNNING", **asks))) == ()
    assert resize_changes(resized(5, 1, 1), seen(record(5, gres_per_node="gpu"))) == (SetGres(5, "gpu:1"),)


def test_tasks_and_cpus_follow_the_nodes() -> None:
    asks = {"nodes": 2, "gpus_per_node": 4, "gres_per_node": "gpu:4", "tasks": 4, "cpus": 16}
    assert resize_changes(resized(5, 3, 4), seen(record(5, **asks))) == (SetNodeCount(5, 3, 6, 24),)
    refused = ChangeFailure(SetNodeCount(5, 3, 6, 24), "no")
    assert restored([refused, ChangeFailure(SetGres(5, "gpu:1"), "no")], {5: record(5, **asks)}) == (
        SetNodeCount(5, 2, 4, 16),
    )


def test_site_factors_are_part_of_the_changes() -> None:
    plan = Plan(scores=(Score(1, 2.0, ""),))
    assert changes(plan, seen(record(1, site_factor=None)), LIMITS) == (SetSiteFactor(1, 0),)
