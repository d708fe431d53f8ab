"""Templates on a real cluster: a job that is preempted in the middle ends with the loss of one that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import RequeueJob, SignalJob, StartAtOnce
from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import command, empty, environment, final_state, state_of, until

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]
STEPS = 200


def start(cluster: Cluster, template: str, directory: Path) -> int:
    """Submit the training as a user would, through sxbatch and the template."""
    directory.mkdir()
    more = {
        "EXPLSCHED_SPOOL": str(directory),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{environment(cluster)['PATH']}",
    }
    training = [str(ROOT / "tests" / "slurm" / "distributed_training.py"), str(directory), str(STEPS)]
    argv = [command("sxbatch"), "--json", "--checkpoint=USR1", f"--template={template}", "--param=nodes=2"]
    argv += ["--param=gpus=1", f"--output={directory}/out", "--", *training]
    done = subprocess.run(argv, env=environment(cluster, **more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    job_id: int = json.loads(done.stdout)["job_id"]
    return job_id


def records(directory: Path, job_id: int) -> list[dict[str, object]]:
    spool = directory / f"{job_id}.jsonl"
    return [json.loads(line) for line in spool.read_text().splitlines()] if spool.exists() else []


def steps(directory: Path, job_id: int) -> int:
    return max((int(str(record["step"])) for record in records(directory, job_id) if "metric" in record), default=0)


def ended(cluster: Cluster, directory: Path, job_id: int) -> tuple[float, int]:
    """Final loss of the job, and the step at which its last run began."""
    client = CliClient(environment=cluster.env())
    until(lambda: state_of(client, job_id) == "GONE", "the job ends", patience_s=120)
    out = (directory / "out").read_text()
    assert final_state(cluster, job_id) == "COMPLETED", out
    loss, began = (directory / "result").read_text().splitlines()[-1].split()
    return float(loss), int(began)


@pytest.mark.parametrize("template", ["torchrun"])
def test_a_preempted_job_loses_nothing_since_its_checkpoint(cluster: Cluster, open_tmp: Path, template: str) -> None:
    if find_spec("torch") is None:
        pytest.skip("distributed training needs PyTorch (extra `demo`)")
    client = CliClient(environment=cluster.env())
    undisturbed = open_tmp / f"{template}_undisturbed"
    expected, _ = ended(cluster, undisturbed, start(cluster, template, undisturbed))
    preempted = open_tmp / f"{template}_preempted"
    job_id = start(cluster, template, preempted)
    until(lambda: steps(preempted, job_id) >= STEPS // 4, "a quarter is done", patience_s=120)
    assert client.apply([SignalJob(job_id, "USR1")]) == ()
    until(lambda: any(r.get("event") == "checkpoint" for r in records(preempted, job_id)), "the checkpoint is saved")
    saved = next(int(str(r["step"])) for r in records(preempted, job_id) if r.get("event") == "checkpoint")
    assert client.apply([RequeueJob(job_id)]) == ()
    until(lambda: state_of(client, job_id) == "PENDING", "the job waits again")
    assert client.apply([StartAtOnce(job_id)]) == ()
    loss, began = ended(cluster, preempted, job_id)
    assert STEPS // 4 <= began == saved < STEPS
    assert loss == expected
    empty(cluster)
