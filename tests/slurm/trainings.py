"""Submits trainings through sxbatch and a template, and preempts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_plugin.client.changes import RequeueJob, SignalJob
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import ROOT, command, empty, environment, final_state, start_again, state_of, until

STEPS = 200


def submit(
    cluster: Cluster,
    directory: Path,
    template: str,
    options: Sequence[str],
    training: Sequence[str],
    python: Path = Path(sys.executable),
) -> int:
    """Submit the training as a user of this Python would, through sxbatch and the template."""
    directory.mkdir()
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {
        "EXPLSCHED_SPOOL": str(directory),
        "PYTHONPATH": ":".join(path),
        "PATH": f"{python.parent}:{environment(cluster)['PATH']}",
        "TMPDIR": str(directory),  # torchrun leaves a directory of logs behind
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


def loses_nothing_when_preempted(
    cluster: Cluster, directory: Path, template: str, training: Sequence[str], python: Path = Path(sys.executable)
) -> None:
    """Run a training on two nodes undisturbed and preempted: it goes on from its checkpoint to the same loss."""
    client = CliClient(environment=cluster.env())
    undisturbed, preempted = directory / f"{template}_undisturbed", directory / f"{template}_preempted"
    job_id = submit(cluster, undisturbed, template, ["--param=nodes=2"], training, python)
    expected, _ = ended(cluster, undisturbed, job_id, undisturbed / "result")
    job_id = submit(cluster, preempted, template, ["--param=nodes=2"], training, python)
    saved = interrupt(client, preempted, job_id)
    loss, began = ended(cluster, preempted, job_id, preempted / "result")
    assert STEPS // 4 <= began == saved < STEPS
    assert loss == expected
    empty(cluster)
