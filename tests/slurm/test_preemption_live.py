"""Preemption on a real cluster: who yields, what it costs, and that the account of it outlives the daemon."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from explsched.preemption_record import PreemptionRecord, read
from slurm_plugin.client.changes import SetSiteFactor, SignalJob, Unanswered
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from tests.slurm.checkpointing import SCRIPT, UNTIL_REQUEUED, done
from tests.slurm.jobs import a_daemon, command, config, environment, final_state, run, state_of, submit, until

pytestmark = pytest.mark.slurm
GPUS = 8
WHOLE = ("--nodes=2", "--gpus-per-node=4", "--comment=explsched:checkpoint=USR1")
ONE_PREEMPTION = {
    "las": {"limits_gpu_s": [1.0]},
    "utility": {"quantum_s": 1.0},
    "preemption": {"grace_s": 20.0, "max_per_job": 1},
}
ONCE_MORE = f"{UNTIL_REQUEUED} 30"
"""Steps of a training that is preempted at least once, however long that takes."""


def training(cluster: Cluster, directory: Path, spool: Path, *options: str, steps: str = ONCE_MORE) -> int:
    """Submit a training that saves on SIGUSR1; what it does is written to `directory`."""
    directory.mkdir()
    return submit(cluster, "--requeue", *options, script=f"exec bash {SCRIPT} {directory} {spool} {steps}")


def told(cluster: Cluster, config_path: Path) -> dict[int, dict[str, object]]:
    out = run(cluster, command("sexplsched"), "status", "--fresh", "--json", "--config", str(config_path))
    return {row["jobid"]: row for row in json.loads(out)["jobs"]}


def saved(spool: Path, job_id: int) -> dict[int, int]:
    """The step that each run saved when it was asked to."""
    lines = [json.loads(line) for line in (spool / f"{job_id}.jsonl").read_text().splitlines()]
    found: dict[int, int] = {}
    for before, line in pairwise(lines):
        if line.get("event") == "checkpoint":
            found[line["restart"]] = before["step"]
    return found


def check_nothing_is_lost(spool: Path, job_id: int, directory: Path) -> None:
    """Each run must begin where the one before it saved, and no step may be missing."""
    steps = done(directory)
    assert sorted({step for _run, step, *_ in steps}) == list(range(1, steps[-1][1] + 1))
    first = {run_: step for run_, step, *_ in reversed(steps)}
    resumed = {run_ + 1: step + 1 for run_, step in saved(spool, job_id).items()}
    assert first == {0: 1} | {run_: step for run_, step in resumed.items() if run_ in first}
    assert len(first) == max(first) + 1


@pytest.mark.parametrize("policy", ["tiresias", "muri-l"])
def test_two_jobs_swap_by_demotion_and_lose_nothing(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path, policy: str
) -> None:
    """Least attained service: each job falls in rank as it runs, and makes room for the other."""
    sections = {
        "las": {"limits_gpu_s": [3.0 * GPUS, 9.0 * GPUS]},
        "utility": {"quantum_s": 2.0},
        "preemption": {"grace_s": 20.0, "max_per_job_per_hour": 12},
    }
    whole = ("--nodes=2", "--gpus-per-node=4", "--comment=explsched:checkpoint=USR1")
    places = [open_tmp / f"{policy}_{name}" for name in "ab"]
    with a_daemon(small, tmp_path, config(spool, policy, **sections)):
        first = training(small, places[0], spool, *whole)
        until(lambda: state_of(client, first) == "RUNNING", "the first one runs")
        second = training(small, places[1], spool, *whole)
        until(lambda: state_of(client, second) == "RUNNING", "it is demoted and yields to the new one")
    # The daemon is gone; the next one, and every user, knows what has happened.
    row = told(small, tmp_path / "explsched.yaml")[first]
    assert row["preempted"] == 1
    why = run(
        small, command("sexplsched"), "explain", "--fresh", str(first), "--config", str(tmp_path / "explsched.yaml")
    )
    assert "has been preempted once" in why
    assert "gave up 8 GPUs, lost" in why
    if policy == "tiresias":
        assert f"job {second} waits for these GPUs" in why
    with a_daemon(small, tmp_path, config(spool, policy, **sections)):
        until(lambda: state_of(client, first) == "RUNNING", "the second one is demoted and yields, too", 120)
        until(lambda: client.jobs() == (), "both end", 120)
    assert [final_state(small, job) for job in (first, second)] == ["COMPLETED"] * 2
    for job, place in zip((first, second), places, strict=True):
        restarts = int(run(small, "scontrol", "show", "job", str(job), "-o").partition("Restarts=")[2].split()[0])
        assert restarts >= 1
        assert max(done(place))[0] == restarts
        check_nothing_is_lost(spool, job, place)
        account = on_account(small, job)
        assert [(one.run, one.gpus) for one in account.latest] == [(number, GPUS) for number in range(restarts)]


def test_a_task_of_an_array_of_which_others_wait_makes_room(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    with a_daemon(small, tmp_path, config(spool, "tiresias", **ONE_PREEMPTION)):
        array = training(small, open_tmp / "array", spool, *WHOLE, "--array=0-4%1")
        until(lambda: len(done(open_tmp / "array")) > 0, "its first task trains")
        (task,) = (job.job_id for job in client.jobs() if job.state == "RUNNING")
        new = training(small, open_tmp / "beside_array", spool, *WHOLE, steps="5")
        until(lambda: state_of(client, new) == "RUNNING", "the task yields", 120)
    (record,) = (job for job in client.jobs() if job.job_id == task)
    assert (record.array_job_id, record.array_task_id, record.restarts) == (array, 0, 1)
    lines = [json.loads(line) for line in (spool / f"{task}.jsonl").read_text().splitlines()]
    assert [line["restart"] for line in lines if line.get("event") == "checkpoint"] == [0], "it was asked once"


def test_for_an_array_with_a_limit_of_its_own_no_more_jobs_make_room_than_tasks_may_start(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    """Slurm gives it the reason Resources until a task runs, as it does without a limit."""
    half = ("--nodes=1", "--gpus-per-node=4")
    places = [open_tmp / f"beside_{name}" for name in "ab"]
    with a_daemon(small, tmp_path, config(spool, "tiresias", **ONE_PREEMPTION)):
        consent = "--comment=explsched:checkpoint=USR1"
        trainings = [training(small, place, spool, *half, consent, steps="500") for place in places]
        until(lambda: all(len(done(place)) > 0 for place in places), "they train")
        array = submit(small, *half, "--array=0-3%1")

        def waits() -> str:
            return next((job.reason for job in client.jobs() if job.job_id == array), "GONE")

        until(lambda: waits() == "JobArrayTaskLimit", "one task runs", 120)
    assert sum(job.restarts for job in client.jobs() if job.job_id in trainings) == 1
    assert sum(len(saved(spool, job_id)) for job_id in trainings) == 1


def test_a_task_whose_signal_slurm_does_not_answer_stops_no_other_change(
    small: Cluster, client: CliClient, tmp_path: Path
) -> None:
    tool = tmp_path / "scancel"
    tool.write_text("#!/bin/sh\necho 'scancel: error: Unable to contact slurm controller' >&2\n")
    tool.chmod(0o755)
    array, waiting = submit(small, "--array=0-4%1", "--gres=gpu:1"), submit(small, "--nodes=2", "--gpus-per-node=4")
    until(lambda: "RUNNING" in {job.state for job in client.jobs() if job.array_job_id == array}, "a task runs")
    (task,) = (job.job_id for job in client.jobs() if job.array_task_id == 0)
    deaf = CliClient(environment={**small.env(), "PATH": f"{tmp_path}:{environment(small)['PATH']}"})
    deaf.jobs()
    (failure,) = deaf.apply([SignalJob(task, "USR1"), SetSiteFactor(waiting, 7)])
    assert isinstance(failure, Unanswered)
    assert failure.change == SignalJob(task, "USR1")
    assert {job.job_id: job.site_factor for job in client.jobs()}[waiting] == 7


def on_account(cluster: Cluster, job_id: int) -> PreemptionRecord:
    """What stands in slurmctld of an ended job."""
    comment = run(cluster, "scontrol", "show", "job", str(job_id)).partition("AdminComment=")[2].split("\n")[0]
    return read(comment, 0.0, restarts=1000)


def test_a_requeued_job_keeps_its_place(small: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    """Slurm dates a requeued job anew; its first submission is in its account."""
    path = tmp_path / "explsched.yaml"
    path.write_text(config(spool, "fifo"))
    whole = ("--requeue", "--nodes=2", "--gpus-per-node=4")
    first = submit(small, *whole, "--comment=explsched:checkpoint=USR1")
    until(lambda: state_of(client, first) == "RUNNING", "the first one runs")
    submitted_s = next(job.submit_s for job in client.jobs())
    others = [submit(small, *whole) for _ in range(2)]
    past = f"since={submitted_s:.0f}&n=0&lost=0&p=0,{submitted_s:.0f},8,40,because"
    comment = f"AdminComment=of the site explsched-preemption:{past}"
    run(small, "scontrol", "update", f"JobId={first}", comment)
    holder = submit(small, *whole, "--priority=4000000000")  # keeps the cluster, so that all of them wait
    run(small, "scontrol", stdin=f"requeue Incomplete {first}\n")
    until(lambda: state_of(client, holder) == "RUNNING", "somebody else has the cluster")
    until(lambda: state_of(client, first) == "PENDING", "the first one waits again")
    run(small, "scontrol", "update", f"JobId={first}", "StartTime=now")
    record = next(job for job in client.jobs() if job.job_id == first)
    assert record.submit_s > submitted_s
    run(small, command("sexplschedd"), "--once", "--config", str(path))
    ranked = sorted((job for job in client.jobs() if job.state == "PENDING"), key=lambda job: -job.priority)
    assert [job.job_id for job in ranked] == [first, *others]
    assert told(small, path)[first]["lost_gpu_s"] == 40.0
    assert record.admin_comment.startswith("of the site explsched-preemption:")


def test_a_job_that_was_preempted_often_is_left_alone(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    with a_daemon(small, tmp_path, config(spool, "tiresias", **ONE_PREEMPTION)):
        often = training(small, open_tmp / "often", spool, *WHOLE)
        until(lambda: state_of(client, often) == "RUNNING", "it runs")
        new = training(small, open_tmp / "new", spool, *WHOLE, steps="5")
        until(lambda: state_of(client, new) == "RUNNING", "it yields once")
        until(lambda: final_state(small, new) == "COMPLETED", "the new one ends")
        until(lambda: state_of(client, often) == "RUNNING", "it runs again")
        another = training(small, open_tmp / "another", spool, *WHOLE, steps="5")
        until(lambda: final_state(small, often) == "COMPLETED", "it is not preempted again", 120)
        until(lambda: final_state(small, another) == "COMPLETED", "the others come after it")
    assert "Restarts=1" in run(small, "scontrol", "show", "job", str(often))
