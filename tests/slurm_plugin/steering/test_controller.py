"""One pass of the loop on a Slurm in memory: what it hands over and undoes, and what a new configuration changes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from explsched.errors import SlurmUnreachableError
from sched_policy.model import GpuRequest, NodeGpus
from sched_policy.plan import Plan, Preemption, Reservation, Resize, Score, Stop
from sched_policy.snapshot import EndedRun, Snapshot
from slurm_plugin.client.changes import (
    AttachReservation,
    CancelJob,
    Change,
    CreateReservation,
    DelayStart,
    DeleteReservation,
    JobChange,
    RequeueJob,
    SetAdminComment,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    SignalJob,
    StartAtOnce,
    TargetJob,
)
from slurm_plugin.client.notation import clock
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmReservation
from slurm_plugin.config import (
    AuditSection,
    Config,
    OrderSection,
    PreemptionSection,
    ProgressSection,
    RunTimesSection,
    SlurmSection,
)
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.standing import REST_S
from slurm_plugin.state.jobs import explanations
from slurm_plugin.state.view import View
from slurm_plugin.steering.beneficiaries import resized_while_running
from slurm_plugin.steering.controller import Controller
from tests.sched_policy.builders import running
from tests.slurm_kit import NODES, FakeSlurm, record

NOW_S = 10_000.0
ELASTIC = "explsched:elastic=4-16/4&checkpoint=USR1"


class Fixed(Struct, frozen=True):
    """A policy that always plans the same."""

    made: Plan
    name: str = "fixed"
    summary: str = ""
    needs_durations: bool = False

    def plan(self, _snapshot: Snapshot) -> Plan:
        return self.made


def controller(slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Plan) -> Controller:
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(made))
    return Controller(slurm, configured(tmp_path))


def configured(tmp_path: Path, **sections: Any) -> Config:
    order = OrderSection(scope="partition", site_factor_file=tmp_path / "site_factors.json")
    spool, audit = ProgressSection(spool=tmp_path), AuditSection(file=tmp_path / "audit.jsonl")
    return msgspec.structs.replace(Config(progress=spool, order=order, audit=audit), **sections)


def asking(job_id: int, **fields: Any) -> SlurmJob:
    """A job that wants four GPUs on one node."""
    return replace(record(job_id, gpus=4, gpus_per_node=4, gres_per_node="gpu:4", tasks=1, cpus=8), **fields)


def holding(job_id: int, **fields: Any) -> SlurmJob:
    held = {"state": "RUNNING", "start_s": 100.0, "node_names": ("n1",), "gpu_nodes": (("n1", 4),)}
    return asking(job_id, **{**held, **fields})


def resized(job_id: int, nodes: int) -> Plan:
    return Plan(resizes=(Resize(job_id, GpuRequest.on_each(nodes, 4), "nobody waits"),))


def test_a_size_that_is_refused_is_taken_back_in_the_same_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm 22.05 applies a part of an update that it refuses."""
    slurm = FakeSlurm((asking(5, comment=ELASTIC),), refuses=lambda change: change == SetNodeCount(5, 2, 2, 16))
    done = controller(slurm, tmp_path, monkeypatch, resized(5, 2)).reconcile(NOW_S)
    assert slurm.applied == [(SetNodeCount(5, 2, 2, 16),), (SetNodeCount(5, 1, 1, 8),)]
    assert [failure.change for failure in done.failures] == [SetNodeCount(5, 2, 2, 16)]


def test_a_running_job_is_preempted_for_its_new_size_and_a_waiting_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((holding(5, comment=ELASTIC), asking(6, comment=ELASTIC)))
    plan = Plan(resizes=(*resized(5, 2).resizes, *resized(6, 2).resizes))
    assert controller(slurm, tmp_path, monkeypatch, plan).reconcile(NOW_S).changes == (
        SetNodeCount(6, 2, 2, 16),
        SignalJob(5, "USR1"),
    )


def test_a_job_that_the_plan_stops_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((holding(5, comment="explsched:sweep=digits&early-stop=1"),))
    controller(slurm, tmp_path, monkeypatch, Plan(stops=(Stop(5, "nothing left to learn"),))).reconcile(NOW_S)
    assert slurm.applied == [(CancelJob(5),)]


def test_a_job_that_was_cancelled_and_is_not_gone_yet_is_not_cancelled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((holding(5, comment="explsched:sweep=digits&early-stop=1", state="COMPLETING"),))
    controller(slurm, tmp_path, monkeypatch, Plan(stops=(Stop(5, "nothing left to learn"),))).reconcile(NOW_S)
    assert slurm.applied == []


def test_a_job_that_is_stopped_after_it_was_asked_to_save_is_not_requeued_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((holding(5, comment=ELASTIC + "&sweep=digits&early-stop=1"),))
    plans = [resized(5, 2), Plan(stops=(Stop(5, "nothing left to learn"),))]
    policy = SimpleNamespace(name="fixed", plan=lambda _snapshot: plans.pop(0))
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: policy)
    daemon = Controller(slurm, configured(tmp_path))
    daemon.reconcile(NOW_S)
    daemon.reconcile(NOW_S + PreemptionSection().grace_s)
    assert slurm.carried_out == [SignalJob(5, "USR1"), CancelJob(5)]


@pytest.mark.parametrize(("told", "expected"), [("checkpoint", [SignalJob(5, "USR1")]), ("end", [])])
def test_a_job_whose_work_is_done_is_not_asked_to_save(tmp_path: Path, told: str, expected: list[Change]) -> None:
    """Its script may go on for long, and Slurm may have lost its end: the plan would choose it in each pass."""
    lines = ({"event": "start"}, {"step": 9, "metric": "loss", "value": 1.0}, {"event": told})
    (tmp_path / "5.jsonl").write_text("".join(json.dumps({"time_s": NOW_S - 5000, **line}) + "\n" for line in lines))
    everywhere = {"nodes": 4, "gpus": 16, "gpu_nodes": tuple((node.name, 4) for node in NODES)}
    runs = holding(5, uid=os.geteuid(), comment="explsched:checkpoint=USR1", time_limit_s=86_400.0, **everywhere)
    slurm = FakeSlurm((runs, asking(6, reason="Resources", time_limit_s=60.0)))
    daemon = Controller(slurm, configured(tmp_path, policy="srsf"))
    for pass_s in (NOW_S, NOW_S + 10, NOW_S + 20):
        daemon.reconcile(pass_s)
    assert [change for change in slurm.carried_out if isinstance(change, SignalJob)] == expected


def test_nothing_is_sent_when_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((holding(5),))
    assert controller(slurm, tmp_path, monkeypatch, Plan()).reconcile(NOW_S).failures == ()
    assert slurm.applied == []


def test_a_job_that_has_ended_tells_others_how_long_it_ran_after_a_restart_too(tmp_path: Path) -> None:
    slurm = FakeSlurm((holding(5, start_s=NOW_S - 300), asking(6), asking(7)))
    daemon = Controller(slurm, configured(tmp_path, policy="explsched-share"))
    before = daemon.reconcile(NOW_S)
    assert before.seen.snapshot.ended_runs == ()
    slurm.set(5, state="COMPLETED")
    slurm.set(7, state="CANCELLED")  # it never ran
    ended = daemon.reconcile(NOW_S + 20).seen.snapshot.ended_runs
    assert ended == (EndedRun(5, 0.0, 4, 310.0),)  # it left between the two looks
    restarted = Controller(slurm, configured(tmp_path, policy="explsched-share"))
    after = restarted.reconcile(NOW_S + 40)
    assert after.seen.snapshot.ended_runs == ended
    assert after.plan.scores[0].value != before.plan.scores[0].value
    slurm.set(5, state="RUNNING")  # its owner has requeued it
    assert restarted.reconcile(NOW_S + 60).seen.snapshot.ended_runs == ()


def test_a_lease_that_slurm_refuses_is_not_tried_in_each_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Reservation(6, (NodeGpus("n1", 4),), NOW_S + 3600, NOW_S + 7200, "first")
    slurm = FakeSlurm(
        (holding(5), asking(6, reason="Resources")), refuses=lambda change: isinstance(change, CreateReservation)
    )
    plan = Plan(scores=(Score(5, 0.0, ""), Score(6, 0.0, "")), reservations=(planned,))
    daemon = controller(slurm, tmp_path, monkeypatch, plan)
    tried_s = []
    for pass_s in range(0, 1200, 6):
        done = daemon.reconcile(NOW_S + pass_s)
        tried_s += [pass_s for change in done.changes if isinstance(change, CreateReservation)]
    assert tried_s == [0, 60, 180, 420, 900]
    (told,) = (one for one in explanations(View.planned(configured(tmp_path), done.seen, done.plan)) if one.jobid == 6)
    assert any(sentence.endswith("Slurm has refused a reservation for it: refused.") for sentence in told.sentences)


def test_deciding_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((asking(5, comment=ELASTIC),))
    decided = controller(slurm, tmp_path, monkeypatch, resized(5, 2)).decide(NOW_S)
    assert decided.changes == (SetNodeCount(5, 2, 2, 16),)
    assert slurm.applied == []


def test_a_new_configuration_holds_for_preemptions_underway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((holding(5, comment=ELASTIC),))
    daemon = controller(slurm, tmp_path, monkeypatch, resized(5, 2))
    daemon.reconcile(NOW_S)
    assert not any(isinstance(change, RequeueJob) for change in daemon.decide(NOW_S + 20).changes)
    daemon.reconfigure(configured(tmp_path, preemption=PreemptionSection(grace_s=10)))
    assert RequeueJob(5) in daemon.decide(NOW_S + 20).changes


def test_a_reload_keeps_what_has_been_read_of_the_same_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"time_s": 200.0, "step": 1, "metric": "loss", "value": 2.0}) + "\n"
    monkeypatch.setattr("slurm_plugin.observation.spool.MAX_BYTES_PER_USER", len(text))
    slurm = FakeSlurm(tuple(holding(job_id, uid=os.geteuid()) for job_id in (5, 6)))
    daemon = controller(slurm, tmp_path, monkeypatch, Plan())
    spools = [tmp_path / name for name in ("a", "b")]
    for spool in spools:
        spool.mkdir()
        for job_id in (5, 6):
            (spool / f"{job_id}.jsonl").write_text(text)

    def read_after_reload(spool: Path) -> list[int]:
        daemon.reconfigure(configured(tmp_path, progress=ProgressSection(spool=spool)))
        return sorted(daemon.decide(NOW_S).seen.progress)

    assert [read_after_reload(spool) for spool in (spools[0], spools[0], spools[1])] == [[5], [5, 6], [5]]


def test_a_reload_keeps_the_run_times_that_were_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until sacct answered again, jobs had no estimates, and the order of `srtf` was another."""
    sacct = tmp_path / "sacct"
    sacct.write_text(
        """#!/bin/sh
        for option; do case $option in --delimiter=*) mark=${option#*=};; esac; done
        for id in $(seq 100 120); do
            for field in $id ada main 1000 2000 600 COMPLETED gres/gpu=4; do printf '%s' "$field$mark"; done
            echo j
        done
        """
    )
    sacct.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    learns = {"run_times": RunTimesSection(history_days=30)}
    daemon = controller(FakeSlurm((asking(5),)), tmp_path, monkeypatch, Plan())
    daemon.reconfigure(configured(tmp_path, **learns))

    def expected_s() -> float | None:
        return daemon.decide(NOW_S).seen.snapshot.jobs[0].expected_s

    while expected_s() is None:
        pass
    other = (
        learns,
        {"run_times": RunTimesSection(history_days=20, refresh_s=60)},
        {**learns, "slurm": SlurmSection(timeout_s=7)},
    )
    for sections in other:
        daemon.reconfigure(configured(tmp_path, **sections))
        assert expected_s() == pytest.approx(600, rel=0.3)
    daemon.reconfigure(configured(tmp_path))
    assert expected_s() is None


def test_a_reload_reads_a_spool_anew_that_has_hung_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a file server was given up: a call to it does not come back, though the spool is there again."""
    (tmp_path / "5.jsonl").write_text(json.dumps({"time_s": 200.0, "step": 1, "metric": "loss", "value": 2.0}) + "\n")
    slurm = FakeSlurm((holding(5, uid=os.geteuid()),))
    with monkeypatch.context() as impatient:
        impatient.setattr("slurm_plugin.steering.spool.ProgressSpool", partial(ProgressSpool, patience_s=0.05))
        daemon = controller(slurm, tmp_path, monkeypatch, Plan())
    hung, ends, really = threading.Event(), threading.Event(), os.open

    def first_hangs(path: str | Path, flags: int, *mode: int, **options: Any) -> int:
        if path == tmp_path and not hung.is_set():
            hung.set()
            ends.wait()
        return really(path, flags, *mode, **options)

    monkeypatch.setattr(os, "open", first_hangs)
    try:
        while not hung.is_set():
            daemon.decide(NOW_S)
        assert not daemon.decide(NOW_S).seen.progress
        daemon.reconfigure(configured(tmp_path))
        assert sorted(daemon.decide(NOW_S).seen.progress) == [5]
    finally:
        ends.set()


def test_a_reload_while_the_spool_hangs_keeps_what_has_been_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"time_s": 200.0, "step": 1, "metric": "loss", "value": 2.0}
    (tmp_path / "5.jsonl").write_text(json.dumps(report) + "\n")
    slurm = FakeSlurm((holding(5, uid=os.geteuid()),))
    with monkeypatch.context() as impatient:
        impatient.setattr("slurm_plugin.steering.spool.ProgressSpool", partial(ProgressSpool, patience_s=0.05))
        daemon = controller(slurm, tmp_path, monkeypatch, Plan())
    hung, answers, really = threading.Event(), threading.Event(), os.open
    answers.set()

    def hangs(path: str | Path, flags: int, *mode: int, **options: Any) -> int:
        if path == tmp_path and not answers.is_set():
            hung.set()
            answers.wait()
        return really(path, flags, *mode, **options)

    def steps() -> list[int]:
        progress = daemon.decide(NOW_S).seen.progress
        return [report.step for report in progress[5].reports] if progress else []

    monkeypatch.setattr(os, "open", hangs)
    try:
        while not steps():
            pass
        answers.clear()
        for _ in range(2):
            hung.clear()
            while not hung.is_set():
                assert steps() == [1]
            daemon.reconfigure(configured(tmp_path))
    finally:
        answers.set()
    with (tmp_path / "5.jsonl").open("a") as file:
        file.write(json.dumps({**report, "step": 2}) + "\n")
    while steps() != [1, 2]:
        pass


def test_a_job_that_ends_while_the_pass_writes_other_things_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm, that has not noticed yet, would run it once more."""

    def ends_meanwhile(change: Change) -> bool:
        if isinstance(change, SetNodeCount):
            (tmp_path / "5.jsonl").write_text('{"time_s": 10121, "event": "end"}\n')
        return False

    own = {"comment": ELASTIC, "uid": os.geteuid()}
    slurm = FakeSlurm((holding(5, **own), holding(6, **own)), refuses=ends_meanwhile)
    plans = [Plan(resizes=(*resized(5, 2).resizes, *resized(6, 2).resizes)), resized(7, 2)]
    policy = SimpleNamespace(name="fixed", plan=lambda _snapshot: plans.pop(0))
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: policy)
    daemon = Controller(slurm, configured(tmp_path))
    daemon.reconcile(NOW_S)
    slurm.known[7] = asking(7, comment=ELASTIC)
    done = daemon.reconcile(NOW_S + 121)
    assert RequeueJob(6) in slurm.carried_out
    assert RequeueJob(5) not in {*slurm.carried_out, *done.changes}
    assert [change.job_id for change in slurm.carried_out if isinstance(change, SetAdminComment)] == [6]


def test_a_new_configuration_holds_for_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm(tuple(map(asking, (1, 2, 3))))
    scores = tuple(Score(job_id, -job_id, "") for job_id in (1, 2, 3))
    daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores))
    assert len(daemon.decide(NOW_S).changes) == 3
    daemon.reconfigure(configured(tmp_path, slurm=SlurmSection(max_per_pass=2)))
    assert len(daemon.decide(NOW_S).changes) == 2


def test_a_pass_stays_below_the_rate_that_slurm_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = {"SlurmctldParameters": "rl_enable,rl_bucket_size=18,rl_refill_rate=2"}
    slurm = FakeSlurm(tuple(map(asking, range(1, 9))), settings=limited)
    scores = tuple(Score(job_id, -job_id, "") for job_id in range(1, 9))
    changes = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores)).decide(NOW_S).changes
    assert [type(change) for change in changes] == [SetSiteFactor] * 3


def test_a_slurmctld_that_was_started_anew_is_asked_again_what_it_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade, or with other settings."""
    slurm = FakeSlurm(tuple(map(asking, range(1, 9))), settings={"BOOT_TIME": "1"})
    scores = tuple(Score(job_id, -job_id, "") for job_id in range(1, 9))
    daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores))

    def written() -> int:
        daemon.capabilities()
        return len(daemon.decide(NOW_S).changes)

    assert written() == 8
    slurm.settings["SlurmctldParameters"] = "rl_enable,rl_bucket_size=18,rl_refill_rate=2"
    assert written() == 8
    slurm.settings["BOOT_TIME"] = "2"
    assert written() == 3


def test_a_partition_that_is_not_there_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = controller(FakeSlurm(), tmp_path, monkeypatch, Plan())
    daemon.reconfigure(configured(tmp_path, slurm=SlurmSection(partitions=("mian", "main"))))
    daemon.decide(NOW_S)
    daemon.decide(NOW_S + 15)
    assert caplog.text.count("slurm.partitions names a partition that has no nodes") == 1
    assert 'partition="mian"' in caplog.text


def test_options_that_are_ignored_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any user may write any comment, and a job may wait for days."""
    daemon = controller(FakeSlurm((record(7, comment="explsched:chekpoint=USR1"),)), tmp_path, monkeypatch, Plan())
    for passes in range(3):
        daemon.reconcile(NOW_S + 15 * passes)
    assert caplog.text.count("job options ignored") == 1
    assert "unknown key 'chekpoint'" in caplog.text


@pytest.mark.parametrize(
    "comment", ["explsched:{}=1", "explsched:sweep={}", "explsched:{}", "explsched:sweep=s&stages={}"]
)
def test_whoever_keeps_changing_the_options_of_many_jobs_does_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, comment: str
) -> None:
    slurm = FakeSlurm()
    daemon = controller(slurm, tmp_path, monkeypatch, Plan())
    for passes in range(2):
        changed = comment.format(str(passes) * 900)
        slurm.known = {n: record(n, user="eve" if n < 50 else "ada", comment=changed) for n in range(1, 52)}
        daemon.reconcile(NOW_S + 15 * passes)
    told = [line for line in caplog.messages if line.startswith("job options")]
    assert [line for line in told if "user=" in line] == ['job options of more jobs ignored user="eve" jobs=46'] * 2
    assert len(told) == 2 * (3 + 1 + 2)  # of eve's jobs three, and of ada's both
    assert all(len(line) < 900 for line in told)


def of_job(change: Change) -> int | None:
    return change.job_id if isinstance(change, JobChange) else None


def whose(slurm: FakeSlurm) -> set[int | None]:
    """The jobs whose changes were applied."""
    return {of_job(change) for changes in slurm.applied for change in changes}


def test_a_comment_that_slurm_refuses_to_a_running_job_is_not_tried_in_every_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm takes five seconds to refuse it, in which nobody else is ordered."""
    started = {"admin_comment": "explsched-group:group=5&of=3&node=n1&since=5"}
    slurm = FakeSlurm((holding(5, **started), holding(6, **started)), refuses=lambda change: of_job(change) == 5)
    daemon = controller(slurm, tmp_path, monkeypatch, Plan())
    passes = []
    for number in range(3):
        slurm.applied.clear()
        daemon.reconcile(NOW_S + number)
        passes.append(whose(slurm))
    assert passes == [{5, 6}, {6}, {6}]  # this Slurm forgets what it took over, so the other job shows who is asked
    slurm.set(5, **{field: getattr(asking(5), field) for field in ("state", "start_s", "node_names", "gpu_nodes")})
    slurm.applied.clear()
    daemon.reconcile(NOW_S + 3)
    assert 5 in whose(slurm)  # it waits again


def test_a_daemon_that_stops_lets_go_of_its_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = asking(5, admin_comment="explsched-group:node=n1&since=5", required_nodes=("n1",))
    slurm = FakeSlurm((pinned, asking(6)))
    controller(slurm, tmp_path, monkeypatch, Plan()).withdraw(NOW_S)
    assert slurm.applied == [(TargetJob(5, (), ""),)]


def test_a_daemon_that_stops_removes_its_leases_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leased = asking(5, reservation="explsched_5")
    ours = SlurmReservation("explsched_5", NOW_S, NOW_S + 120, ("n1",), ("ada",), frozenset())
    slurm = FakeSlurm((leased, asking(6)), leases=(ours, replace(ours, name="maintenance")))
    controller(slurm, tmp_path, monkeypatch, Plan()).withdraw(NOW_S)
    assert slurm.applied == [(AttachReservation(5, ""), DeleteReservation("explsched_5"))]


def test_a_preemption_underway_outlives_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((holding(5, comment=ELASTIC),))
    controller(slurm, tmp_path, monkeypatch, resized(5, 2)).reconcile(NOW_S)
    late = NOW_S + PreemptionSection().grace_s
    assert RequeueJob(5) in controller(slurm, tmp_path, monkeypatch, Plan()).decide(late).changes
    after_hours = controller(slurm, tmp_path, monkeypatch, Plan()).decide(late + 3600)
    assert RequeueJob(5) not in after_hours.changes


@pytest.mark.parametrize(("configured_s", "present_s", "requeues"), [(15, 300, 1), (300, 0, 1), (15, 15, 0)])
def test_how_late_a_preemption_is_finished_depends_on_the_time_between_passes(
    configured_s: float, present_s: float, requeues: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((holding(5, comment=ELASTIC),))
    loop = controller(slurm, tmp_path, monkeypatch, resized(5, 2))
    loop.reconfigure(configured(tmp_path, interval_s=configured_s))
    loop.reconcile(NOW_S)
    late_s = NOW_S + PreemptionSection().grace_s + 300
    assert loop.reconcile(late_s, present_s).changes.count(RequeueJob(5)) == requeues


def test_the_size_of_a_waiting_job_on_one_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm((asking(5, comment="explsched:elastic=1-4"),))
    plan = Plan(resizes=(Resize(5, GpuRequest.on_each(1, 2), "four are not free"),))
    assert controller(slurm, tmp_path, monkeypatch, plan).decide(NOW_S).changes == (SetGres(5, "gpu:2"),)


def test_a_job_that_a_limit_keeps_waiting_is_made_smaller_and_not_enlarged_again_for_an_hour(tmp_path: Path) -> None:
    """It was enlarged onto idle GPUs of which its account may not have as many."""
    elastic = asking(5, comment="explsched:elastic=1-4&checkpoint=USR1", reason="AssocGrpGRES", time_limit_s=36_000.0)
    slurm = FakeSlurm((elastic,))
    loop = Controller(slurm, configured(tmp_path, policy="fifo"))

    def resized(after_s: float) -> list[Change]:
        steps = loop.decide(NOW_S + after_s).changes
        return [step for step in steps if isinstance(step, SetGres | SignalJob)]

    assert resized(0) == [SetGres(5, "gpu:2")]
    slurm.set(5, gpus=2, gpus_per_node=2, gres_per_node="gpu:2", reason="None")
    assert resized(15) == []
    slurm.set(5, state="RUNNING", start_s=NOW_S + 20, node_names=("n1",), gpu_nodes=(("n1", 2),))
    assert resized(3600) == []
    assert resized(3601) == [SignalJob(5, "USR1")]


def test_a_job_whose_new_size_slurm_refuses_is_not_preempted_again_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each preemption would cost it a checkpoint, a start and the two minutes that Slurm holds a requeued job back."""
    slurm = FakeSlurm(
        (holding(5, comment="explsched:elastic=1-4&checkpoint=USR1", gpus=2, gpus_per_node=2, time_limit_s=36_000.0),),
        refuses=lambda change: isinstance(change, SetGres),
    )
    plan = Plan(resizes=(Resize(5, GpuRequest.on_each(1, 4), "nobody waits"),))
    loop = controller(slurm, tmp_path, monkeypatch, plan)

    def resized(after_s: float) -> list[Change]:
        return [step for step in loop.reconcile(NOW_S + after_s).changes if isinstance(step, SetGres | SignalJob)]

    assert resized(0) == [SignalJob(5, "USR1")]
    slurm.set(5, state="PENDING", start_s=None, node_names=(), gpu_nodes=(), restarts=1, reason="BeginTime")
    assert [type(step) for step in resized(130)] == [SetGres]
    assert resized(145) == []
    slurm.set(5, state="RUNNING", start_s=NOW_S + 150, node_names=("n1",), gpu_nodes=(("n1", 2),))
    assert resized(3700) == []
    assert resized(3731) == [SignalJob(5, "USR1")]


def test_a_refused_size_does_not_keep_a_job_at_one_that_a_limit_forbids(tmp_path: Path) -> None:
    """It would wait for as long as others of its account run; and making it smaller costs no preemption."""
    elastic = asking(5, comment="explsched:elastic=1-4&checkpoint=USR1", reason="AssocGrpGRES", time_limit_s=36_000.0)
    slurm = FakeSlurm((elastic,), refuses=lambda change: isinstance(change, SetGres))
    loop = Controller(slurm, configured(tmp_path, policy="fifo"))
    for after_s in (0, 15, 30):
        changes = loop.reconcile(NOW_S + after_s).changes
        assert [change for change in changes if isinstance(change, SetGres)] == [SetGres(5, "gpu:2")]


@pytest.mark.parametrize("asked", [{"reservation": "course"}, {"licenses": "matlab:1"}, {"required_nodes": ("n1",)}])
def test_an_elastic_job_that_is_left_to_slurm_keeps_its_size_at_a_limit(tmp_path: Path, asked: dict[str, Any]) -> None:
    comment = "explsched:elastic=1-4&checkpoint=USR1"
    slurm = FakeSlurm((asking(5, comment=comment, reason="QOSMaxGRESPerUser", time_limit_s=36_000.0, **asked),))
    changed = Controller(slurm, configured(tmp_path, policy="fifo")).decide(NOW_S).changes
    assert not any(isinstance(change, SetGres) for change in changed)


def test_a_policy_that_resizes_no_job_leaves_its_size_to_its_owner(tmp_path: Path) -> None:
    slurm = FakeSlurm((asking(5, comment="explsched:elastic=1-4", reason="AssocGrpGRES"),))
    changed = Controller(slurm, configured(tmp_path, policy="slurm")).decide(NOW_S).changes
    assert not any(isinstance(change, SetGres) for change in changed)


def test_room_is_made_for_a_job_whose_reason_our_own_write_has_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((asking(5, reason="Resources"), asking(6, reason="None")))
    loop = controller(slurm, tmp_path, monkeypatch, Plan(scores=(Score(5, 2.0, ""), Score(6, 1.0, ""))))
    written = {change.job_id for change in loop.reconcile(NOW_S).changes if isinstance(change, SetSiteFactor)}
    assert written == {5, 6}
    for job_id in (5, 6):
        slurm.set(job_id, reason="None")
    seen = loop.decide(NOW_S + 2).seen
    assert {job.job_id: job.may_displace for job in seen.snapshot.jobs} == {5: True, 6: False}
    slurm.set(5, reason="Dependency")
    assert not any(job.may_displace for job in loop.decide(NOW_S + 4).seen.snapshot.jobs)


def test_a_restarted_daemon_lends_no_place_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A young job starts on an old one's place while no daemon is there; its own is left to that."""
    config = replace(configured(tmp_path), order=OrderSection(site_factor_file=tmp_path / "site_factors.json"))
    old = record(1, natives=(900,), priority=900, submit_s=NOW_S - 50, eligible_s=NOW_S - 50)
    slurm = FakeSlurm((old, replace(old, job_id=2, natives=(700,), priority=700, time_limit_s=60.0)))
    config = replace(config, policy="srsf")
    Controller(slurm, config).reconcile(NOW_S)
    assert slurm.carried_out == [SetSiteFactor(2, 210)]
    slurm.set(2, state="RUNNING", start_s=NOW_S, natives=(), site_factor=None)
    slurm.known[3] = replace(old, job_id=3, natives=(650,), priority=650, time_limit_s=60.0)
    slurm.known[4] = replace(old, job_id=4, user="bob", natives=(680,), priority=680)
    slurm.carried_out.clear()
    Controller(slurm, config).reconcile(NOW_S + 1)
    assert set(slurm.carried_out) == {SetSiteFactor(1, -250), SetSiteFactor(3, 50)}  # the place of 700 is left


@pytest.mark.parametrize("is_refused", [True, False])
def test_who_starts_before_its_site_factor_is_written_costs_no_other_job_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """Whether Slurm refuses it, or it waits for the end of a backfill cycle."""
    if not is_refused:
        monkeypatch.setattr("slurm_plugin.steering.backpressure.Gap.timely", lambda *_given: ())
    order = OrderSection(site_factor_file=tmp_path / "site_factors.json")
    config = replace(configured(tmp_path), order=order, policy="srsf")
    old = record(1, natives=(900,), priority=900, submit_s=NOW_S - 50, eligible_s=NOW_S - 50)
    slurm = FakeSlurm((old, replace(old, job_id=2, natives=(700,), priority=700, time_limit_s=60.0)))
    slurm.refuses = lambda change: isinstance(change, SetSiteFactor)
    loop = Controller(slurm, config)
    loop.reconcile(NOW_S)
    assert slurm.carried_out == []
    slurm.set(2, state="RUNNING", start_s=NOW_S, natives=(), site_factor=None)
    slurm.known[4] = replace(old, job_id=4, user="bob", natives=(800,), priority=800)
    assert loop.reconcile(NOW_S + 1).seen.known.base_factors == {}


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_requeue_that_slurm_does_not_carry_out_leaves_its_job_no_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """Whether Slurm refuses it, or does not answer."""
    slurm, loop, plan = asked_to_make_room(tmp_path, monkeypatch, refuses=lambda change: change == RequeueJob(1))
    loop.reconcile(NOW_S)
    late_s = NOW_S + PreemptionSection().grace_s
    slurm.mute = frozenset() if is_refused else frozenset({"apply"})
    with nullcontext() if is_refused else pytest.raises(SlurmUnreachableError):
        loop.reconcile(late_s)
    slurm.mute = frozenset()
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(replace(plan, preemptions=())))
    own = OrderSection(site_factor_file=tmp_path / "site_factors.json")
    loop.reconfigure(replace(configured(tmp_path), order=own))
    slurm.set(2, state="RUNNING", start_s=late_s, natives=(), priority=0)  # other GPUs were free
    loop.reconcile(late_s + 15.0)
    assert RequeueJob(1) not in slurm.carried_out
    slurm.set(1, state="PENDING", start_s=None, restarts=1, natives=(100,), priority=100)  # its owner has requeued it
    jobs = {job.job_id: job for job in loop.decide(late_s + 200.0).seen.snapshot.jobs}
    assert jobs[1].native_priority == 100


def asked_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **site: Any
) -> tuple[FakeSlurm, Controller, Plan]:
    """A site, its daemon and a plan by which job 1 makes room for job 2.

    Job 3 comes before job 2 in the queue, and would fit if job 9 ended by itself in the same cycle.
    """
    runs = {"state": "RUNNING", "start_s": NOW_S - 3000, "priority": 0, "time_limit_s": 36_000.0}
    one = {"gpus": 1, "gpus_per_node": 1, "gpu_nodes": (("n1", 1),), "node_names": ("n1",)}
    victim = record(1, comment="explsched:checkpoint=USR1", **one, **runs)
    larger = record(9, user="bob", gpus=3, gpus_per_node=3, gpu_nodes=(("n1", 3),), node_names=("n1",), **runs)
    full = (holding(10 + n, user="bob", gpu_nodes=((f"n{n}", 4),), node_names=(f"n{n}",), **runs) for n in (2, 3, 4))
    gains = record(2, gpus=1, gpus_per_node=1, natives=(500,), priority=500, reason="Resources")
    ahead = record(3, user="bob", natives=(900,), priority=900)
    slurm = FakeSlurm((victim, larger, *full, gains, ahead), settings={"SchedulerParameters": "bf_interval=30"}, **site)
    plan = Plan(scores=(Score(3, 2.0, ""), Score(2, 1.0, "")), preemptions=(Preemption(1, "worth less", 2),))
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(plan))
    own = OrderSection(site_factor_file=tmp_path / "site_factors.json")
    return slurm, Controller(slurm, replace(configured(tmp_path), order=own)), plan


def having_made_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **site: Any
) -> tuple[FakeSlurm, Controller, float]:
    """The site when job 1 has been requeued for job 2, at the moment that is returned: job 2 stands first."""
    slurm, loop, plan = asked_to_make_room(tmp_path, monkeypatch, **site)
    assert loop.reconcile(NOW_S).changes == (SignalJob(1, "USR1"),)
    late_s = NOW_S + PreemptionSection().grace_s
    written = loop.reconcile(late_s).changes
    assert SetSiteFactor(2, 410) in written
    assert RequeueJob(1) in written
    slurm.set(1, state="PENDING", start_s=None, restarts=1, submit_s=late_s, eligible_s=late_s + 121.0)
    slurm.set(2, site_factor=410, priority=910)
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(replace(plan, preemptions=())))
    own = OrderSection(site_factor_file=tmp_path / "site_factors.json")
    loop.reconfigure(replace(configured(tmp_path), order=own))
    return slurm, loop, late_s


def test_who_has_saved_just_before_priorities_are_computed_anew_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for that moment anyway, so nothing is in vain yet; by then job 9 will have saved, too."""
    slurm, loop, plan = asked_to_make_room(tmp_path, monkeypatch)
    slurm.settings["PriorityCalcPeriod"] = "00:05:00"
    slurm.set(9, comment="explsched:checkpoint=USR1", uid=os.geteuid())
    slurm.set(1, uid=os.geteuid())
    slurm.set(3, gpus=1, gpus_per_node=1, reason="Resources")
    both = Preemption(9, "worth less", 3), *plan.preemptions
    plans = iter((Plan(), Plan(), *[replace(plan, preemptions=both)] * 3))
    policy = SimpleNamespace(name="fixed", plan=lambda _snapshot: next(plans))
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: policy)
    loop.reconfigure(configured(tmp_path, order=OrderSection(site_factor_file=tmp_path / "site_factors.json")))
    loop.reconcile(NOW_S)
    for job_id, priority in ((2, 510), (3, 910)):  # and are again in five minutes
        slurm.set(job_id, natives=(priority,), priority=priority)
    loop.reconcile(NOW_S + 15)
    assert set(loop.reconcile(NOW_S + 255).changes) == {SignalJob(1, "USR1"), SignalJob(9, "USR1")}
    saves(tmp_path, 1, NOW_S + 260)
    loop.reconcile(NOW_S + 275)
    saves(tmp_path, 9, NOW_S + 300)
    assert {RequeueJob(1), RequeueJob(9)} <= set(loop.reconcile(NOW_S + 316).changes)


def saves(spool: Path, job_id: int, time_s: float) -> None:
    (spool / f"{job_id}.jsonl").write_text(f'{{"time_s": {time_s}, "event": "checkpoint"}}\n')


def test_a_requeue_that_slurm_refuses_lifts_nobody_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, loop, plan = asked_to_make_room(tmp_path, monkeypatch, refuses=lambda change: change == RequeueJob(1))
    loop.reconcile(NOW_S)
    late_s = NOW_S + PreemptionSection().grace_s
    assert SetSiteFactor(2, 410) in loop.reconcile(late_s).changes
    slurm.set(2, site_factor=410, priority=910)
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(replace(plan, preemptions=())))
    own = OrderSection(site_factor_file=tmp_path / "site_factors.json")
    loop.reconfigure(replace(configured(tmp_path), order=own))
    done = loop.reconcile(late_s + 15.0)
    assert done.changes == (SetSiteFactor(2, 0),)
    jobs = {job.job_id: job for job in done.seen.snapshot.jobs}
    assert (jobs[1].is_preemptible, jobs[2].may_displace) == (False, True)
    slurm.set(1, restarts=1)  # its owner has requeued it
    loop.reconcile(late_s + 30.0)
    assert {job.job_id: job for job in loop.decide(late_s + 45.0).seen.snapshot.jobs}[1].is_preemptible


@pytest.mark.parametrize("how", ["its owner forbids it", "its owner reports its end"])
def test_whoever_keeps_a_job_from_its_requeue_has_nobody_lifted_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Between our look and the requeue: job 2 would be before other users' jobs until the next pass."""

    def meanwhile(change: Change) -> bool:
        if change == SetSiteFactor(2, 410) and how == "its owner reports its end":
            (tmp_path / "1.jsonl").write_text(f'{{"time_s": {late_s}, "event": "end"}}\n')
        return change == RequeueJob(1) and how == "its owner forbids it"

    late_s = NOW_S + PreemptionSection().grace_s
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch, refuses=meanwhile)
    slurm.set(1, uid=os.geteuid())
    loop.reconcile(NOW_S)
    loop.reconcile(late_s)
    assert [change for change in slurm.carried_out if isinstance(change, SetSiteFactor) and change.job_id == 2] == [
        SetSiteFactor(2, 410),
        SetSiteFactor(2, 0),
    ]
    assert (RequeueJob(1) in slurm.carried_out, loop.has_asked) == (False, False)


def interruptions(slurm: FakeSlurm) -> list[type[Change]]:
    kinds = SignalJob | SetAdminComment | RequeueJob
    return [type(change) for change in slurm.carried_out if isinstance(change, kinds)]


@pytest.mark.parametrize("unanswered", ["apply", "load"])
def test_a_job_that_may_not_have_its_signal_gets_one_before_it_is_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unanswered: str
) -> None:
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch)
    slurm.mute = frozenset({unanswered})
    with pytest.raises(SlurmUnreachableError):
        loop.reconcile(NOW_S)
    slurm.mute = frozenset()
    again_s = NOW_S + PreemptionSection().grace_s + 30.0
    loop.reconcile(again_s)
    assert interruptions(slurm) == [SignalJob]
    loop.reconcile(again_s + PreemptionSection().grace_s)
    assert interruptions(slurm) == [SignalJob, SetAdminComment, RequeueJob]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_daemon_that_was_away_for_minutes_asks_again_in_its_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
) -> None:
    """What was asked too long ago does not count as leaving in the plan either."""
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    if is_restarted:
        own = OrderSection(site_factor_file=tmp_path / "site_factors.json")
        loop = Controller(slurm, replace(configured(tmp_path), order=own))
    back_s = NOW_S + PreemptionSection().grace_s + 76.0
    seen = loop.reconcile(back_s).seen
    assert not {job.job_id: job for job in seen.snapshot.jobs}[1].asked_to_leave
    assert interruptions(slurm) == [SignalJob, SignalJob]
    loop.reconcile(back_s + PreemptionSection().grace_s)
    assert interruptions(slurm) == [SignalJob, SignalJob, SetAdminComment, RequeueJob]


def test_a_job_whose_signal_slurm_refuses_is_not_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch, refuses=lambda change: isinstance(change, SignalJob))
    for after_s in (0.0, 15.0, PreemptionSection().grace_s):
        loop.reconcile(NOW_S + after_s)
    assert interruptions(slurm) == []


def test_a_requeue_that_is_repeated_is_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    late_s = NOW_S + PreemptionSection().grace_s
    slurm.mute = frozenset({"apply"})
    with pytest.raises(SlurmUnreachableError):
        loop.reconcile(late_s)
    slurm.mute = frozenset()
    loop.reconcile(late_s + 15.0)
    assert interruptions(slurm) == [SignalJob, SetAdminComment, RequeueJob]


def test_a_job_whose_record_slurm_does_not_take_for_now_is_requeued_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It awaits the record of its database: no budget would count the preemption."""
    slurm, loop, _plan = asked_to_make_room(
        tmp_path, monkeypatch, postpones=lambda change: isinstance(change, SetAdminComment)
    )
    loop.reconcile(NOW_S)
    late_s = NOW_S + PreemptionSection().grace_s
    assert not any(isinstance(change, RequeueJob) for change in loop.reconcile(late_s).changes)
    assert interruptions(slurm) == [SignalJob]
    factors = [
        change.site_factor for change in slurm.carried_out if change in (SetSiteFactor(2, 410), SetSiteFactor(2, 0))
    ]
    assert factors == [410, 0]  # nobody has left for it
    slurm.postpones = lambda _change: False
    loop.reconcile(late_s + 30.0)
    assert interruptions(slurm) == [SignalJob]  # each refusal takes slurmctld 5 s
    loop.reconcile(late_s + 60.0)
    assert interruptions(slurm) == [SignalJob, SetAdminComment, RequeueJob]


def test_a_job_whose_record_slurm_never_takes_for_now_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its database hangs for hours, and the GPUs of the job are counted on meanwhile."""
    tried: list[Change] = []

    def is_put_off(change: Change) -> bool:
        tried.extend([change] if isinstance(change, SetAdminComment) else [])
        return isinstance(change, SetAdminComment)

    slurm, loop, plan = asked_to_make_room(tmp_path, monkeypatch, postpones=is_put_off)
    now_s = NOW_S
    loop.reconcile(now_s)
    while loop.has_asked and now_s < NOW_S + 3600.0:
        now_s += 15.0
        loop.reconcile(now_s)
    assert (loop.has_asked, len(tried)) == (False, 5)
    assert interruptions(slurm) == [SignalJob]
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(replace(plan, preemptions=())))
    loop.reconfigure(configured(tmp_path))
    jobs = {job.job_id: job for job in loop.reconcile(now_s + 15.0).seen.snapshot.jobs}
    assert not jobs[1].is_preemptible


def test_a_job_whose_record_slurm_refuses_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, loop, plan = asked_to_make_room(
        tmp_path, monkeypatch, refuses=lambda change: isinstance(change, SetAdminComment)
    )
    loop.reconcile(NOW_S)
    loop.reconcile(NOW_S + PreemptionSection().grace_s)
    assert interruptions(slurm) == [SignalJob]
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(replace(plan, preemptions=())))
    loop.reconfigure(configured(tmp_path))
    seen = loop.reconcile(NOW_S + 600.0).seen
    jobs = {job.job_id: job for job in seen.snapshot.jobs}
    assert (jobs[1].is_preemptible, loop.has_asked) == (False, False)
    assert seen.spares[1] == "Slurm has refused to requeue it, or to take the record of that"


def test_the_end_of_a_former_job_with_its_id_keeps_nobody_from_making_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch)
    slurm.set(1, uid=os.geteuid(), submit_s=NOW_S - 4000)
    (tmp_path / "1.jsonl").write_text('{"time_s": 100.0, "restart": 0, "event": "end", "status": 0}\n')
    loop.reconcile(NOW_S)
    loop.reconcile(NOW_S + PreemptionSection().grace_s)
    assert interruptions(slurm) == [SignalJob, SetAdminComment, RequeueJob]


def test_a_requeue_that_was_never_sent_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scontrol that was to write it has been killed: Slurm has not refused it."""
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch, loses=lambda change: isinstance(change, RequeueJob))
    loop.reconcile(NOW_S)
    late_s = NOW_S + PreemptionSection().grace_s
    loop.reconcile(late_s)
    slurm.loses = lambda _change: False
    loop.reconcile(late_s + 15.0)
    assert interruptions(slurm) == [SignalJob, SetAdminComment, SetAdminComment, RequeueJob]


def test_what_a_users_job_left_goes_to_the_job_that_it_was_left_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _slurm, loop, late_s = having_made_room(tmp_path, monkeypatch)
    assert loop.reconcile(late_s + 30.0).changes == (StartAtOnce(1),)  # none that puts job 2 back
    assert SetSiteFactor(2, 0) in loop.reconcile(late_s + 61.0).changes  # something else has kept it from starting


def test_no_lease_is_made_before_the_job_that_another_has_made_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, loop, plan = asked_to_make_room(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    late_s = NOW_S + PreemptionSection().grace_s
    whole = Reservation(3, (NodeGpus("n1", 4),), late_s + 3600, late_s + 7200, "")
    own = OrderSection(site_factor_file=tmp_path / "site_factors.json")

    def leased(plan: Plan, now_s: float) -> list[int]:
        made = Fixed(replace(plan, reservations=(whole,)))
        monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: made)
        loop.reconfigure(replace(configured(tmp_path), order=own))
        return [change.job_id for change in loop.reconcile(now_s).changes if isinstance(change, AttachReservation)]

    assert leased(plan, late_s) == []
    assert slurm.carried_out[-1] == RequeueJob(1)
    slurm.set(1, state="PENDING", start_s=None, restarts=1, submit_s=late_s, eligible_s=late_s + 121.0)
    slurm.set(2, site_factor=410, priority=910)
    plan = replace(plan, preemptions=())
    assert leased(plan, late_s + 30.0) == []
    assert leased(plan, late_s + 61.0) == [3]  # job 2 is back on its own place


def test_it_stands_first_while_nodes_clean_up_after_the_job_that_left_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epilog may last longer than two cycles of backfill; on a node that hangs it never ends."""
    slurm, loop, late_s = having_made_room(tmp_path, monkeypatch)
    slurm.set(1, state="COMPLETING")
    for after_s in (5.0, 40.0, 62.0, 100.0):
        assert SetSiteFactor(2, 0) not in loop.reconcile(late_s + after_s).changes
    assert SetSiteFactor(2, 0) in loop.reconcile(late_s + 200.0).changes


def test_a_daemon_that_stops_leaves_no_job_above_those_of_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, loop, late_s = having_made_room(tmp_path, monkeypatch)
    slurm.applied.clear()
    loop.withdraw(late_s + 5.0)
    assert slurm.applied == [(SetSiteFactor(2, 0),)]


@pytest.mark.parametrize("scope", ["user", "account", "partition"])
@pytest.mark.parametrize(
    "moved", [{"partition": "other"}, {"partition": "main,other"}, {"gpus": 0, "gpus_per_node": None}]
)
def test_a_job_that_is_not_steered_any_more_keeps_nothing_of_what_lifted_it(
    tmp_path: Path, scope: Any, moved: dict[str, Any]
) -> None:
    """Its owner may move it to a partition that is left alone; what others have set stays."""
    order = OrderSection(scope=scope, site_factor_file=tmp_path / "site_factors.json")
    main = SlurmSection(partitions=("main",))
    old = record(1, natives=(900,), priority=900, submit_s=NOW_S - 50, eligible_s=NOW_S - 50)
    young = replace(old, job_id=2, natives=(700,), priority=700, time_limit_s=60.0)
    strange = replace(old, job_id=3, partition="other", site_factor=5)
    slurm = FakeSlurm((old, young, strange))
    daemon = Controller(slurm, replace(configured(tmp_path), policy="srsf", order=order, slurm=main))
    daemon.reconcile(NOW_S)
    written = {one.job_id: one.site_factor for one in slurm.carried_out if isinstance(one, SetSiteFactor)}
    for job_id, factor in written.items():
        slurm.set(job_id, site_factor=factor)
    assert written[2] > 0
    slurm.set(2, **moved)
    slurm.carried_out.clear()
    daemon.reconcile(NOW_S + 15)
    assert SetSiteFactor(2, 0) in slurm.carried_out
    assert 3 not in {one.job_id for one in slurm.carried_out if isinstance(one, SetSiteFactor)}


def test_a_job_that_its_owner_requeues_and_holds_keeps_nothing_of_what_lifted_it(tmp_path: Path) -> None:
    old = record(1, natives=(900,), priority=900, submit_s=NOW_S - 50, eligible_s=NOW_S - 50)
    young = replace(old, job_id=2, natives=(700,), priority=700, time_limit_s=60.0)
    slurm = FakeSlurm((old, young))
    order = OrderSection(site_factor_file=tmp_path / "site_factors.json")
    daemon = Controller(slurm, replace(configured(tmp_path), policy="srsf", order=order))
    daemon.reconcile(NOW_S)
    (lifted,) = [one.site_factor for one in slurm.carried_out if isinstance(one, SetSiteFactor) and one.job_id == 2]
    slurm.set(2, reason="JobHeldUser", site_factor=None, natives=(), priority=0, restarts=1)
    daemon.reconcile(NOW_S + 15)
    again: dict[str, Any] = {"submit_s": NOW_S, "eligible_s": NOW_S + 30, "natives": (700,), "time_limit_s": 7200.0}
    slurm.set(2, reason="Priority", site_factor=lifted, priority=900, **again)
    assert 2 not in daemon.reconcile(NOW_S + 30).seen.known.base_factors


@pytest.mark.parametrize("moved", [{"partition": "other"}, {"gpus": 0, "gpus_per_node": None}])
def test_a_job_that_its_owner_moves_while_others_make_room_for_it_stops_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: dict[str, Any]
) -> None:
    slurm, loop, _plan = asked_to_make_room(tmp_path, monkeypatch)
    assert loop.reconcile(NOW_S).changes == (SignalJob(1, "USR1"),)
    slurm.set(2, **moved)
    monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(Plan()))
    loop.reconfigure(replace(configured(tmp_path), slurm=SlurmSection(partitions=("main",))))
    for after_s in (15.0, 500.0):
        assert not any(isinstance(change, RequeueJob) for change in loop.reconcile(NOW_S + after_s).changes)


PAUSED = "explsched:sweep=digits&checkpoint=USR1"
SCORES = (Score(5, 1.0, "not among the best"),)
RESTS = Plan(scores=SCORES, rests=frozenset({5}))


def resting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any
) -> tuple[FakeSlurm, Controller, Callable[[Plan], None]]:
    """A training that was requeued long ago and is to rest, its daemon, and what lets that plan something else."""
    past: dict[str, Any] = {"restarts": 1, "submit_s": NOW_S - 5000, "eligible_s": NOW_S - 5000}
    slurm = FakeSlurm((record(5, comment=PAUSED, reason="BeginTime", **(past | fields)),))
    loop = controller(slurm, tmp_path, monkeypatch, RESTS)

    def plans(made: Plan) -> None:
        monkeypatch.setattr("sched_policy.catalog.build", lambda _name, _options: Fixed(made))
        loop.reconfigure(configured(tmp_path))

    return slurm, loop, plans


def starts(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if isinstance(change, StartAtOnce | DelayStart)]


def test_a_training_that_rests_may_start_as_soon_as_its_sweep_wants_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, loop, plans = resting(tmp_path, monkeypatch)
    until_s = int(NOW_S + REST_S)
    assert starts(loop.reconcile(NOW_S).changes) == [DelayStart(5, until_s)]
    entry = loop.trail.recent[-1]
    assert (entry.field, entry.after, entry.rule, entry.reason) == (
        "StartTime",
        clock(until_s),
        "rest",
        "not among the best",
    )
    slurm.set(5, eligible_s=float(until_s))
    assert starts(loop.reconcile(NOW_S + 100).changes) == []
    plans(Plan(scores=SCORES))
    assert loop.decide(NOW_S + 110).seen.snapshot.jobs[0].eligible
    assert starts(loop.reconcile(NOW_S + 110).changes) == [StartAtOnce(5)]


def test_a_job_that_fails_at_each_start_waits_as_long_as_slurm_delays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm((record(5, comment=PAUSED),))
    loop = controller(slurm, tmp_path, monkeypatch, Plan(scores=SCORES))

    def once_requeued(restarts: int, requeued_s: float) -> list[Change]:
        waits = {"state": "PENDING", "start_s": None, "submit_s": requeued_s, "eligible_s": requeued_s + 121}
        slurm.set(5, reason="BeginTime", restarts=restarts, **waits)
        return starts(loop.reconcile(requeued_s + 5).changes)

    assert [once_requeued(run, NOW_S + 10 * run) for run in (1, 2, 3)] == [[], [], []]
    slurm.set(5, state="RUNNING", start_s=NOW_S + 160)
    loop.reconcile(NOW_S + 300)
    assert once_requeued(4, NOW_S + 310) == [StartAtOnce(5)]
    assert once_requeued(5, NOW_S + 320) == []


def test_a_delay_that_slurm_does_not_take_for_now_is_not_tried_in_each_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, loop, _plans = resting(tmp_path, monkeypatch)
    slurm.postpones = lambda _change: True
    tried_s = [after_s for after_s in range(0, 600, 15) if starts(loop.reconcile(NOW_S + after_s).changes)]
    assert tried_s == [0, 60, 180, 420]
    slurm.postpones = lambda _change: False
    assert starts(loop.reconcile(NOW_S + 900.0).changes) == [DelayStart(5, int(NOW_S + 900.0 + REST_S))]


def test_a_daemon_knows_the_delays_of_one_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, killed, _plans = resting(tmp_path, monkeypatch)
    killed.reconcile(NOW_S)
    slurm.set(5, eligible_s=NOW_S + REST_S)
    assert starts(Controller(slurm, configured(tmp_path)).reconcile(NOW_S + 15).changes) == []
    wants_it = controller(slurm, tmp_path, monkeypatch, Plan(scores=SCORES))
    assert starts(wants_it.reconcile(NOW_S + 30).changes) == [StartAtOnce(5)]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_delay_whose_renewal_never_came_to_pass_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    """Nor where slurmctld has lost its last seconds: the begin time is an older one of ours then."""
    slurm, loop, plans = resting(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    slurm.set(5, eligible_s=NOW_S + REST_S)
    assert starts(loop.reconcile(NOW_S + 310).changes) == [DelayStart(5, int(NOW_S + 310 + REST_S))]
    slurm.set(5, eligible_s=NOW_S + REST_S)
    if is_killed:
        loop = controller(slurm, tmp_path, monkeypatch, Plan(scores=SCORES))
    else:
        plans(Plan(scores=SCORES))
    assert starts(loop.reconcile(NOW_S + 325).changes) == [StartAtOnce(5)]


def test_a_delay_that_slurm_has_again_after_two_changes_were_lost_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last never came to slurmctld, which then lost its last seconds, and with them that before."""
    slurm, loop, plans = resting(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    for after_s, begin_s, made in ((4, NOW_S + REST_S, Plan(scores=SCORES)), (8, NOW_S + 4, RESTS)):
        slurm.set(5, eligible_s=begin_s)
        plans(made)
        assert len(starts(loop.reconcile(NOW_S + after_s).changes)) == 1
    slurm.set(5, eligible_s=NOW_S + REST_S)
    plans(Plan(scores=SCORES))
    assert starts(loop.reconcile(NOW_S + 12).changes) == [StartAtOnce(5)]


@pytest.mark.parametrize("changed", [{"comment": ""}, {"comment": "explsched:sweep=digits"}, {"gpus": 0}])
def test_who_takes_part_no_more_rests_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    slurm, loop, plans = resting(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    plans(Plan())
    slurm.set(5, eligible_s=NOW_S + REST_S, **changed)
    assert starts(loop.reconcile(NOW_S + 15).changes) == [StartAtOnce(5)]


def test_a_training_that_its_owner_gives_a_deadline_is_delayed_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, loop, _plans = resting(tmp_path, monkeypatch)
    assert starts(loop.reconcile(NOW_S).changes) == [DelayStart(5, int(NOW_S + REST_S))]
    slurm.set(5, eligible_s=NOW_S + REST_S, deadline_s=NOW_S + 1e6)
    assert starts(loop.reconcile(NOW_S + 15).changes) == [StartAtOnce(5)]
    slurm.set(5, eligible_s=NOW_S)
    assert starts(loop.reconcile(NOW_S + 30).changes) == []


def test_a_begin_time_of_its_owner_outlives_a_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `scontrol update StartTime=`: neither a rest nor its end lets the job start sooner."""
    own_s = NOW_S + 250
    slurm, loop, plans = resting(tmp_path, monkeypatch, eligible_s=own_s)
    assert starts(loop.reconcile(NOW_S).changes) == [DelayStart(5, int(NOW_S + REST_S))]
    slurm.set(5, eligible_s=NOW_S + REST_S)
    plans(Plan(scores=SCORES))
    assert not loop.decide(NOW_S + 100).seen.snapshot.jobs[0].eligible
    assert starts(loop.reconcile(NOW_S + 100).changes) == [DelayStart(5, int(own_s))]
    slurm.set(5, eligible_s=own_s)
    assert starts(loop.reconcile(NOW_S + 200).changes) == []


@pytest.mark.parametrize("ahead_s", [60.0, 599.0, 7200.0])
@pytest.mark.parametrize("made", [Plan(scores=SCORES), RESTS])
def test_a_begin_time_that_its_owner_gives_a_resting_job_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_s: float, made: Plan
) -> None:
    slurm, loop, plans = resting(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    slurm.set(5, eligible_s=NOW_S + ahead_s)
    plans(made)
    assert StartAtOnce(5) not in loop.reconcile(NOW_S + 15).changes
    loop.withdraw(NOW_S + 30)
    assert StartAtOnce(5) not in slurm.carried_out


def test_its_rests_count_when_a_training_has_waited_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, loop, plans = resting(tmp_path, monkeypatch)
    loop.reconcile(NOW_S)
    slurm.set(5, eligible_s=NOW_S + REST_S)
    plans(Plan(scores=SCORES))
    assert starts(loop.reconcile(NOW_S + 15).changes) == [StartAtOnce(5)]
    slurm.set(5, eligible_s=NOW_S + 16)
    late_s = NOW_S - 5000 + OrderSection().max_wait_s
    assert starts(loop.reconcile(NOW_S + 30).changes) == []
    assert not loop.decide(late_s - 1).seen.snapshot.jobs[0].is_overdue
    assert loop.decide(late_s + 1).seen.snapshot.jobs[0].is_overdue
    slurm.set(5, eligible_s=None)  # its owner holds it
    assert not loop.decide(late_s + 1).seen.snapshot.jobs[0].is_overdue
    slurm.set(5, eligible_s=late_s + 2)
    assert not loop.decide(late_s + 3).seen.snapshot.jobs[0].is_overdue


def test_a_rest_of_a_daemon_that_was_killed_lapses_or_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, _killed, plans = resting(tmp_path, monkeypatch, eligible_s=NOW_S + 500)
    plans(Plan(scores=SCORES))
    late = Controller(slurm, configured(tmp_path))
    assert starts(late.reconcile(NOW_S).changes) == []
    plans(RESTS)
    late.reconfigure(configured(tmp_path))
    assert starts(late.reconcile(NOW_S + 250).changes) == [DelayStart(5, int(NOW_S + 250 + REST_S))]


@pytest.mark.parametrize("step_s", [-86_400.0, -3600.0, -1.0])
def test_a_clock_that_is_set_back_requeues_nobody_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    slurm = FakeSlurm((holding(5, comment=ELASTIC),))
    daemon = controller(slurm, tmp_path, monkeypatch, resized(5, 2))
    for now_s in (NOW_S, NOW_S + 15, NOW_S + 30 + step_s, NOW_S + 45 + step_s):
        daemon.reconcile(now_s)
    assert slurm.carried_out == [SignalJob(5, "USR1")]
    daemon.reconcile(NOW_S + 121)  # its grace is over by the clock by which it began
    assert RequeueJob(5) in slurm.carried_out


def test_a_job_that_leaves_for_another_is_not_asked_again_to_be_resized() -> None:
    jobs = {n: running(n, "n1") for n in (5, 6)}
    resizes = tuple(Resize(job_id, GpuRequest(2), "grows") for job_id in jobs)
    plan = Plan(preemptions=(Preemption(5, "makes room", 7),), resizes=resizes)
    assert tuple(resized_while_running(plan, jobs)) == (Preemption(6, "grows"),)


def test_where_limits_are_enforced_the_next_waits_until_the_first_has_started(tmp_path: Path) -> None:
    """Not only until the job that made room for it has left."""

    class Enforcing(FakeSlurm):
        def look(self) -> ClusterRecords:
            return replace(super().look(), enforces_limits=True)

    one = {"gpus": 1, "gpus_per_node": 1}
    runs = {"state": "RUNNING", "start_s": 1.0, "priority": 0, "time_limit_s": 90_000.0}
    held = {**one, **runs, "gpu_nodes": (("n1", 1),), "node_names": ("n1",)}
    victims = [record(n, qos="scavenge", comment="explsched:checkpoint=USR1", **held) for n in range(1, 5)]
    full = [holding(10 + n, user="bob", gpu_nodes=((f"n{n}", 4),), node_names=(f"n{n}",), **runs) for n in (2, 3, 4)]
    waits = [
        record(
            20 + n, **one, natives=(500 - n,), priority=500 - n, reason=reason, time_limit_s=60.0, submit_s=100.0 + n
        )
        for n, reason in enumerate(("Resources", "Priority", "Priority"))
    ]
    slurm = Enforcing((*victims, *full, *waits), settings={"SchedulerParameters": "bf_interval=30"})
    rules = OrderSection(site_factor_file=tmp_path / "site_factors.json")
    loop = Controller(slurm, replace(configured(tmp_path), order=rules))
    assert len([one for one in loop.reconcile(NOW_S).changes if isinstance(one, SignalJob)]) == 1
    (gone,) = (one for one in loop.reconcile(NOW_S + 120).changes if isinstance(one, RequeueJob))
    back = {"start_s": None, "restarts": 1, "gpu_nodes": (), "node_names": ()}
    slurm.set(gone.job_id, state="PENDING", submit_s=NOW_S + 130, eligible_s=NOW_S + 251, reason="BeginTime", **back)
    assert not [one for one in loop.reconcile(NOW_S + 140).changes if isinstance(one, SignalJob)]


def array_on_a_lent_place(tmp_path: Path, scope: Any) -> tuple[FakeSlurm, Config, Controller]:
    """A task of array 5 has just started at the place that the array was lent, and its limit lets no other start."""
    waits = {"priority": 500, "natives": (500,), "site_factor": 0, "reason": "Priority"}
    array = {**waits, "array_job_id": 5, "array_tasks": 9, "array_limit": 1}
    long = {**waits, "natives": (900,), "priority": 900, "time_limit_s": 7200.0}
    slurm = FakeSlurm((asking(5, **array, time_limit_s=60.0), asking(6, **long)))
    order = OrderSection(scope=scope, site_factor_file=tmp_path / "site_factors.json")
    config = configured(tmp_path, order=order, policy="srsf")
    daemon = Controller(slurm, config)
    daemon.reconcile(NOW_S)
    given = {change.job_id: change.site_factor for change in slurm.carried_out if isinstance(change, SetSiteFactor)}
    assert given[5] > given.get(6, 0)
    slurm.known[9] = holding(9, array_job_id=5, array_task_id=0, start_s=NOW_S)
    slurm.set(6, site_factor=given.get(6, 0), priority=900 + given.get(6, 0))
    slurm.set(5, site_factor=None, natives=(), array_tasks=8, reason="JobArrayTaskLimit", priority=500 + given[5])
    slurm.carried_out.clear()
    return slurm, config, daemon


@pytest.mark.parametrize("scope", ["user", "account", "partition"])
@pytest.mark.parametrize("restarts", [0, 5])
def test_the_place_that_a_throttled_array_was_lent_is_taken_back_once(
    tmp_path: Path, scope: Any, restarts: int
) -> None:
    """Slurm does not show the array's site factor, and starts its next task at it. In scope `partition` it stays."""
    slurm, config, daemon = array_on_a_lent_place(tmp_path, scope)
    written = []
    for number in range(1, 6):
        daemon = Controller(slurm, config) if number <= restarts else daemon
        slurm.carried_out.clear()
        daemon.reconcile(NOW_S + 5 * number)
        written.append([change for change in slurm.carried_out if isinstance(change, SetSiteFactor)])
        if SetSiteFactor(5, 0) in written[-1] and number < 3:  # Slurm shows it, until it tests it again
            slurm.set(5, site_factor=0, natives=(500,), priority=500, reason="None")
        elif number == 3:
            slurm.set(5, site_factor=None, natives=(), reason="JobArrayTaskLimit")
    of_array = [change for changes in written for change in changes if change.job_id == 5]
    assert of_array == ([] if scope == "partition" else [SetSiteFactor(5, 0)])
    told = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    why = [one["reason"] for one in told if one["job"] == 5 and one["after"] == 0]
    assert len(why) == len(of_array)
    assert all("its array's limit" in reason for reason in why)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_lent_place_is_taken_back_again_if_slurm_did_not_answer(tmp_path: Path, restarts: int) -> None:
    slurm, config, daemon = array_on_a_lent_place(tmp_path, "user")
    slurm.mute = frozenset({"apply"})
    for after_s in (5, 10):
        with pytest.raises(SlurmUnreachableError):
            daemon.reconcile(NOW_S + after_s)
    slurm.mute = frozenset()
    daemon = Controller(slurm, config) if restarts else daemon
    for after_s in (15, 20):
        daemon.reconcile(NOW_S + after_s)
    assert slurm.carried_out.count(SetSiteFactor(5, 0)) == 1
