"""What is none of ours is left to Slurm: on a real cluster, under a daemon that steers all partitions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import command, config, environment, run, state_of, submit, until

pytestmark = pytest.mark.slurm


def test_jobs_without_gpus_keep_slurms_order(small: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    full = submit(small, "--nodes=2", "--exclusive", "--gpus-per-node=4")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    without = [submit(small, "--comment=explsched:sweep=x&checkpoint=USR1") for _ in range(2)]
    with_gpu = submit(small, "--gpus=1")
    path = tmp_path / "explsched.yaml"
    path.write_text(config(spool, "srsf"))
    run(small, command("sexplschedd"), "--once", "--config", str(path))
    factors = {job.job_id: job.site_factor for job in client.jobs()}
    assert [factors[job] for job in without] == [0, 0]
    assert factors[with_gpu] not in (None, 0)
    argv = [command("sexplsched"), "explain", str(without[0]), "--config", str(path)]
    told = subprocess.run(argv, env=environment(small), capture_output=True, text=True, check=False)
    assert f"job {without[0]} asks for no GPUs, so it is left to Slurm, which says: " in told.stderr
