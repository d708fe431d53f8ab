"""Sweeps on a real cluster: what our own writes hide, and a daemon that is killed again and again."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from explsched.preemption_record import Interruption, PreemptionRecord
from slurm_plugin.client.changes import SetAdminComment, SetSiteFactor
from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import load
from slurm_plugin.devcluster import Cluster
from slurm_plugin.observation.sweep_record import read
from slurm_plugin.steering.controller import Controller
from tests.slurm.checkpointing import SCRIPT, UNTIL_REQUEUED, done
from tests.slurm.jobs import (
    a_daemon,
    command,
    config,
    final_state,
    run,
    start_again,
    start_daemon,
    state_of,
    submit,
    until,
)

pytestmark = pytest.mark.slurm
SWEEP = ("--gres=gpu:1", "--requeue", "--comment=explsched:sweep=s&checkpoint=USR1")


def test_a_job_whose_site_factor_was_just_written_may_still_displace_others(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    full = submit(small, "--nodes=2", "--gpus-per-node=4")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    waiting = [submit(small, *SWEEP) for _ in range(4)]

    def reasons() -> set[str]:
        return {job.reason for job in client.jobs() if job.job_id in waiting}

    until(lambda: reasons() <= {"Resources", "Priority"}, "Slurm says that all wait for room")
    path = tmp_path / "explsched.yaml"
    path.write_text(config(spool))
    loop = Controller(client, load(path))
    done = loop.reconcile(time.time())
    written = {change.job_id for change in done.changes if isinstance(change, SetSiteFactor)}
    assert written
    assert "None" in reasons()
    assert all(job.may_displace for job in loop.decide(time.time()).seen.snapshot.jobs if job.job_id in waiting)


def test_a_saved_job_makes_room_at_once_however_long_the_interval_is(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    """If the next pass were waited for, this test would run out of patience."""
    work = open_tmp / "saved"
    work.mkdir()
    script = f"FLOOR=1000 exec bash {SCRIPT} {work} {spool} {UNTIL_REQUEUED}"
    flat = submit(small, "--nodes=2", "--gpus-per-node=4", *SWEEP[1:], script=script)
    until(lambda: len(done(work)) > 20, "the first training has a curve")
    untried = submit(small, *SWEEP)
    until(lambda: any(j.reason == "Resources" for j in client.jobs()), "Slurm says that the other one waits for room")
    sections = {"utility": {"quantum_s": 1.0, "objective": "total"}, "preemption": {"grace_s": 3000.0}}
    with a_daemon(small, tmp_path, config(spool, **{"interval_s": 100.0, **sections})):
        until(lambda: state_of(client, untried) == "RUNNING", "the untried one has its GPUs")
    assert state_of(client, flat) == "PENDING"


def test_who_rests_is_not_started_on_idle_gpus_while_a_daemon_runs(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    """Slurm starts whatever fits, however low its place is; ASHA lets one of four go on.

    The best reports before the others do: if these were seen without it, one of them would be promoted, and stay so.
    All have run past the rung when they are compared. Seen alone the best pauses, and comes back.
    """
    told = tmp_path / "the-best-has-reported"
    report = f"trap '' USR1; EXPLSCHED_SPOOL={spool} {command('sxreport')} --total-steps 27"
    after_it = f"until [ -e {told} ]; do sleep 0.1; done"

    def script(place: int) -> str:
        both = f"{report} --step 1 --loss 0.{place}; {report} --step 2 --loss -{place}"
        return f"{both}; touch {told}; sleep 600" if place == 1 else f"{after_it}; {both}; sleep 600"

    def delayed() -> list[int]:
        later_s = time.time() + 200.0  # than Slurm's own delay
        return [job.job_id for job in client.jobs() if job.state == "PENDING" and (job.eligible_s or 0.0) > later_s]

    text = config(spool, utility={"quantum_s": 1.0, "sweep_strategy": "asha"}, preemption={"grace_s": 1.0})
    with a_daemon(small, tmp_path, text) as daemon:
        until(lambda: passes(tmp_path / "log") > 0, "the daemon has made a pass")
        best, *others = [submit(small, *SWEEP, script=script(place)) for place in range(1, 5)]
        until(lambda: set(delayed()) == set(others), "three of them rest")
        until(lambda: state_of(client, best) == "RUNNING", "the best one goes on")
        leaves, later, *_ = sorted(delayed())
        why = run(small, command("sexplsched"), "explain", str(leaves), "--config", str(tmp_path / "explsched.yaml"))
        assert "Its sweep keeps it paused, also while GPUs are idle" in why
        run(small, "scontrol", "update", f"JobId={leaves}", "Comment=")  # as explain says
        until(lambda: state_of(client, leaves) == "RUNNING", "who has left the sweep goes on")
        own = f"uts{time.time() + 1500.0:.0f}"
        run(small, "scontrol", "update", f"JobId={later}", f"StartTime={own}")
        daemon.terminate()
        assert daemon.wait(60) == 0
    free = {best, *others} - {later}
    until(lambda: all(state_of(client, job_id) == "RUNNING" for job_id in free), "without the daemon all go on")
    assert delayed() == [later]  # its owner has put it off himself


STEPS = 40


def training(cluster: Cluster, directory: Path, spool: Path, number: int, hold: Path = Path("none")) -> int:
    """Submit a training of a sweep that does not end while `hold` is there; one in eight is far better than others."""
    directory.mkdir()
    floor = 100 if number % 8 == 5 else 1000 * (number + 1)
    options = ("--gres=gpu:1", "--requeue", "--comment=explsched:sweep=s&checkpoint=USR1&early-stop=1")
    sxrun = f"EXPLSCHED_SPOOL={spool} FLOOR={floor} HOLD={hold} exec {command('sxrun')}"
    script = f"{sxrun} -- bash {SCRIPT} {directory} {spool} {STEPS}"
    return submit(cluster, *options, script=script)


def preempted(run: int) -> str:
    """What the daemon writes into Slurm when it ends a run."""
    return PreemptionRecord(0.0).plus(Interruption(run, time.time(), 1, 0.0, "a test")).text()


def test_a_training_that_is_requeued_when_its_work_is_done_ends_at_once(
    small: Cluster, client: CliClient, spool: Path, open_tmp: Path
) -> None:
    """Slurm requeues a job that has ended just so; of the two only one was requeued by the daemon."""
    done_by_daemon, by_hand = (open_tmp / name for name in ("by-daemon", "by-hand"))
    jobs = [training(small, directory, spool, 0) for directory in (done_by_daemon, by_hand)]
    until(lambda: len(done(done_by_daemon)) > STEPS // 2, "the first is underway")
    assert client.apply([SetAdminComment(jobs[0], preempted(0))]) == ()
    until(lambda: not client.jobs(), "both have ended")
    before = [len(done(directory)) for directory in (done_by_daemon, by_hand)]
    for job_id in jobs:
        run(small, "scontrol", "requeue", str(job_id))
        start_again(client, job_id)
    until(lambda: [final_state(small, job_id) for job_id in jobs] == ["COMPLETED"] * 2, "both have ended again")
    until(lambda: not client.jobs(), "both have ended again")
    assert len(done(done_by_daemon)) == before[0]
    assert len(done(by_hand)) > before[1]


def passes(log: Path) -> int:
    return log.read_text().count(" pass ") if log.exists() else 0


def check_ran_once(spool: Path, directory: Path, job_id: int) -> None:
    """No step is missing, each run goes on from what the one before it had saved, and none repeats finished work."""
    steps = [(run, step) for run, step, *_ in done(directory)]
    assert sorted({step for _, step in steps}) == list(range(1, STEPS + 1))
    lines = [json.loads(line) for line in (spool / f"{job_id}.jsonl").read_text().splitlines()]
    # A run that is told to end just when its work is done counts as interrupted, and the next one repeats its end.
    ended_well = [line["restart"] for line in lines if line.get("event") == "end" and line.get("status") == 0]
    assert max(run for run, _ in steps) <= min(ended_well)
    saved: dict[int, int] = {}
    for before, line in pairwise(lines):
        if line.get("event") == "checkpoint":
            saved[line["restart"]] = before["step"]
    for one in {one for one, _ in steps if one > 0}:
        first = next(step for found, step in steps if found == one)
        assert first == 1 + max((step for earlier, step in saved.items() if earlier < one), default=0)


def test_a_daemon_that_is_killed_again_and_again_loses_no_training(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path, kills: int
) -> None:
    draw = random.Random(1)
    work = open_tmp / "killed"
    work.mkdir()
    hold = open_tmp / "hold"  # on a busy machine all would have ended before a daemon has lived long enough to steer
    hold.touch()
    jobs = [training(small, work / str(number), spool, number, hold) for number in range(16 + 2 * kills)]
    sections = {"utility": {"quantum_s": 2.0}, "preemption": {"grace_s": 10.0, "max_per_hour": 1000}}
    told = config(spool, **sections)
    log = tmp_path / "log"
    for number in range(kills):
        before = passes(log)
        daemon = start_daemon(small, tmp_path, told)
        if number % 2:  # every second one dies later than while it starts
            until(lambda before=before: passes(log) > before, "the daemon has made a pass")  # type: ignore[misc]
        time.sleep(draw.uniform(0.0, 4.0))
        daemon.kill()
        daemon.wait()
        if log.exists() and "RequeueJob" in log.read_text():
            hold.unlink(missing_ok=True)
    hold.unlink(missing_ok=True)
    assert "Held" not in " ".join(job.reason for job in client.jobs())
    assert "RequeueJob" in log.read_text()
    # Who is killed right after a stop has not noted it.
    unnoted = {job_id for job_id in jobs if final_state(small, job_id) in ("CANCELLED", "COMPLETING")}
    with a_daemon(small, tmp_path, told):
        until(lambda: not client.jobs(), "all trainings have ended", patience_s=240.0)
    ends = {job_id: final_state(small, job_id) for job_id in jobs}
    stopped = {note.job for note in read(spool) if note.what == "stopped"}
    assert {job_id for job_id, state in ends.items() if state == "CANCELLED"} <= stopped | unnoted
    assert set(ends.values()) <= {"COMPLETED", "CANCELLED"}
    completed = [(number, job_id) for number, job_id in enumerate(jobs) if ends[job_id] == "COMPLETED"]
    assert completed
    for number, job_id in completed:
        check_ran_once(spool, work / str(number), job_id)
    assert client.reservations() == ()
