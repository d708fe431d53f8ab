"""Preemption over several passes: signal, checkpoint, requeue, and what it is allowed to cost."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from explsched.preemption_record import MOST_BYTES, Interruption, PreemptionRecord, RecordError, read
from sched_policy.model import Exploration, GpuPart, Job, JobState
from sched_policy.plan import Preemption
from slurm_plugin.client.changes import Change, ChangeFailure, NotNow, RequeueJob, SetAdminComment, SignalJob
from slurm_plugin.config import HOUR_S, PreemptionSection
from slurm_plugin.observation.progress import JobProgress, ProgressReport, Run, fold
from slurm_plugin.steering.preemption import PreemptionTracker
from slurm_plugin.steering.underway import Look, interruption
from tests.sched_policy.builders import NOW_S, job, running
from tests.slurm_kit import record as slurm_job

CONSENT = Exploration(checkpoint_signal="USR1")


def advance(
    tracker: PreemptionTracker,
    wanted: Iterable[Preemption],
    jobs: Mapping[int, Job],
    progress: Mapping[int, JobProgress],
    records: Mapping[int, PreemptionRecord],
    now_s: float,
    in_vain: Mapping[int, int | None] = MappingProxyType({}),
    clear_from_s: float = 0.0,
    interval_s: float = math.inf,
    closed: frozenset[int] = frozenset(),
) -> tuple[Change, ...]:
    """One pass, never late; Slurm's records have what `slurm_job` asks for, and each job's own GPUs, on one node."""
    tracker.begin(now_s, interval_s, closed, clear_from_s)
    gpus = {job_id: one.request.total for job_id, one in jobs.items()}
    slurm_jobs = {job_id: slurm_job(job_id, gpus=count, gpus_per_node=count) for job_id, count in gpus.items()}
    return tracker.advance(wanted, Look(jobs, slurm_jobs, progress, records, now_s), in_vain)


def steps(
    tracker: PreemptionTracker,
    now_s: float,
    *preempt: int,
    progress: JobProgress | None = None,
    record: PreemptionRecord | None = None,
) -> list[object]:
    """One pass; job 5 consented, job 6 did not. What is written down is left out."""
    jobs = {5: running(5, "n1", exploration=CONSENT), 6: running(6, "n1")}
    reports = {5: progress} if progress else {}
    wanted = tuple(Preemption(job_id, "why") for job_id in preempt)
    changes = advance(tracker, wanted, jobs, reports, {5: record} if record else {}, now_s)
    return [change for change in changes if not isinstance(change, SetAdminComment)]


def test_signal_then_requeue_when_the_checkpoint_is_reported() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    assert steps(tracker, 0, 5) == [SignalJob(5, "USR1")]
    assert steps(tracker, 10, 5) == []
    assert steps(tracker, 20, 5, progress=JobProgress(checkpoint_s=15)) == [RequeueJob(5)]


def test_requeue_when_the_grace_is_over() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    steps(tracker, 0, 5, progress=JobProgress(checkpoint_s=-50))
    assert steps(tracker, 50, 5, progress=JobProgress(checkpoint_s=-50)) == []  # an old checkpoint does not count
    assert steps(tracker, 100, 5) == [RequeueJob(5)]


def test_what_a_pass_waits_for_is_told_once() -> None:
    tracker, saved = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10)), JobProgress(checkpoint_s=15)
    assert not tracker.is_any_ready({5: saved}, 20)
    steps(tracker, 10, 5)
    told = [tracker.is_any_ready(reports, now_s) for reports, now_s in (({}, 20), ({5: saved}, 20), ({}, 110))]
    assert told == [False, True, True]
    assert steps(tracker, 20, progress=saved) == [RequeueJob(5)]
    assert not tracker.is_any_ready({5: saved}, 200)


def test_a_job_that_is_still_starting_is_not_signalled() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    earlier = ProgressReport(1.0, restart=0, step=1, metric="loss", value=1.0)
    jobs = {5: running(5, "n1", exploration=CONSENT, restarts=1)}
    wanted = (Preemption(5, ""),)
    assert advance(tracker, wanted, jobs, {5: JobProgress(reports=(earlier,))}, {}, 0) == ()
    ready = JobProgress(reports=(earlier, ProgressReport(1.0, restart=1, step=1, metric="loss", value=1.0)))
    assert advance(tracker, wanted, jobs, {5: ready}, {}, 0) == (SignalJob(5, "USR1"),)


def test_a_job_under_sxrun_that_reports_no_progress_is_not_signalled_before_its_sxrun() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT, restarts=1)}
    wanted, begun = (Preemption(5, ""),), Run(0, 1.0, 2.0, under_sxrun=True)
    assert advance(tracker, wanted, jobs, {5: JobProgress(runs=(begun,))}, {}, 0) == ()
    both = JobProgress(runs=(begun, Run(1, 3.0, 3.0, under_sxrun=True)))
    assert advance(tracker, wanted, jobs, {5: both}, {}, 0) == (SignalJob(5, "USR1"),)


def test_a_job_without_sxrun_that_tells_of_its_checkpoints_only_is_signalled_in_each_run() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT, restarts=1)}
    saved = fold(JobProgress(), [b'{"time_s": 2.0, "event": "checkpoint"}'], 10.0)
    assert advance(tracker, (Preemption(5, ""),), jobs, {5: saved}, {}, 0) == (SignalJob(5, "USR1"),)


def test_consent_that_is_taken_back_after_the_signal_counts() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    assert steps(tracker, 0, 5) == [SignalJob(5, "USR1")]
    no_more = {5: running(5, "n1", exploration=Exploration("s"))}
    assert advance(tracker, (), no_more, {5: JobProgress(checkpoint_s=15)}, {}, 20) == ()
    assert steps(tracker, 30, progress=JobProgress(checkpoint_s=15)) == []


def test_a_job_that_is_suspended_after_its_signal_is_not_requeued() -> None:
    """It cannot save, and Slurm would hold it in the queue."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    assert steps(tracker, 0, 5) == [SignalJob(5, "USR1")]
    assert advance(tracker, (), {5: running(5, "n1", exploration=CONSENT, is_spared=True)}, {}, {}, 20) == ()
    assert steps(tracker, 200) == []


def test_a_signal_that_was_not_sent_costs_nothing() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=1))
    signal = SignalJob(5, "USR1")
    assert steps(tracker, 0, 5) == [signal]
    tracker.answered([signal], [ChangeFailure(signal, "refused")])
    assert steps(tracker, 1, 5) == [signal]
    tracker.settle()
    assert steps(tracker, 2, 5) == [signal]
    tracker.answered([signal], ())
    tracker.settle()
    assert tracker.underway == {5}


def test_a_job_that_did_not_opt_in_is_never_touched() -> None:
    assert steps(PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10)), 0, 6) == []
    without_signal = {5: running(5, "n1", exploration=Exploration(sweep="digits", may_stop=True))}
    assert (
        advance(
            PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10)),
            (Preemption(5, ""),),
            without_signal,
            {},
            {},
            0,
        )
        == ()
    )


def test_a_job_that_has_finished_meanwhile_is_left_alone() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    steps(tracker, 0, 5)
    assert steps(tracker, 200, progress=JobProgress(checkpoint_s=5, ended=True)) == []
    steps(tracker, 200, 5)
    gone = advance(tracker, (), {5: replace(running(5, "n1"), state=JobState.PENDING)}, {}, {}, 900)
    assert gone == ()
    assert tracker.underway == frozenset()


def test_a_job_that_was_requeued_by_somebody_else_is_not_requeued_again() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    steps(tracker, 0, 5)
    runs_again = {5: running(5, "n1", exploration=CONSENT, restarts=1)}
    assert advance(tracker, (), runs_again, {}, {}, 900) == ()
    assert tracker.underway == frozenset()


def reports(*times_s: float) -> tuple[ProgressReport, ...]:
    return tuple(ProgressReport(time_s, restart=0, step=9, metric="loss", value=1.0) for time_s in times_s)


def requeued_and_forgotten(now_s: float, leaving: JobProgress = JobProgress(), **reported: object) -> list[object]:  # noqa: B008
    """What is done about job 5, requeued at 20 by us, when a slurmctld that forgot it says at 30 that it runs on.

    `leaving` is what it had told when it was seen to leave.
    """
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    steps(tracker, 0, 5)
    assert steps(tracker, 20, progress=JobProgress(checkpoint_s=15)) == [RequeueJob(5)]
    left = {5: replace(running(5, "n1", exploration=CONSENT, restarts=1), state=JobState.PENDING)}
    assert advance(tracker, (), left, {5: leaving}, {}, 22) == ()
    after = JobProgress(checkpoint_s=15, **reported)
    assert steps(tracker, 30, progress=after) == []
    return steps(tracker, now_s, progress=after)


def test_a_requeue_that_a_killed_slurmctld_has_forgotten_is_asked_for_again() -> None:
    """Its node has ended the job: by its time limit it would be lost."""
    assert requeued_and_forgotten(90) == []
    assert requeued_and_forgotten(122) == [RequeueJob(5)]


def test_a_job_that_trains_on_after_a_forgotten_requeue_is_left_alone() -> None:
    told = JobProgress(reports=reports(15.0))
    assert requeued_and_forgotten(122, told, reports=reports(15.0, 25.0)) == []
    assert requeued_and_forgotten(122, told, reports=reports(15.0)) == [RequeueJob(5)]
    assert requeued_and_forgotten(122, ended=True) == []


@pytest.mark.parametrize("ahead_s", [-50.0, 50.0])
def test_whether_a_job_trains_on_is_seen_by_its_own_nodes_clock(ahead_s: float) -> None:
    told = JobProgress(reports=reports(15.0 + ahead_s))
    assert requeued_and_forgotten(122, told, reports=reports(15.0 + ahead_s, 25.0 + ahead_s)) == []
    assert requeued_and_forgotten(122, told, reports=told.reports) == [RequeueJob(5)]


def test_the_hourly_budget_bounds_the_churn() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=1, max_per_hour=1))
    assert steps(tracker, 0, 5) == [SignalJob(5, "USR1")]
    advance(tracker, (), {}, {}, {}, 10)
    assert steps(tracker, 20, 5) == []
    assert steps(tracker, 3601, 5) == [SignalJob(5, "USR1")]


def test_all_that_leave_for_one_job_are_signalled_or_none() -> None:
    """One without the others would save in vain, as the job would not start."""
    running_jobs = {n: running(n, "n1", exploration=CONSENT) for n in (4, 5, 6, 8)}
    jobs = running_jobs | {7: job(7), 9: job(9)}
    wanted = [Preemption(gone, "", for_) for gone, for_ in ((4, None), (5, 7), (6, 7), (8, 9))]

    def signalled(tracker: PreemptionTracker, now_s: float, told: Mapping[int, JobProgress] | None = None) -> set[int]:
        changes = advance(tracker, wanted, jobs, told or {}, {}, now_s)
        return {change.job_id for change in changes if isinstance(change, SignalJob)}

    assert signalled(PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=4)), 0) == {4, 5, 6, 8}
    of_two = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=2))
    assert signalled(of_two, 0) == {4}  # 8 would use up what 5 and 6 wait for
    assert signalled(of_two, HOUR_S) == {5, 6}
    assert signalled(PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=1)), 0) == {4}
    jobs[7] = job(7, array_tasks=2)  # each of which starts by itself
    assert signalled(PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=2)), 0) == {4, 5}
    jobs[7] = job(7)
    earlier = ProgressReport(1.0, restart=-1, step=1, metric="loss", value=1.0)
    starting = {6: JobProgress(reports=(earlier,))}
    assert signalled(PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=9)), 0, starting) == {4, 8}


@pytest.mark.parametrize(("ends_s", "signals"), [(HOUR_S / 2, (SignalJob(4, "USR1"),)), (2 * HOUR_S, ())])
def test_before_its_time_limit_a_job_does_not_wait_for_the_budget_that_others_wait_for(
    ends_s: float, signals: tuple[SignalJob, ...]
) -> None:
    """Others that leave for their own good, as for another size, do: they could use up the budget for ever."""
    jobs = {n: running(n, "n1", exploration=CONSENT) for n in (5, 6, 8)} | {7: job(7)}
    jobs[4] = running(4, "n1", exploration=CONSENT, start_s=0.0, time_limit_s=ends_s)
    wanted = [Preemption(gone, "", for_) for gone, for_ in ((5, 7), (6, 7), (4, None))]
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=2))
    advance(tracker, [Preemption(8, "")], jobs, {}, {}, 0)
    assert advance(tracker, wanted, jobs, {}, {}, 10) == signals


def served(tracker: PreemptionTracker, now_s: float, beneficiary: Job | None, **reported: float) -> list[object]:
    """One pass; job 5 makes room for job 7, which is as given."""
    jobs = {5: running(5, "n1", exploration=CONSENT)} | ({7: beneficiary} if beneficiary else {})
    return list(advance(tracker, (Preemption(5, "", 7),), jobs, {5: JobProgress(**reported)}, {}, now_s))


@pytest.mark.parametrize("now", [None, running(7, "n2"), job(7, eligible=False)])
def test_a_job_is_not_requeued_when_nobody_would_gain_by_it_any_more(now: Job | None) -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    assert served(tracker, 0, job(7)) == [SignalJob(5, "USR1")]
    jobs = {5: running(5, "n1", exploration=CONSENT)} | ({7: now} if now else {})
    assert advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 10) == ()
    assert tracker.underway == frozenset()
    assert tracker.served_s == {}


def let_go() -> PreemptionTracker:
    """Job 5 was asked at second 0 and saved at 8; at 10 nobody needed its GPUs any more."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=1))
    assert served(tracker, 0, job(7)) == [SignalJob(5, "USR1")]
    jobs = {5: running(5, "n1", exploration=CONSENT)}
    assert advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=8)}, {}, 10) == ()
    return tracker


def test_a_job_that_was_let_go_and_is_asked_again_soon_need_not_save_again() -> None:
    changes = served(let_go(), 15, job(7), checkpoint_s=8)
    assert RequeueJob(5) in changes
    assert not any(isinstance(change, SignalJob) for change in changes)


def test_a_job_that_was_let_go_while_it_still_saves_is_not_signalled_twice() -> None:
    tracker = let_go()
    assert served(tracker, 20, job(7)) == []
    assert RequeueJob(5) in served(tracker, 25, job(7), checkpoint_s=24)


def test_a_job_that_was_let_go_and_has_worked_for_longer_than_it_takes_to_save_is_asked_anew() -> None:
    tracker = let_go()
    tracker.limits(PreemptionSection(grace_s=100, max_per_hour=2))
    assert served(tracker, 20, job(7), checkpoint_s=8) == [SignalJob(5, "USR1")]


def test_a_run_that_was_not_asked_owes_nothing_to_the_one_before() -> None:
    tracker = let_go()
    jobs = {5: running(5, "n1", exploration=CONSENT, restarts=1), 7: job(7)}
    tracker.limits(PreemptionSection(grace_s=100, max_per_hour=2))
    changes = advance(tracker, (Preemption(5, "", 7),), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 20)
    assert changes == (SignalJob(5, "USR1"),)


def test_who_comes_before_the_beneficiary_meanwhile_takes_its_place() -> None:
    """Strategies change their minds about near ranks; the victim must not save once more for that."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=1))
    served(tracker, NOW_S, job(7))
    jobs = {5: running(5, "n1", exploration=CONSENT), 7: job(7), 8: job(8)}
    note, requeue = advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=NOW_S + 5)}, {}, NOW_S + 10, {7: 8})
    assert requeue == RequeueJob(5)
    assert isinstance(note, SetAdminComment)
    assert [one.beneficiary for one in read(note.admin_comment, NOW_S, restarts=1).latest] == [8]
    assert tracker.served_s == {8: NOW_S + 10}


def test_for_whom_a_job_was_requeued_is_remembered_and_written_down() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    served(tracker, NOW_S, job(7))
    assert tracker.served_s == {}
    note, requeue = served(tracker, NOW_S + 10, job(7), checkpoint_s=NOW_S + 5)
    assert requeue == RequeueJob(5)
    assert tracker.served_s == {7: NOW_S + 10}
    assert isinstance(note, SetAdminComment)
    assert [one.beneficiary for one in read(note.admin_comment, NOW_S, restarts=1).latest] == [7]
    served(tracker, NOW_S + 20, running(7, "n1"))
    assert tracker.served_s == {}


@pytest.mark.parametrize(("victims", "still_first"), [((5,), {4}), ((5, 6), {4, 3})])
def test_an_array_comes_first_only_for_the_tasks_that_others_made_room_for(
    victims: tuple[int, ...], still_first: set[int]
) -> None:
    """Its other tasks would take what comes free of other users."""
    tracker, array = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10)), job(7, array_tasks=4)
    jobs = {7: array, **{job_id: running(job_id, "n1", exploration=CONSENT) for job_id in victims}}
    plan = [Preemption(job_id, "", 7) for job_id in victims]
    advance(tracker, plan, jobs, {}, {}, 0)
    advance(tracker, plan, jobs, dict.fromkeys(victims, JobProgress(checkpoint_s=5)), {}, 10)
    advance(tracker, (), {7: array}, {}, {}, 20)
    waiting = [slurm_job(7, gpus=1, gpus_per_node=1, array_job_id=7, array_tasks=left) for left in range(4, 0, -1)]
    assert {one.array_tasks for one in waiting if tracker.being_served({7: one}, 20, 60)} == still_first
    assert not tracker.being_served({7: waiting[0]}, 71, 60)


@pytest.mark.parametrize(
    "changed",
    [
        {"gpus": 64, "nodes": 16},
        {"gpus": 3, "gpus_per_node": None},
        {"partition": "big"},
        {"features": "h100"},
        {"gpu_type": "h100"},
        {"cpus": 128},
        {"memory_mib": 1_000_000},
        {"excluded_nodes": ("n1",)},
        {"qos": "urgent"},
        {"nice": -100},
        {"account": "rich"},
        {"required_nodes": ("n9",)},
        {"required_nodes": ("n9",), "admin_comment": "explsched-group:node=n1&since=5"},
        {"required_nodes": ("n9",), "admin_comment": "explsched-group:pause=99999999"},
        {"required_nodes": ("n9",), "admin_comment": "explsched-group:group=2&of=4"},
        {"exclusive": "NODE"},
        {"licenses": "matlab:1"},
        {"contiguous": True},
        {"scattered_gres": "nvme:1"},
        {"reservation": "course"},
        {"most_switches": 1},
    ],
)
def test_a_job_that_its_owner_changes_but_for_fewer_gpus_is_not_first_any_more(changed: dict[str, Any]) -> None:
    """It would take from others what nobody has left for it."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {7: job(7, 4), 5: running(5, "n1", 4, exploration=CONSENT)}
    advance(tracker, [Preemption(5, "", 7)], jobs, {}, {}, 0)
    advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 10)
    assert tracker.being_served({7: slurm_job(7)}, 20, 60) == {7}
    assert tracker.being_served({7: slurm_job(7, gpus=2, gpus_per_node=2)}, 20, 60) == {7}
    ours = slurm_job(
        7, reservation="explsched_7", required_nodes=("n1",), admin_comment="explsched-group:node=n1&since=5"
    )
    assert tracker.being_served({7: ours}, 20, 60) == {7}
    assert not tracker.being_served({7: slurm_job(7, **changed)}, 20, 60)


@pytest.mark.parametrize(
    "reason", ["QOSMaxGRESPerUser", "AssocGrpGRES", "QOSMaxJobsPerUserLimit", "AssocGrpJobsLimit", "JobArrayTaskLimit"]
)
def test_a_job_that_a_limit_keeps_waiting_is_not_first_any_more(reason: str) -> None:
    """Its site factor would be written in each pass, before all others', for a job that does not start."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {7: job(7, 4), 5: running(5, "n1", 4, exploration=CONSENT)}
    advance(tracker, [Preemption(5, "", 7)], jobs, {}, {}, 0)
    advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 10)
    assert tracker.being_served({7: slurm_job(7, reason="Resources")}, 20, 60) == {7}
    assert not tracker.being_served({7: slurm_job(7, reason=reason)}, 20, 60)


def test_a_job_that_asks_for_fewer_gpus_and_what_goes_with_them_stays_first() -> None:
    """With --cpus-per-gpu and --mem-per-gpu CPUs and memory follow; on fewer nodes they stay as they are on each."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    record = slurm_job(7, gpus=8, nodes=2, gpus_per_node=4, cpus_per_gpu=8, memory_mib=64_000)
    jobs = {7: job(7, 8), 5: running(5, "n1", 4, exploration=CONSENT)}
    records = {7: record, 5: slurm_job(5)}
    tracker.advance([Preemption(5, "", 7)], Look(jobs, records, {}, {}, 0))
    tracker.advance((), Look(jobs, records, {5: JobProgress(checkpoint_s=5)}, {}, 10))
    fewer = replace(record, gpus=4, gpus_per_node=2, memory_mib=32_000)
    for one in (fewer, replace(record, gpus=4, nodes=1, memory_mib=32_000)):
        assert tracker.being_served({7: one}, 20, 60) == {7}
    for one in (replace(fewer, memory_mib=65_000), replace(fewer, cpus=128), replace(fewer, features="h100")):
        assert not tracker.being_served({7: one}, 20, 60)


def test_a_job_that_was_out_of_reach_for_a_pass_is_not_first_any_more() -> None:
    """Its owner may have moved it to a partition that is not steered, and changed it there."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {7: job(7, 4), 5: running(5, "n1", 4, exploration=CONSENT)}
    advance(tracker, [Preemption(5, "", 7)], jobs, {}, {}, 0)
    advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 10)
    leaves = {5: replace(jobs[5], state=JobState.COMPLETING)}
    advance(tracker, (), leaves | {7: jobs[7]}, {}, {}, 20)
    assert tracker.being_served({7: slurm_job(7)}, 20, 60) == {7}
    advance(tracker, (), leaves, {}, {}, 30)
    advance(tracker, (), leaves | {7: job(7, 16)}, {}, {}, 40)
    assert not tracker.being_served({7: slurm_job(7, gpus=16, nodes=4)}, 40, 60)


def test_a_job_for_which_an_earlier_daemon_requeued_others_is_first_as_it_is_now(tmp_path: Path) -> None:
    budget, file = PreemptionSection(grace_s=100, max_per_hour=10), tmp_path / "underway.json"
    jobs = {7: job(7, 4), 5: running(5, "n1", 4, exploration=CONSENT)}
    earlier = PreemptionTracker(budget, file)
    advance(earlier, [Preemption(5, "", 7)], jobs, {}, {}, 0)
    earlier.answered(advance(earlier, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 10), ())
    earlier.settle()
    tracker = PreemptionTracker(budget, file)
    advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 20)
    assert tracker.being_served({7: slurm_job(7)}, 20, 60) == {7}
    assert not tracker.being_served({7: slurm_job(7, gpus=16, nodes=4)}, 20, 60)


def test_a_job_for_which_one_of_two_has_left_is_still_first() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {7: job(7), **{job_id: running(job_id, "n1", exploration=CONSENT) for job_id in (5, 6)}}
    plan = [Preemption(job_id, "", 7) for job_id in (5, 6)]
    advance(tracker, plan, jobs, {}, {}, 0)
    saved = dict.fromkeys((5, 6), JobProgress(checkpoint_s=5))
    for refused, first in ((5, {7}), (6, set())):
        changes = advance(tracker, (), jobs, saved, {}, 10)
        tracker.answered(changes, [ChangeFailure(RequeueJob(refused), "refused")])
        assert (tracker.being_served({}, 10, 60), tracker.served_s.keys()) == (first, first)
    assert tracker.requeue_refused == {5, 6}


def past(*times_s: float) -> PreemptionRecord:
    return PreemptionRecord(0.0, tuple(Interruption(i, time_s, 1, 0.0) for i, time_s in enumerate(times_s)))


def test_the_budgets_of_a_job_hold_in_an_hour_and_in_all() -> None:
    hourly = PreemptionSection(grace_s=1, max_per_hour=100, max_per_job_per_hour=2)
    assert steps(PreemptionTracker(hourly), NOW_S, 5, record=past(NOW_S - 4000, NOW_S - 10)) == [SignalJob(5, "USR1")]
    assert steps(PreemptionTracker(hourly), NOW_S, 5, record=past(NOW_S - 20, NOW_S - 10)) == []
    assert steps(PreemptionTracker(hourly), NOW_S + HOUR_S, 5, record=past(NOW_S - 20, NOW_S - 10)) != []
    in_all = PreemptionSection(grace_s=1, max_per_hour=100, max_per_job=3)
    assert steps(PreemptionTracker(in_all), NOW_S, 5, record=replace(past(1.0), older=1)) == [SignalJob(5, "USR1")]
    assert steps(PreemptionTracker(in_all), NOW_S, 5, record=replace(past(1.0), older=2)) == []


def test_a_new_daemon_remembers_what_the_last_one_spent() -> None:
    budget = PreemptionSection(grace_s=1, max_per_hour=2)
    assert steps(PreemptionTracker(budget), NOW_S, 5, record=past(NOW_S - 20, NOW_S - 10)) == []
    assert steps(PreemptionTracker(budget), NOW_S, 5, record=past(NOW_S - 4000, NOW_S - 10)) == [SignalJob(5, "USR1")]


def test_what_the_last_daemon_spent_counts_once() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=1, max_per_hour=2))
    for later_s in (0, 15, 30):
        steps(tracker, NOW_S + later_s, record=past(NOW_S - 10))
    assert steps(tracker, NOW_S + 45, 5, record=past(NOW_S - 10)) == [SignalJob(5, "USR1")]


def test_new_limits_hold_for_what_is_underway() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=1000, max_per_hour=10))
    steps(tracker, 0, 5)
    tracker.limits(PreemptionSection(grace_s=10, max_per_hour=10))
    assert steps(tracker, 20, 5) == [RequeueJob(5)]


def test_what_a_preemption_costs_is_written_down_once_before_the_requeue() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", gpus=4, ran_s=300.0, exploration=CONSENT)}
    advance(tracker, (Preemption(5, "job 7 waits"),), jobs, {}, {}, NOW_S)
    reported = {5: JobProgress(checkpoint_s=NOW_S + 20)}
    note, requeue = advance(tracker, (), jobs, reported, {}, NOW_S + 30)
    assert requeue == RequeueJob(5)
    assert isinstance(note, SetAdminComment)
    found = read(note.admin_comment, NOW_S + 30, restarts=1)
    assert found.latest == (Interruption(0, NOW_S + 30, 4, 4 * 10.0, "job 7 waits"),)
    assert found.submitted_s == jobs[5].submit_s
    assert read(note.admin_comment, NOW_S + 30, restarts=0).count == 0  # Slurm refused: nothing has happened
    assert advance(tracker, (), jobs, reported, {}, NOW_S + 31) == (RequeueJob(5),)


def test_without_a_checkpoint_of_its_own_the_whole_run_is_lost() -> None:
    job = running(5, "n1", gpus=2, ran_s=300.0)
    assert interruption(job, JobProgress(), "", NOW_S).lost_gpu_s == 600
    assert interruption(job, JobProgress(checkpoint_s=NOW_S - 1000), "", NOW_S).lost_gpu_s == 600
    assert interruption(job, JobProgress(checkpoint_s=NOW_S - 5), "", NOW_S).lost_gpu_s == 10
    later = ProgressReport(NOW_S + 2, restart=0, step=9, metric="loss", value=1.0)  # while the pass was looking
    assert interruption(job, JobProgress(reports=(later,), checkpoint_s=NOW_S + 1), "", NOW_S).lost_gpu_s == 2
    was_suspended = replace(job, suspended_s=200.0)
    assert interruption(was_suspended, JobProgress(), "", NOW_S).lost_gpu_s == 200
    on_shards = replace(job, part=GpuPart(request=0.5, limit=1.0, memory=0.25))
    assert interruption(on_shards, JobProgress(), "", NOW_S).lost_gpu_s == 150


interruptions = st.builds(
    Interruption,
    st.integers(0, 99),
    st.integers(1_600_000_000, 2_000_000_000).map(float),
    st.integers(0, 4096),
    st.integers(0, 10**9).map(float),
    st.text(max_size=300),
    st.none() | st.integers(1, 2**31),
)


@given(st.lists(interruptions, max_size=60, unique_by=lambda one: one.run), st.text(max_size=50))
def test_a_record_is_kept_by_an_admin_comment(listed: list[Interruption], others: str) -> None:
    record = read(others.replace("explsched", ""), 1_700_000_000.0, 100)
    for one in listed:
        record = record.plus(one)
    text = record.text()
    found = read(text, 1_800_000_000.0, 100)
    assert (found.count, found.lost_gpu_s) == (record.count, record.lost_gpu_s)
    assert found.submitted_s == 1_700_000_000
    assert found.others.split() == record.others.split()
    assert len(text) <= MOST_BYTES + 1 + len(record.others)
    assert [one.run for one in found.latest] == [one.run for one in listed][len(listed) - len(found.latest) :]
    assert [one.beneficiary for one in found.latest[-3:]] == [one.beneficiary for one in listed][
        -len(found.latest[-3:]) :
    ]
    if listed:
        told, reason = found.latest[-1].reason, listed[-1].reason
        assert told == reason or (len(told) <= 120 < len(reason) and told.endswith("..."))


def test_a_second_word_about_the_same_run_replaces_the_first() -> None:
    first, again = Interruption(0, 100.0, 4, 50.0, "once"), Interruption(0, 200.0, 4, 70.0, "again")
    record = PreemptionRecord(0.0).plus(first).plus(again)
    assert (record.count, record.lost_gpu_s, record.latest) == (1, 70.0, (again,))


def test_a_reason_that_is_too_long_for_the_record_ends_at_a_word_and_says_so() -> None:
    reason = "of those that are not sure to lead, it promises most per second by its " + "learning curve " * 10
    kept = read(PreemptionRecord(0.0).plus(Interruption(0, 5.0, 1, 0.0, reason)).text(), 0.0, 1).latest[0].reason
    assert len(kept) <= 120
    assert kept.endswith(("learning ...", "curve ..."))


def test_a_years_budget_is_still_listed() -> None:
    """The budget of an hour counts what is listed: as many as the configuration allows must find room."""
    record = PreemptionRecord(1_700_000_000.0)
    for run in range(40):
        record = record.plus(Interruption(run, 1_700_000_000.0 + run, 64, 123_456.0, "job 123456 waits " * 6))
    assert read(record.text(), 0.0, 100).since(0.0) >= 12


@pytest.mark.parametrize("query", ["", "since=x&n=0&lost=0", "since=1&n=0&lost=0&p=1,2"])
def test_a_word_that_is_no_record_is_named(query: str) -> None:
    with pytest.raises(RecordError, match="is not a record of preemptions"):
        read(f"other explsched-preemption:{query}", 0.0, 0)


def test_a_victim_is_left_alone_when_its_beneficiary_would_no_longer_start() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT), 7: job(7)}
    assert advance(tracker, (Preemption(5, "", 7),), jobs, {}, {}, 0) == (SignalJob(5, "USR1"),)
    assert tracker.victims == {7: {5}}
    assert advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 10, {7: None}) == ()
    assert (tracker.underway, tracker.victims) == (frozenset(), {})


def test_room_for_another_is_made_after_priorities_are_computed_anew() -> None:
    """Fair share may put somebody else first at that moment, who would get the GPUs."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT), 7: job(7)}
    saved = {5: JobProgress(checkpoint_s=5)}
    advance(tracker, (Preemption(5, "", 7),), jobs, {}, {}, 0)
    assert advance(tracker, (), jobs, saved, {}, 10, clear_from_s=30) == ()
    assert not tracker.is_any_ready(saved, 29)  # the daemon does not wake for it
    assert RequeueJob(5) in advance(tracker, (), jobs, saved, {}, 30, clear_from_s=30)


def test_who_makes_room_for_nobody_in_particular_waits_for_no_priorities() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT)}
    advance(tracker, (Preemption(5, ""),), jobs, {}, {}, 0)
    assert RequeueJob(5) in advance(tracker, (), jobs, {5: JobProgress(checkpoint_s=5)}, {}, 10, clear_from_s=30)


def test_victims_of_one_job_go_together_when_the_last_has_saved() -> None:
    """What the first leaves would be another job's before the last has gone."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT), 6: running(6, "n1", exploration=CONSENT), 7: job(7)}
    jobs |= {8: running(8, "n2", exploration=CONSENT), 9: job(9)}
    advance(tracker, [Preemption(gone, "", for_) for gone, for_ in ((5, 7), (6, 7), (8, 9))], jobs, {}, {}, 0)
    saved = {5: JobProgress(checkpoint_s=5), 8: JobProgress(checkpoint_s=5)}
    changes = advance(tracker, (), jobs, saved, {}, 10)
    assert [change for change in changes if isinstance(change, RequeueJob)] == [RequeueJob(8)]
    assert tracker.ready_for(saved, 20) == {}
    both = saved | {6: JobProgress(checkpoint_s=15)}
    assert tracker.ready_for(both, 20) == {7: {5, 6}}
    changes = advance(tracker, (), jobs, both, {}, 20)
    assert {5, 6} <= {change.job_id for change in changes if isinstance(change, RequeueJob)}


def test_victims_of_one_job_stay_together_when_slurm_does_not_take_the_record_of_one() -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT), 6: running(6, "n1", exploration=CONSENT), 7: job(7)}
    jobs |= {8: running(8, "n2", exploration=CONSENT), 9: job(9)}
    advance(tracker, [Preemption(gone, "", for_) for gone, for_ in ((5, 7), (6, 7), (8, 9))], jobs, {}, {}, 0)
    changes = advance(tracker, (), jobs, {}, {}, 100)
    (record,) = (change for change in changes if isinstance(change, SetAdminComment) and change.job_id == 5)
    assert tracker.keep_unrecorded([NotNow(record, "not now")], 100) == {5, 6}
    repeated = advance(tracker, (), jobs, {}, {}, 110, closed=frozenset({5}))
    assert repeated == (RequeueJob(8),)
    assert {RequeueJob(5), RequeueJob(6), record} <= set(advance(tracker, (), jobs, {}, {}, 100))


@pytest.mark.parametrize("closed", [5, 7])
def test_a_job_that_slurm_does_not_update_for_now_is_not_signalled_nor_is_one_for_it(closed: int) -> None:
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT), 7: job(7)}
    assert advance(tracker, [Preemption(5, "", 7)], jobs, {}, {}, 0, closed=frozenset({closed})) == ()
    assert advance(tracker, [Preemption(5, "", 7)], jobs, {}, {}, 15) == (SignalJob(5, "USR1"),)


@pytest.mark.parametrize(
    ("sizes", "saved", "left_for"),
    [
        ((1, 1), (6,), {6: 8, 5: 9}),
        ((1, 1), (5, 6), {5: 8, 6: 9}),
        ((1, 1), (), {5: 8, 6: 9}),
        ((1, 2), (6,), {5: 8, 6: 9}),
    ],
)
def test_who_has_saved_first_leaves_for_the_first_in_the_queue(
    sizes: tuple[int, int], saved: tuple[int, ...], left_for: dict[int, int]
) -> None:
    """The other's GPU would go to it anyway, and who had saved would have to wait."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {n: running(n, "n1", gpus, exploration=CONSENT) for n, gpus in zip((5, 6), sizes, strict=True)}
    jobs |= {8: job(8), 9: job(9)}
    advance(tracker, (Preemption(5, "", 8), Preemption(6, "", 9)), jobs, {}, {}, 0)
    tracker.serve_in_order((8, 9), Look(jobs, {}, {n: JobProgress(checkpoint_s=5) for n in saved}, {}, 10))
    assert tracker.beneficiaries == left_for
    tracker.serve_in_order((), Look({}, {}, {}, {}, 10))  # some may have ended, or are out of reach
    assert tracker.beneficiaries == left_for


def leaving_together(saved: Mapping[int, JobProgress]) -> tuple[PreemptionTracker, Mapping[int, Job], set[Change]]:
    """At 0 jobs 5 and 6 were asked to leave for job 7; the requeues at 300, when nobody had looked since 15."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {n: running(n, "n1", exploration=CONSENT) for n in (5, 6)} | {7: job(7)}
    for now_s in (0, 15):
        advance(tracker, [Preemption(5, "", 7), Preemption(6, "", 7)], jobs, {}, {}, now_s, interval_s=15)
    late = advance(tracker, [Preemption(5, "", 7), Preemption(6, "", 7)], jobs, saved, {}, 300, interval_s=15)
    return tracker, jobs, set(late)


def test_a_daemon_that_was_stopped_for_minutes_asks_again_before_it_requeues() -> None:
    """All work since the checkpoint would be lost."""
    old = dict.fromkeys((5, 6), JobProgress(checkpoint_s=10))
    tracker, jobs, changes = leaving_together(old)
    assert changes == {SignalJob(5, "USR1"), SignalJob(6, "USR1")}
    again = advance(tracker, (), jobs, old, {}, 400, interval_s=15)  # by then both have had their grace period
    assert {RequeueJob(5), RequeueJob(6)} <= set(again)


def test_after_a_stop_who_has_just_saved_does_not_leave_before_who_has_not() -> None:
    recently = {5: JobProgress(checkpoint_s=10), 6: JobProgress(checkpoint_s=290)}
    assert leaving_together(recently)[2] == {SignalJob(5, "USR1"), SignalJob(6, "USR1")}


@pytest.mark.parametrize(
    ("times_s", "interval_s", "clear_from_s"),
    [
        (range(0, 601, 15), 15, 600),
        ((0, 60, 120, 180, 240.01, 300.03, 360), 60, 350),
        ((0, 300, 600.3, 900.9), 300, 610),
        ((0, 101, 221, 341), 120, 230),  # the second as soon as the grace period is over
        ((0, 300), 300, 0),
    ],
)
def test_a_preemption_that_waits_on_purpose_is_not_late(
    times_s: Sequence[float], interval_s: float, clear_from_s: float
) -> None:
    """It would ask the job again, in the worst case in each pass, for ever."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT), 7: job(7)}
    wanted, times = [Preemption(5, "", 7)], {"clear_from_s": clear_from_s, "interval_s": interval_s}
    changes = [advance(tracker, wanted, jobs, {}, {}, now_s, **times) for now_s in times_s]
    assert changes[0] == (SignalJob(5, "USR1"),)
    assert not any(changes[1:-1])
    assert RequeueJob(5) in changes[-1]


def test_passes_that_were_far_apart_until_now_requeue_what_they_have_asked() -> None:
    """As when slurmctld is no longer busy."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {5: running(5, "n1", exploration=CONSENT), 7: job(7)}
    for now_s, interval_s in ((0, 300), (300, 300), (600, 15)):
        changes = advance(tracker, [Preemption(5, "", 7)] if now_s else (), jobs, {}, {}, now_s, interval_s=interval_s)
    assert RequeueJob(5) in changes


def test_who_was_asked_later_for_the_same_job_does_not_leave_without_who_is_asked_again() -> None:
    """Its GPUs alone are too few, and would be another job's before the rest are free."""
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10))
    jobs = {n: running(n, "n1", exploration=CONSENT) for n in (5, 6)} | {7: job(7)}
    first, both = [Preemption(5, "", 7)], [Preemption(5, "", 7), Preemption(6, "", 7)]
    for now_s, wanted in ((0, first), (90, both)):
        advance(tracker, wanted, jobs, {}, {}, now_s)
    assert set(advance(tracker, both, jobs, {}, {}, 260, interval_s=15)) == {SignalJob(5, "USR1"), SignalJob(6, "USR1")}


def test_a_requeue_is_repeated_until_the_job_has_left_but_not_by_a_later_daemon(tmp_path: Path) -> None:
    file = tmp_path / "underway.json"
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10), file)
    jobs = {n: running(n, "n1", exploration=CONSENT) for n in (5, 6)} | {7: job(7)}
    first, both = [Preemption(5, "", 7)], [Preemption(5, "", 7), Preemption(6, "", 7)]
    for now_s, wanted in ((0, first), (90, first), (100, both)):
        tracker.answered(advance(tracker, wanted, jobs, {}, {}, now_s), ())
    tracker.settle()
    changes = advance(tracker, both, jobs, {}, {}, 199, interval_s=15)
    assert changes == (RequeueJob(5),)  # and the other has its grace period
    later = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10), file)
    assert set(advance(later, first, jobs, {}, {}, 400, interval_s=15)) == {SignalJob(5, "USR1")}


def test_the_file_of_preemptions_is_as_in_earlier_releases(tmp_path: Path) -> None:
    """It outlives an upgrade: a requeue that was sent must not count as one that is due, or the other way round."""
    file = tmp_path / "preemptions.json"
    sent = '{"signalled_s":5.0,"restarts":0,"checkpoint_before_s":null,"reason":"r","beneficiary":7,"noted":true'
    due = '{"signalled_s":9.0,"restarts":1,"checkpoint_before_s":2.5,"reason":"r","beneficiary":8,"noted":false'
    since = '"record":null,"held_gpus":0.0,"nodes":[]'
    written = f'{{"5":{sent},"postponed_s":null}},"6":{due},"postponed_s":15.0}}}}'
    file.write_text(written)
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10), file)
    assert (tracker.underway, tracker.victims) == ({5, 6}, {8: {6}})
    tracker.leave_alone({5})
    tracker.settle()
    assert file.read_text() == f'{{"6":{due},"postponed_s":15.0,{since}}}}}'


def test_what_could_not_be_saved_is_saved_in_the_next_pass(tmp_path: Path) -> None:
    file = tmp_path / "later" / "underway.json"
    tracker = PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10), file)
    assert steps(tracker, 0, 5) == [SignalJob(5, "USR1")]
    tracker.answered([SignalJob(5, "USR1")], ())
    tracker.settle()
    file.parent.mkdir()
    tracker.settle()
    assert PreemptionTracker(PreemptionSection(grace_s=100, max_per_hour=10), file).underway == {5}
