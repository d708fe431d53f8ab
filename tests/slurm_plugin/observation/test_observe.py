"""What the daemon makes of Slurm's records."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from explsched.preemption_record import Interruption, PreemptionRecord
from sched_policy import catalog
from sched_policy.model import Elastic, Job, StageProfile
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmNode, SlurmReservation
from slurm_plugin.config import Config, PreemptionSection, SlurmSection
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.trainings import SeenTraining
from tests.slurm_kit import record

NOW_S = 10_000.0
ONCE = "explsched-preemption:since=50&n=0&lost=0&p=0,9000,4,120,because"


def seen(tmp_path: Path, *records: SlurmJob, preemption: PreemptionSection | None = None) -> Observation:
    config = Config(preemption=preemption or PreemptionSection())
    return observe(ClusterRecords((), records, ()), ProgressSpool(tmp_path), NOW_S, config)


def job_of(tmp_path: Path, preemption: PreemptionSection | None = None, **fields: Any) -> Job:
    (job,) = seen(tmp_path, record(5, **{"submit_s": 9000.0, **fields}), preemption=preemption).snapshot.jobs
    return job


def test_a_preempted_job_is_dated_to_its_first_submission(tmp_path: Path) -> None:
    assert job_of(tmp_path, admin_comment=ONCE, restarts=1).submit_s == 50.0
    assert job_of(tmp_path).submit_s == 9000.0
    assert job_of(tmp_path, admin_comment="JS1:abc explsched-preemption:nonsense").submit_s == 9000.0


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED"])
def test_time_for_which_a_job_was_suspended_moves_its_end_and_is_no_run_time(tmp_path: Path, state: str) -> None:
    held = {"state": state, "start_s": NOW_S - 3000, "time_limit_s": 3600.0, "gpu_nodes": (("n1", 4),)}
    job = job_of(tmp_path, suspended_s=1000.0, **held)
    assert (job.executed_s(NOW_S), job.end_s(NOW_S)) == (2000.0, NOW_S + 1600)
    columns = seen(tmp_path, record(5, suspended_s=1000.0, **held)).snapshot.columns
    assert (columns.executed_s.tolist(), columns.end_s.tolist()) == ([2000.0], [NOW_S + 1600])


@pytest.mark.parametrize(("restarts", "steps"), [(0, [5]), (1, [900, 5])])
def test_reports_from_before_its_submission_are_a_former_jobs(tmp_path: Path, restarts: int, steps: list[int]) -> None:
    """A slurmctld that was installed anew gives ids out again. A requeued job may have reported before, too."""
    own = {"restart": restarts, "metric": "loss", "value": 1.0}
    old_s, new_s = NOW_S - 5000, NOW_S - 100
    former = [{**own, "time_s": old_s, "restart": 0, "step": 900}, {"time_s": old_s + 60, "event": "end", "status": 1}]
    path = tmp_path / "5.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in (*former, {**own, "time_s": new_s, "step": 5})))
    mine = {"uid": os.geteuid(), "state": "RUNNING", "start_s": NOW_S - 200, "gpu_nodes": (("n1", 4),)}
    found = seen(tmp_path, record(5, submit_s=NOW_S - 1000, restarts=restarts, **mine)).progress[5]
    assert [report.step for report in found.reports] == steps
    assert (found.malformed, found.runs[-1].start_s) == (0, new_s)
    assert (found.ended, found.exit_status) == (False, None)


@pytest.mark.parametrize(
    ("note", "steps"),
    [
        ("since=9000&n=0&lost=0&p=0,9100,4,0,why", [3, 4]),
        ("since=9000&n=1&lost=0&p=1,9100,4,0,why", [3, 4]),
        ("since=9000&n=0&lost=0&p=1,9100,4,0,why", [1, 2, 3, 4]),  # somebody else had requeued its first run
        ("since=9000&n=0&lost=0", [1, 2, 3, 4]),
        ("since=nonsense", [1, 2, 3, 4]),
    ],
)
def test_of_a_preempted_job_its_record_tells_what_a_former_job_reported(
    tmp_path: Path, note: str, steps: list[int]
) -> None:
    times_s = ((0, 5000.0), (1, 6000.0), (1, 9150.0), (2, 9950.0))
    lines = [{"time_s": time_s, "restart": run, "step": n, "value": 1.0} for n, (run, time_s) in enumerate(times_s, 1)]
    (tmp_path / "5.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    job = record(5, uid=os.geteuid(), submit_s=9900.0, restarts=2, admin_comment=f"explsched-preemption:{note}")
    assert [report.step for report in seen(tmp_path, job).progress[5].reports] == steps


def test_the_account_of_a_job_is_there_for_those_who_show_it(tmp_path: Path) -> None:
    found = seen(tmp_path, record(5, admin_comment=f"JS1:abc {ONCE}", restarts=1), record(6)).preempted
    assert set(found) == {5}
    assert (found[5].count, found[5].lost_gpu_s, found[5].others) == (1, 120.0, "JS1:abc")


DAYS_S = 86_400.0


@pytest.mark.parametrize("admin_comment", ["", "explsched-preemption:since=50&n=0&lost=0&p=0,60,4,0,job 7 waits"])
@pytest.mark.parametrize("eligible_s", [None, NOW_S, NOW_S + 60.0])
def test_time_in_which_its_owner_holds_a_requeued_job_does_not_make_it_overdue(
    tmp_path: Path, admin_comment: str, eligible_s: float | None
) -> None:
    held = record(5, submit_s=NOW_S - 5 * DAYS_S, restarts=1, eligible_s=eligible_s, admin_comment=admin_comment)
    assert not seen(tmp_path, held).snapshot.jobs[0].is_overdue


def test_what_a_job_waited_before_it_was_preempted_counts(tmp_path: Path) -> None:
    """By Slurm's times alone: what it has reported, or removed since, makes no difference."""
    came_s, began_s = NOW_S - 4 * DAYS_S, NOW_S - 2 * DAYS_S
    ran: dict[str, Any] = {"state": "RUNNING", "submit_s": came_s, "eligible_s": came_s, "start_s": began_s}
    first = record(5, comment="explsched:checkpoint=USR1", **ran)
    preemption = Interruption(0, NOW_S - 1.5 * DAYS_S, 4, 0.0, "job 7 waits")
    note = seen(tmp_path, first).preempted[5].plus(preemption).text()
    for after_s, is_overdue in ((0.9 * DAYS_S, False), (1.1 * DAYS_S, True)):
        submit_s = NOW_S - after_s
        again = record(5, restarts=1, submit_s=submit_s, eligible_s=submit_s, admin_comment=note)
        assert seen(tmp_path, again).snapshot.jobs[0].is_overdue == is_overdue
    refused = replace(first, admin_comment=note)  # Slurm has not requeued it: its wait is noted once more
    assert seen(tmp_path, refused).preempted[5].plus(preemption).text() == note


@pytest.mark.parametrize("ours", ["explsched-preemption:since=50&n=1&lost=0", "explsched-preemption:nonsense"])
@pytest.mark.parametrize("others", ['{"note": "two  blanks\n\tand a tab"}', "JS1:abc"])
def test_a_preemption_leaves_what_others_wrote_as_it_is(tmp_path: Path, ours: str, others: str) -> None:
    again = record(5, admin_comment=f"{others} {ours} after", state="RUNNING", comment="explsched:checkpoint=USR1")
    written = seen(tmp_path, again).preempted[5].plus(Interruption(0, NOW_S, 4, 0.0)).text()
    assert written.startswith(f"{others} after explsched-preemption:since=")


def test_a_job_whose_budget_is_used_up_is_spared(tmp_path: Path) -> None:
    spent, left = (PreemptionSection(max_per_job_per_hour=most) for most in (1, 2))
    allowed = "explsched:checkpoint=USR1"
    for preemption, is_preemptible in ((spent, False), (left, True)):
        job = job_of(tmp_path, preemption, comment=allowed, admin_comment=ONCE, restarts=1)
        assert (job.allows_preemption, job.is_preemptible) == (True, is_preemptible)


def test_a_job_that_slurm_would_not_requeue_does_not_consent(tmp_path: Path) -> None:
    """Whatever its comment says: the owner may have changed either since it was submitted."""
    job = job_of(tmp_path, comment="explsched:checkpoint=USR1", requeues=False, state="RUNNING")
    assert (job.allows_preemption, job.is_preemptible) == (False, False)


def test_a_component_of_a_heterogeneous_job_is_spared(tmp_path: Path) -> None:
    """Slurm requeues all of them together, those that did not consent, too."""
    job = job_of(tmp_path, comment="explsched:checkpoint=USR1", het_job_id=5, state="RUNNING")
    assert (job.allows_preemption, job.is_preemptible) == (True, False)


def test_a_heterogeneous_job_is_one_training(tmp_path: Path) -> None:
    """All components have its comment, and the first one's id is the one that it reports by."""
    told = {"comment": "explsched:sweep=s&checkpoint=USR1&job-class=opportunistic", "het_job_id": 5, "state": "RUNNING"}
    first, second = seen(tmp_path, record(5, **told), record(6, **told)).snapshot.jobs
    assert first.exploration is not None and first.exploration.sweep == "s"
    assert second.exploration is None
    assert not first.guaranteed and not second.guaranteed


@pytest.mark.parametrize("state", ["SUSPENDED", "STOPPED", "CONFIGURING"])
def test_a_job_that_no_signal_reaches_is_spared(tmp_path: Path, state: str) -> None:
    job = job_of(tmp_path, comment="explsched:checkpoint=USR1", state=state)
    assert (job.holds_gpus, job.is_preemptible) == (True, False)


@pytest.mark.parametrize(
    ("ended_by_slurm", "victims"),
    [
        ({}, [2]),
        ({"preempted": True}, []),
        ({"preempted": True, "suspended_s": 30.0}, [2]),  # with PreemptMode=SUSPEND it keeps its GPUs, and goes on
        ({"preempted": True, "state": "SUSPENDED"}, [2]),
    ],
    ids=str,
)
def test_nobody_leaves_for_a_job_for_which_slurm_ends_another_one(
    tmp_path: Path, ended_by_slurm: dict[str, Any], victims: list[int]
) -> None:
    """A GraceTime may be many passes long."""
    held = {"state": "RUNNING", "start_s": 1.0, "time_limit_s": 90_000.0, "gpus": 4, "gpus_per_node": 4}
    low = record(1, **{**held, "gpu_nodes": (("n1", 4),), "node_names": ("n1",), **ended_by_slurm})
    own = {"gpu_nodes": (("n2", 4),), "node_names": ("n2",), "comment": "explsched:checkpoint=USR1"}
    waits = record(3, reason="Resources", natives=(100,), time_limit_s=60.0, gpus=4, gpus_per_node=4)
    nodes = tuple(SlurmNode(name, "ALLOCATED", 4, frozenset({"main"})) for name in ("n1", "n2"))
    records = ClusterRecords(nodes, (low, record(2, **held, **own), waits), ())
    plan = catalog.build("srsf").plan(observe(records, ProgressSpool(tmp_path), NOW_S).snapshot)
    assert [preemption.job_id for preemption in plan.preemptions] == victims


def test_a_job_that_has_reported_its_end_is_spared_until_its_script_begins_another_command(tmp_path: Path) -> None:
    """What it has learned counts in its sweep all the same."""
    lines: list[dict[str, Any]] = [{"event": "start"}, {"step": 5, "metric": "loss", "value": 1.0}, {"event": "end"}]
    mine = {"uid": os.geteuid(), "state": "RUNNING", "comment": "explsched:sweep=digits&checkpoint=USR1"}
    for is_preemptible in (False, True):
        text = "".join(f"{json.dumps({'time_s': NOW_S - 100, **line})}\n" for line in lines)
        (tmp_path / "5.jsonl").write_text(text)
        lines.append({"event": "start"})
        job = job_of(tmp_path, **mine)
        assert (job.allows_preemption, job.is_preemptible, len(job.points)) == (True, is_preemptible, 1)


def test_a_job_whose_script_the_signal_would_kill_is_spared_while_it_runs(tmp_path: Path) -> None:
    """Its sxrun has said so at its start."""
    (tmp_path / "5.jsonl").write_text(json.dumps({"time_s": NOW_S - 100, "event": "start", "script_dies": True}) + "\n")
    mine = {"uid": os.geteuid(), "comment": "explsched:checkpoint=USR1"}
    assert not job_of(tmp_path, state="RUNNING", **mine).is_preemptible
    why = seen(tmp_path, record(5, submit_s=9000.0, state="RUNNING", **mine)).spares[5]
    assert why == "the signal would kill its script, which waits instead of ending with exec sxrun"
    assert job_of(tmp_path, state="PENDING", **mine).is_preemptible


@pytest.mark.parametrize("status", [{}, {"status": 0}])
def test_a_job_that_waits_to_run_again_is_not_spared_for_the_end_of_its_former_run(
    tmp_path: Path, status: dict[str, int]
) -> None:
    """As torchrun's at a requeue, which ends by itself when it is told to."""
    (tmp_path / "5.jsonl").write_text(json.dumps({"time_s": NOW_S - 100, "event": "end", **status}) + "\n")
    mine = {"uid": os.geteuid(), "comment": "explsched:checkpoint=USR1", "restarts": 1}
    assert job_of(tmp_path, state="PENDING", **mine).is_preemptible


def test_a_job_with_a_deadline_is_spared(tmp_path: Path) -> None:
    """Its next run would need its whole time limit again, after a wait of unknown length."""
    job = job_of(tmp_path, comment="explsched:checkpoint=USR1", state="RUNNING", deadline_s=NOW_S + 1e6)
    assert (job.allows_preemption, job.is_preemptible) == (True, False)


def test_where_users_cpus_are_limited_no_job_gets_other_nodes(tmp_path: Path) -> None:
    """Slurm would no longer count it for any limit on CPUs, however small we make it."""
    by_nodes, on_one = (
        record(5, comment="explsched:elastic=4-16/4", nodes=2),
        record(6, comment="explsched:elastic=1-8"),
    )
    seen = observe(ClusterRecords((), (by_nodes, on_one), (), limits_cpus=True), ProgressSpool(tmp_path), NOW_S)
    assert [job.elastic for job in seen.snapshot.jobs] == [None, Elastic(1, 8)]


def test_only_what_slurm_can_resize_is_elastic(tmp_path: Path) -> None:
    on_one, by_nodes = "explsched:elastic=1-8", "explsched:elastic=4-16/4"
    assert job_of(tmp_path, comment=on_one).elastic == Elastic(1, 8)
    assert job_of(tmp_path, comment=by_nodes, nodes=2).elastic == Elastic(4, 16, 4)
    assert job_of(tmp_path, comment=on_one, nodes=2).elastic is None
    assert job_of(tmp_path, comment=by_nodes, gpus_per_node=2).elastic is None
    assert job_of(tmp_path, comment=on_one, gpus_per_node=None).elastic is None
    assert job_of(tmp_path, comment=on_one, array_tasks=3).elastic is None
    assert job_of(tmp_path, comment=on_one, scattered_gpus=True).elastic is None
    assert job_of(tmp_path, comment="").elastic is None


def test_a_requeued_job_that_consents_is_planned_while_slurm_delays_it(tmp_path: Path) -> None:
    ended_by_daemon = PreemptionRecord(0.0).plus(Interruption(0, NOW_S - 21, 4, 0.0, "")).text()
    delayed = {"restarts": 1, "submit_s": NOW_S - 21, "eligible_s": NOW_S + 100, "admin_comment": ended_by_daemon}
    allowed = "explsched:checkpoint=USR1"
    assert job_of(tmp_path, comment=allowed, **delayed).eligible
    assert not job_of(tmp_path, comment="", **delayed).eligible
    assert not job_of(tmp_path, comment=allowed, eligible_s=NOW_S + 100).eligible  # its own --begin
    assert not job_of(tmp_path, comment=allowed, restarts=1, eligible_s=NOW_S + 7200).eligible  # delayed by its owner
    assert not job_of(tmp_path, comment=allowed, reason="JobHeldUser", **delayed).eligible
    assert not job_of(tmp_path, comment=allowed, **{**delayed, "admin_comment": ""}).eligible  # it has failed at once


def test_jobs_of_other_partitions_are_seen_as_long_as_they_hold_gpus(tmp_path: Path) -> None:
    records = (
        record(1, partition="debug"),
        record(2, partition="debug", state="RUNNING"),
        record(3, partition="main"),
        record(4, partition="debug", state="SUSPENDED"),
        record(5, partition="debug", state="COMPLETED"),
    )
    spool = ProgressSpool(tmp_path)
    some = observe(ClusterRecords((), records, ()), spool, NOW_S, Config(slurm=SlurmSection(partitions=("main",))))
    assert {job.job_id for job in some.snapshot.jobs} == {2, 3, 4}
    assert {job.job_id for job in some.snapshot.running} == {2, 4}
    every = observe(ClusterRecords((), records, ()), spool, NOW_S)
    assert {job.job_id for job in every.snapshot.jobs} == {1, 2, 3, 4}


def test_a_job_in_several_partitions_is_ordered_where_all_of_them_are_named(tmp_path: Path) -> None:
    """A site factor counts in each of its partitions, so also in one that is to be left alone."""
    both = record(1, partition="main,long")

    def is_ours(*named: str) -> bool:
        config = Config(slurm=SlurmSection(partitions=named))
        return bool(observe(ClusterRecords((), (both,), ()), ProgressSpool(tmp_path), NOW_S, config).snapshot.jobs)

    assert is_ours("long", "main")
    assert is_ours()
    assert not is_ours("main")


def test_others_make_room_only_for_a_job_that_would_start(tmp_path: Path) -> None:
    for reason, eligible, may_displace in (
        ("Resources", True, True),
        ("None", True, False),
        ("PartitionTimeLimit", False, False),
        ("ReqNodeNotAvail, Reserved for maintenance", False, False),
    ):
        job = job_of(tmp_path, reason=reason)
        assert (job.eligible, job.may_displace) == (eligible, may_displace), reason
    served = Remembered(served_s={5: NOW_S - 60})
    records = ClusterRecords((), (record(5, submit_s=9000.0), record(6)), ())
    found = observe(records, ProgressSpool(tmp_path), NOW_S, remembered=served).snapshot.jobs
    assert {job.job_id: (job.eligible, job.may_displace) for job in found} == {5: (True, False), 6: (True, True)}


def test_the_files_of_running_jobs_are_read_before_those_of_waiting_and_ended_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a daemon's start a large search was steered without its running trainings' reports, for up to an hour."""
    text = json.dumps({"time_s": 9000.0, "step": 1, "metric": "loss", "value": 2.0}) + "\n"
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_USER", len(text))
    for job_id in (1, 2, 3):
        (tmp_path / f"{job_id}.jsonl").write_text(text)
    of_sweep = {"comment": "explsched:sweep=s", "uid": os.geteuid()}
    alone = ClusterRecords((), (record(1, **of_sweep),), ())
    (ended,) = observe(alone, ProgressSpool(tmp_path / "none"), NOW_S).snapshot.jobs
    known = Remembered(trainings={1: SeenTraining(ended, os.geteuid(), NOW_S)})
    jobs = tuple(record(job_id, state=state, **of_sweep) for job_id, state in ((2, "PENDING"), (3, "RUNNING")))
    spool = ProgressSpool(tmp_path)
    passes = [observe(ClusterRecords((), jobs, ()), spool, NOW_S, remembered=known) for _ in range(3)]
    assert [sorted(one.progress) for one in passes] == [[3], [2, 3], [1, 2, 3]]


def test_what_a_user_has_had_in_silence_is_known_to_the_policy(tmp_path: Path) -> None:
    records = ClusterRecords((), (record(5), record(6, user="eve")), ())
    found = observe(records, ProgressSpool(tmp_path), NOW_S, remembered=Remembered(unreported_s={"eve": 50.0}))
    assert {job.user: job.user_silent_s for job in found.snapshot.jobs} == {"ada": 0.0, "eve": 50.0}


def test_what_only_our_leases_keep_from_starting_has_a_place_in_the_plan(tmp_path: Path) -> None:
    def is_planned(*names: str) -> bool:
        reserved = tuple(SlurmReservation(name, NOW_S, NOW_S + 120, ("n1",), (), frozenset()) for name in names)
        waits = record(5, reason="ReqNodeNotAvail, Reserved for maintenance")
        (job,) = observe(ClusterRecords((), (waits,), reserved), ProgressSpool(tmp_path), NOW_S).snapshot.jobs
        return job.eligible

    assert is_planned("explsched_6")
    assert not is_planned("explsched_6", "maintenance")
    assert not is_planned()


def test_jobs_without_gpus_are_none_of_ours(tmp_path: Path) -> None:
    no_gpus = {"gpus": 0, "gpus_per_node": None}
    records = (
        record(1, **no_gpus),
        record(2, state="RUNNING", comment="explsched:checkpoint=USR1&early-stop=1", **no_gpus),
        record(3, shards_per_node=1, **no_gpus),
        record(4),
    )
    node = SlurmNode("n1", "IDLE", 4, frozenset({"main"}), shards=8)
    found = observe(ClusterRecords((node,), records, ()), ProgressSpool(tmp_path), NOW_S)
    assert {job.job_id for job in found.snapshot.jobs} == {3, 4}
    without_shards = observe(ClusterRecords((), records, ()), ProgressSpool(tmp_path), NOW_S)
    assert {job.job_id for job in without_shards.snapshot.jobs} == {4}
    assert set(found.jobs) == {1, 2, 3, 4}


def test_who_was_asked_to_make_room_is_known_to_the_policy(tmp_path: Path) -> None:
    records = (record(1, state="RUNNING"), record(2, state="RUNNING"))
    found = observe(
        ClusterRecords((), records, ()), ProgressSpool(tmp_path), NOW_S, remembered=Remembered(frozenset({2}))
    )
    assert {job.job_id: job.asked_to_leave for job in found.snapshot.jobs} == {1: False, 2: True}


def test_the_start_that_slurm_expects_is_no_start(tmp_path: Path) -> None:
    assert job_of(tmp_path, start_s=NOW_S + 500).start_s is None


def test_a_requeued_job_waits_since_its_last_run(tmp_path: Path) -> None:
    lines = [{"time_s": time_s, "restart": 0, "step": time_s, "value": 1.0} for time_s in (9100, 9400)]
    (tmp_path / "5.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    requeued = job_of(tmp_path, restarts=1, uid=os.geteuid())
    assert (requeued.queued_s, requeued.earlier_s, requeued.first_report_s) == (9400.0, 300.0, None)
    # A job that waits is in none of its runs, whatever Slurm has counted so far.
    assert job_of(tmp_path, restarts=0, uid=os.geteuid()).earlier_s == 300.0
    runs_again = job_of(tmp_path, restarts=1, uid=os.geteuid(), state="RUNNING", start_s=9700.0)
    assert (runs_again.waited_s(NOW_S), runs_again.executed_s(NOW_S)) == (300.0, 600.0)


@pytest.mark.parametrize(
    ("note", "earlier_s"),
    [
        ("n=0&lost=0&p=0,9000,4,160,why", 40.0),
        ("n=0&lost=0&p=0,9000,4,160,why&p=1,9400,2,100,why", 90.0),
        ("n=2&lost=400&p=2,9000,4,160,why", 140.0),
        ("n=0&lost=0&p=0,9000,4,160,why&p=3,9990,4,800,why", 40.0),  # its present run, which Slurm has not requeued
    ],
)
def test_what_a_job_that_reports_nothing_lost_tells_how_long_it_has_run(
    tmp_path: Path, note: str, earlier_s: float
) -> None:
    """`sxrun` notes the start of a run, but not its end when the job is requeued."""
    again = {"gpus_per_node": 4, "restarts": 3, "admin_comment": f"explsched-preemption:since=50&{note}"}
    queued_s = 9400.0 if "9400" in note else 9000.0
    silent = job_of(tmp_path, **again)
    assert (silent.earlier_s, silent.queued_s) == (earlier_s, queued_s)
    (tmp_path / "5.jsonl").write_text(json.dumps({"time_s": 8960, "restart": 0, "event": "start"}) + "\n")
    begun = job_of(tmp_path, uid=os.geteuid(), **again)
    assert (begun.earlier_s, begun.queued_s) == (earlier_s, queued_s)


def test_what_a_job_reports_of_its_runs_counts_before_what_it_lost_of_them(tmp_path: Path) -> None:
    lines = [{"time_s": time_s, "restart": 0, "step": time_s, "value": 1.0} for time_s in (8700, 8990)]
    (tmp_path / "5.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert job_of(tmp_path, restarts=1, uid=os.geteuid(), admin_comment=ONCE).earlier_s == 290.0


def test_a_preempted_job_on_a_part_of_a_gpu_has_run_as_long_as_one_on_all_of_it(tmp_path: Path) -> None:
    lost = "explsched-preemption:since=50&n=0&lost=0&p=0,9000,1,10,why"  # 40 s on a quarter of a GPU
    shards: dict[str, Any] = {"gpus_per_node": None, "gpus": 0, "shards_per_node": 1, "restarts": 1}
    node = SlurmNode("n1", "IDLE", 4, frozenset({"main"}), shards=16)
    found = observe(
        ClusterRecords((node,), (record(5, admin_comment=lost, **shards),), ()), ProgressSpool(tmp_path), NOW_S
    )
    assert [job.earlier_s for job in found.snapshot.jobs] == [40.0]


def test_what_a_job_tells_of_its_parameters_counts_before_its_comment(tmp_path: Path) -> None:
    def known(**fields: Any) -> object:
        exploration = job_of(tmp_path, **fields).exploration
        return None if exploration is None else exploration.params

    comment = "explsched:sweep=s&params=lr%3D0.1%2Cwidth%3D64"
    assert known(comment=comment) == (("lr", 0.1), ("width", 64.0))
    told = {"time_s": NOW_S - 5, "restart": 0, "params": {"lr": 0.2, "amp": True}}
    (tmp_path / "5.jsonl").write_text(json.dumps(told) + "\n")
    assert known(comment=comment, uid=os.geteuid()) == (("amp", True), ("lr", 0.2), ("width", 64.0))
    assert known(uid=os.geteuid()) is None


def test_measured_stages_count_before_typed_ones_and_hold_for_equal_jobs(tmp_path: Path) -> None:
    (tmp_path / "5.jsonl").write_text(json.dumps({"time_s": 9500.0, "stages": "110/60/45/5"}) + "\n")
    jobs = (
        record(5, name="train", state="RUNNING", comment="explsched:stages=9/9/9/9", uid=os.geteuid()),
        record(6, name="train"),
        record(7, name="another"),
        record(8, name="train", user="eve"),
        record(9, name="another", comment="explsched:stages=8/7/1/0"),
        record(10, name="train", comment="explsched:stages=8/7/1/0"),
    )
    profiles = {job.job_id: job.profile for job in seen(tmp_path, *jobs).snapshot.jobs}
    measured, typed = StageProfile(0.110, 0.060, 0.045, 0.005), StageProfile(0.008, 0.007, 0.001, 0.0)
    assert profiles == {5: measured, 6: measured, 7: None, 8: None, 9: typed, 10: measured}
