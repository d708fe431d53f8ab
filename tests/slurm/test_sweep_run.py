"""A search on a real Slurm: it goes on by itself, and kills at any moment lose no trial and run none twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from explsched.preemption_record import Interruption, PreemptionRecord
from slurm_plugin.client.changes import SetAdminComment, StartAtOnce
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import environment, run, start_again, until

pytest.importorskip("optuna", reason="Optuna is not installed (explsched[optuna])")
pytestmark = pytest.mark.slurm

# A line for each start, so that it can be counted; a value that depends on lr.
TRAINING = """\
echo "$SLURM_JOB_ID $*" >> started
for word in "$@"; do case $word in --lr=*) lr=${word#--lr=};; esac; done
sxreport --step 1 --loss "$lr" --total-steps 1
sleep 1.5
"""


def search(directory: Path, spool: Path, cluster: Cluster, *, trials: int, parallel: int, **job: object) -> list[str]:
    """The files of a search; returns the command of a pass."""
    (directory / "train.sh").write_text(TRAINING)
    config = directory / "explsched.yaml"
    config.write_text(json.dumps({"progress": {"spool": str(spool)}}))
    told = {
        "name": "searched",
        "command": ["bash", "train.sh"],
        "space": {"lr": {"low": 0.001, "high": 1.0, "log": True}, "opt": {"values": ["sgd", "adam"]}},
        "budget": {"trials": trials},
        "parallel": parallel,
        "job": {"time": "5", **job},
    }
    (directory / "sweep.yaml").write_text(json.dumps(told))
    argv = [sys.executable, "-m", "explsched.cli", "sweep", "run", str(directory / "sweep.yaml")]
    return [*argv, "--config", str(config), "--json"]


def began(directory: Path) -> list[str]:
    path = directory / "started"
    return [" ".join(line.split()[1:]) for line in path.read_text().splitlines()] if path.exists() else []


def in_cluster(cluster: Cluster, spool: Path) -> dict[str, str]:
    bin_directory = str(Path(sys.executable).parent)
    base = environment(cluster, EXPLSCHED_SPOOL=str(spool))
    return {**base, "PATH": f"{bin_directory}:{base['PATH']}"}


def passed(argv: list[str], env: dict[str, str], where: Path | None = None) -> dict[str, object]:
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=where)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_search_goes_on_without_us(client: CliClient, small: Cluster, spool: Path, tmp_path: Path) -> None:
    argv, env = search(tmp_path, spool, small, trials=5, parallel=2), in_cluster(small, spool)
    first = passed(argv, env, tmp_path)
    assert (first["under_way"], first["finished"]) == (2, False)
    until(lambda: len(began(tmp_path)) == 5 and not client.jobs(), "Slurm has made the passes that begin all trials")
    last = passed(argv, env)
    assert (last["ended"], last["failed"], last["finished"]) == (5, 0, True)
    results = [json.loads(path.read_text()) for path in (tmp_path / "searched.sweep/trials").glob("*/result")]
    ran_s = {result["job"]: client.run_time_s(result["job"]) for result in results}
    assert all(ran_s.values())
    assert {result["job"]: result["gpu_h"] * 3600 for result in results} == pytest.approx(ran_s)
    tried = [float(line.split("--lr=")[1].split()[0]) for line in began(tmp_path)]
    assert last["best"] == pytest.approx(min(tried))
    shown = subprocess.run(
        [*argv[:4], "show", "searched", "--json", "--config", argv[-2]],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = json.loads(shown.stdout)["sweeps"]
    assert {training["state"] for training in found["trainings"]} == {"done"}
    assert all(dict(training["params"])["lr"] in tried for training in found["trainings"])


@contextmanager
def no_place(cluster: Cluster, _directory: Path) -> Iterator[None]:
    """Slurm lets nothing at all be submitted, as at a limit of its user's."""
    run(cluster, "scontrol", "update", "PartitionName=main", "State=DRAIN")
    try:
        yield
    finally:
        run(cluster, "scontrol", "update", "PartitionName=main", "State=UP")


@contextmanager
def no_file(_cluster: Cluster, directory: Path) -> Iterator[None]:
    """The search's file is away."""
    away = (directory / "sweep.yaml").rename(directory / "away.yaml")
    yield
    away.rename(directory / "sweep.yaml")


@pytest.mark.parametrize("fault", [no_place, no_file])
def test_a_search_goes_on_once_a_fault_is_over(
    client: CliClient,
    small: Cluster,
    spool: Path,
    tmp_path: Path,
    fault: Callable[[Cluster, Path], AbstractContextManager[None]],
) -> None:
    """A pass that can do nothing, and leave no other, leaves itself behind."""
    argv, env = search(tmp_path, spool, small, trials=2, parallel=1), in_cluster(small, spool)
    passed(argv, env, tmp_path)
    with fault(small, tmp_path):
        until(
            lambda: any(job.restarts == 1 and job.state == "PENDING" for job in client.jobs()), "the pass is requeued"
        )
        (waits,) = client.jobs()
    start_again(client, waits.job_id)
    until(lambda: len(began(tmp_path)) == 2 and not client.jobs(), "the requeued pass has begun the second trial")
    assert "this pass is repeated" in (tmp_path / "searched.sweep/passes.log").read_text()
    assert passed(argv, env)["finished"]


def test_a_trial_that_is_paused_leaves_its_place_before_any_ends(
    client: CliClient, small: Cluster, spool: Path, tmp_path: Path
) -> None:
    """Slurm starts no pass for that; and none is left that could begin a trial once the user has cancelled them."""
    argv, env = search(tmp_path, spool, small, trials=9, parallel=1, checkpoint="USR1"), in_cluster(small, spool)
    (tmp_path / "train.sh").write_text('echo "$*" >> started; sleep 600')
    passed(argv, env, tmp_path)
    until(lambda: len(began(tmp_path)) == 1, "the first trial runs")
    (trial,) = (job for job in client.jobs() if job.state == "RUNNING")
    run(small, "scontrol", "requeue", str(trial.job_id))
    (again,) = (job for job in client.jobs() if job.job_id == trial.job_id)
    text = PreemptionRecord(again.submit_s).plus(Interruption(0, time.time(), 1, 0.0)).text()
    assert client.apply([SetAdminComment(trial.job_id, text)]) == ()

    def of_passes() -> list[SlurmJob]:
        return [job for job in client.jobs() if job.comment.startswith("explsched-next:") and job.state == "PENDING"]

    (look,) = (job for job in of_passes() if job.reason != "Dependency")
    assert client.apply([StartAtOnce(look.job_id)]) == ()
    until(lambda: len(began(tmp_path)) == 2, "another trial has the place of the paused one")
    until(lambda: not {look.job_id} & {job.job_id for job in client.jobs()}, "the look is over")
    assert len(of_passes()) == 1, "no more trials have room, and the next pass is that at the end of one"
    run(small, "scancel", "--name=searched-next")
    assert not of_passes()


def test_killed_at_any_moment_no_trial_is_lost_or_run_twice(
    client: CliClient, small: Cluster, spool: Path, tmp_path: Path, kills: int
) -> None:
    draw, trials = random.Random(1), 4 + kills
    argv, env = search(tmp_path, spool, small, trials=trials, parallel=4), in_cluster(small, spool)
    for _ in range(kills):
        process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
        time.sleep(draw.uniform(0.3, 4.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    standing = passed([*argv, "--wait"], env, tmp_path)
    assert (standing["ended"], standing["failed"], standing["finished"]) == (trials, 0, True)
    directories = tmp_path / "searched.sweep" / "trials"
    results = [json.loads(path.read_text()) for path in directories.glob("*/result")]
    assert len({result["job"] for result in results}) == len(results) == trials
    assert len(began(tmp_path)) == len(set(began(tmp_path))) == trials
