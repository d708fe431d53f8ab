"""Templates on a real cluster: a job that is preempted in the middle ends with the loss of one that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from slurm_plugin.client.changes import RequeueJob, SignalJob
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import command, empty, environment, final_state, start_again, state_of, until

pytestmark = pytest.mark.slurm
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STEPS = 200
TRAINING = str(HERE / "distributed_training.py")
TEMPLATES = {  # template -> what it needs, and the words of its command in front of the training's own
    "torchrun": ("torch", [TRAINING]),
    "deepspeed": ("deepspeed", [TRAINING]),
    "horovod": ("horovod", ["python", str(HERE / "horovod_training.py")]),
}


def submit(cluster: Cluster, directory: Path, template: str, options: Sequence[str], training: Sequence[str]) -> int:
    """Submit the training as a user would, through sxbatch and the template."""
    directory.mkdir()
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {
        "EXPLSCHED_SPOOL": str(directory),
        "PYTHONPATH": ":".join(path),
        "PATH": f"{Path(sys.executable).parent}:{environment(cluster)['PATH']}",
        "DS_ACCELERATOR": "cpu",  # DeepSpeed would look for a GPU
    }
    argv = [command("sxbatch"), "--json", "--checkpoint=USR1", f"--template={template}", "--param=gpus=1", *options]
    argv += [f"--output={directory}/out-%j", "--open-mode=append", "--", *training, str(directory), str(STEPS)]
    done = subprocess.run(argv, env=environment(cluster, **more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job_id: int = json.loads(done.stdout)["job_id"]
    return job_id


def records(directory: Path, job_id: int) -> list[dict[str, object]]:
    spool = directory / f"{job_id}.jsonl"
    return [json.loads(line) for line in spool.read_text().splitlines()] if spool.exists() else []


def steps(directory: Path, job_id: int) -> int:
    return max((int(str(record["step"])) for record in records(directory, job_id) if "metric" in record), default=0)


def interrupt(client: CliClient, directory: Path, job_id: int) -> int:
    """Preempt a job when a quarter is done: signal, checkpoint, requeue. Returns the step that it saved."""
    until(lambda: steps(directory, job_id) >= STEPS // 4, "a quarter is done", patience_s=120)
    assert client.apply([SignalJob(job_id, "USR1")]) == ()
    until(lambda: any(r.get("event") == "checkpoint" for r in records(directory, job_id)), "the checkpoint is saved")
    saved = next(int(str(r["step"])) for r in records(directory, job_id) if r.get("event") == "checkpoint")
    assert client.apply([RequeueJob(job_id)]) == ()
    start_again(client, job_id)
    return saved


def ended(cluster: Cluster, directory: Path, job_id: int, result: Path) -> tuple[float, int]:
    """Final loss of the job, and the step at which its last run began."""
    client = CliClient(environment=cluster.env())
    until(lambda: state_of(client, job_id) == "GONE", "the job ends", patience_s=120)
    assert final_state(cluster, job_id) == "COMPLETED", (directory / f"out-{job_id}").read_text()
    loss, began = result.read_text().splitlines()[-1].split()
    return float(loss), int(began)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_preempted_job_loses_nothing_since_its_checkpoint(cluster: Cluster, open_tmp: Path, template: str) -> None:
    needed, training = TEMPLATES[template]
    if find_spec("torch") is None or find_spec(needed) is None:
        pytest.skip(f"this training needs PyTorch (extra `demo`) and {needed}")
    client = CliClient(environment=cluster.env())
    undisturbed = open_tmp / f"{template}_undisturbed"
    job_id = submit(cluster, undisturbed, template, ["--param=nodes=2"], training)
    expected, _ = ended(cluster, undisturbed, job_id, undisturbed / "result")
    preempted = open_tmp / f"{template}_preempted"
    job_id = submit(cluster, preempted, template, ["--param=nodes=2"], training)
    saved = interrupt(client, preempted, job_id)
    loss, began = ended(cluster, preempted, job_id, preempted / "result")
    assert STEPS // 4 <= began == saved < STEPS
    assert loss == expected
    empty(cluster)


def test_a_preempted_task_of_a_sweep_gets_its_combination_again(cluster: Cluster, open_tmp: Path) -> None:
    """Two tasks, each on a node of its own; one is preempted, the other goes on undisturbed."""
    if find_spec("torch") is None:
        pytest.skip("the training needs PyTorch (extra `demo`)")
    client = CliClient(environment=cluster.env())
    found: list[list[tuple[float, int]]] = []
    saved = 0
    for name in ("undisturbed", "preempted"):
        directory = open_tmp / f"sweep_{name}"
        options = ["--param-grid=lr=0.05,0.2", "--exclusive"]
        array = submit(cluster, directory, "sweep", options, ["python", TRAINING])
        until(lambda array=array: len(tasks(client, array)) == 2, "both tasks run")  # type: ignore[misc]
        of_task = tasks(client, array)
        if name == "preempted":
            saved = interrupt(client, directory, of_task[0])
        found.append([ended(cluster, directory, of_task[i], directory / str(i) / "result") for i in range(2)])
    (first, second), (first_again, second_again) = found
    assert first[0] != second[0]
    assert first_again == (first[0], saved)
    assert second_again == second
    empty(cluster)


def tasks(client: CliClient, array: int) -> dict[int, int]:
    """Job ids of an array's running tasks, by their number."""
    running = [job for job in client.jobs() if job.array_job_id == array and job.state == "RUNNING"]
    return {job.array_task_id: job.job_id for job in running if job.array_task_id is not None}
