"""From plan to changes: as few as possible, and only what is ours."""

from dataclasses import replace
from typing import Any

from sched_policy.model import Exploration, Job, JobState, NodeGpus
from sched_policy.plan import Plan, Preemption, Reservation, Score
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.protocol import (
    AttachReservation,
    CreateReservation,
    DeleteReservation,
    ExtendReservation,
    RequeueJob,
    SetSiteFactor,
    SignalJob,
    SlurmJob,
    SlurmReservation,
    StartAtOnce,
)
from slurm_plugin.observe import Observation
from slurm_plugin.order import OrderLimits
from slurm_plugin.preemption import PreemptionDesk
from slurm_plugin.progress import JobProgress, Report
from slurm_plugin.reconcile import SteeringLimits, changes, lease_changes
from tests.sched_policy.builders import NOW_S, job, nodes, running

LIMITS = SteeringLimits(OrderLimits(highest=1000, depth=100, most_per_pass=100), slack_s=120)


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


def test_only_waiting_jobs_are_labelled() -> None:
    plan = Plan(scores=(Score(1, 2.0, ""), Score(2, 1.0, "")))
    wanted = changes(plan, seen(record(1, state="RUNNING"), record(2, site_factor=None)), LIMITS)
    assert [change.job_id for change in wanted if isinstance(change, SetSiteFactor)] == [2]


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


def test_a_lease_that_has_begun_is_extended_while_its_job_still_waits() -> None:
    held = record(5, reservation="explsched_5")
    late = Plan(reservations=(promise(5, NOW_S + 30),))  # a job on its nodes has not ended yet
    fresh, ending = lease(5, NOW_S - 10), lease(5, NOW_S - 70)
    assert lease_changes(late, seen(held, leases=(fresh,)), LIMITS) == ()
    assert lease_changes(late, seen(held, leases=(ending,)), LIMITS) == (ExtendReservation("explsched_5", NOW_S + 120),)
    later = Plan(reservations=(promise(5, NOW_S + 1700),))
    kinds = [type(change) for change in lease_changes(later, seen(held, leases=(ending,)), LIMITS)]
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


def desk_step(desk: PreemptionDesk, now_s: float, *preempt: int, progress: JobProgress | None = None) -> list[object]:
    exploration = Exploration(checkpoint_signal="USR1")
    jobs = {5: running(5, "n1", exploration=exploration), 6: running(6, "n1")}
    reports = {5: progress} if progress else {}
    return list(desk.advance(tuple(Preemption(p, "") for p in preempt), jobs, reports, now_s))


def test_signal_then_requeue_when_the_checkpoint_is_reported() -> None:
    desk = PreemptionDesk(grace_s=100, most_per_hour=10)
    assert desk_step(desk, 0, 5) == [SignalJob(5, "USR1")]
    assert desk_step(desk, 10, 5) == []
    assert desk_step(desk, 20, 5, progress=JobProgress(checkpoint_s=15)) == [RequeueJob(5)]


def test_requeue_when_the_grace_is_over() -> None:
    desk = PreemptionDesk(grace_s=100, most_per_hour=10)
    desk_step(desk, 0, 5, progress=JobProgress(checkpoint_s=-50))
    assert desk_step(desk, 50, 5, progress=JobProgress(checkpoint_s=-50)) == []  # an old checkpoint does not count
    assert desk_step(desk, 100, 5) == [RequeueJob(5)]


def test_a_job_that_is_still_starting_is_not_signalled() -> None:
    desk = PreemptionDesk(grace_s=100, most_per_hour=10)
    earlier = Report(1.0, restart=0, step=1, metric="loss", value=1.0)
    jobs = {5: running(5, "n1", exploration=Exploration(checkpoint_signal="USR1"), restarts=1)}
    wanted = (Preemption(5, ""),)
    assert desk.advance(wanted, jobs, {5: JobProgress(reports=(earlier,))}, 0) == ()
    ready = JobProgress(reports=(earlier, replace(earlier, restart=1)))
    assert desk.advance(wanted, jobs, {5: ready}, 0) == (SignalJob(5, "USR1"),)


def test_a_job_that_did_not_opt_in_is_never_touched() -> None:
    assert desk_step(PreemptionDesk(100, 10), 0, 6) == []


def test_a_job_that_has_finished_meanwhile_is_left_alone() -> None:
    desk = PreemptionDesk(grace_s=100, most_per_hour=10)
    desk_step(desk, 0, 5)
    assert desk_step(desk, 200, progress=JobProgress(checkpoint_s=5, ended=True)) == []
    desk_step(desk, 200, 5)
    gone = desk.advance((), {5: replace(running(5, "n1"), state=JobState.PENDING)}, {}, 900)
    assert gone == ()
    assert desk.underway == frozenset()


def test_the_hourly_budget_bounds_the_churn() -> None:
    desk = PreemptionDesk(grace_s=1, most_per_hour=1)
    assert desk_step(desk, 0, 5) == [SignalJob(5, "USR1")]
    desk.advance((), {}, {}, 10)
    assert desk_step(desk, 20, 5) == []
    assert desk_step(desk, 3601, 5) == [SignalJob(5, "USR1")]


def test_site_factors_are_part_of_the_changes() -> None:
    plan = Plan(scores=(Score(1, 2.0, ""),))
    assert changes(plan, seen(record(1, site_factor=None)), LIMITS) == (SetSiteFactor(1, 500),)
