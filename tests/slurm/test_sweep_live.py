"""Sweeps on a real cluster: what our own writes hide, and a daemon that is killed again and again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import load
from slurm_plugin.devcluster import Cluster
from slurm_plugin.steering.controller import Controller
from tests.slurm.jobs import config, state_of, submit, until

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
