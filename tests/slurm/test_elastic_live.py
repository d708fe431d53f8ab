"""Elastic jobs on a real cluster: they start smaller where GPUs are scarce, and grow when GPUs lie idle."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_plugin.client.changes import ChangeFailure, SetGres, SetNodeCount
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from slurm_plugin.steering.reconcile import restored
from tests.slurm import jobs
from tests.slurm.checkpointing import SCRIPT, UNTIL_REQUEUED, done
from tests.slurm.jobs import a_daemon, environment, final_state, run, state_of, submit, sxbatch, until

pytestmark = pytest.mark.slurm


def config(spool: Path) -> str:
    """Nobody waits long for a larger size."""
    sections = {"utility": {"quantum_s": 2.0}, "preemption": {"grace_s": 20.0}, "elastic": {"restart_s": 1.0}}
    return jobs.config(spool, "fifo", **sections)


def test_it_starts_smaller_and_grows_by_a_requeue(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    blocker = submit(small, "--nodes=2", "--gpus-per-node=3")
    until(lambda: state_of(client, blocker) == "RUNNING", "6 of 8 GPUs are taken")
    place = open_tmp / "grows"
    place.mkdir()
    words = ("--elastic=1-4", "--checkpoint=USR1", "--gpus-per-node=4", f"--output={place}/out")
    job_id = sxbatch(small, *words, str(SCRIPT), str(place), str(spool), str(UNTIL_REQUEUED), "30")
    with a_daemon(small, tmp_path, config(spool)):
        until(lambda: state_of(client, job_id) == "RUNNING", "it starts with what there is")
        until(lambda: len(done(place)) > 5, "it works")
        run(small, "scancel", str(blocker))
        until(lambda: final_state(small, job_id) == "COMPLETED", "it grows and ends", 180)
    steps = done(place)
    assert sorted({step for _run, step, *_ in steps}) == list(range(1, steps[-1][1] + 1))
    assert list(dict.fromkeys((number, gpus) for number, _step, gpus, _nodes in steps)) == [(0, 1), (1, 4)]
    log = (tmp_path / "log").read_text()
    assert "no job waits for them" in log
    shown = run(small, "scontrol", "show", "job", str(job_id))
    assert "Restarts=1" in shown
    assert "AdminComment=explsched-preemption:" in shown


def test_it_grows_by_nodes_and_its_steps_know(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    """srun inside the job starts one task per node of the present size, with that node's GPUs."""
    place = open_tmp / "nodes"
    place.mkdir()
    script = place / "job.sh"
    count = f"srun bash -c 'echo $SLURM_GPUS_ON_NODE' >> {place}/ranks; echo run >> {place}/ranks"
    script.write_text(
        f'#!/bin/bash\nexec sxrun -- bash -c "{count}; exec bash {SCRIPT} {place} {spool} {UNTIL_REQUEUED} 30"\n'
    )
    words = ("--elastic=2-4/2", "--checkpoint=USR1", "--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=2")
    until_free = f"until [ -e {place}/free ]; do sleep 0.1; done"
    with_others = submit(small, "--nodes=2", "--gpus-per-node=1", script=until_free)
    blocker = submit(small, "--nodes=1", "--gpus-per-node=3", script=until_free)
    until(lambda: state_of(client, blocker) == "RUNNING", "there is no room on two nodes")
    job_id = sxbatch(small, *words, f"--output={place}/out", str(script))
    with a_daemon(small, tmp_path, config(spool)):
        until(lambda: len(done(place)) > 0, "it works on one node")
        (place / "free").touch()
        until(lambda: final_state(small, job_id) == "COMPLETED", "it grows and ends", 180)
    assert final_state(small, with_others) == "COMPLETED"
    steps = done(place)
    assert sorted({step for _run, step, *_ in steps}) == list(range(1, steps[-1][1] + 1))
    assert list(dict.fromkeys((number, nodes, gpus) for number, _step, gpus, nodes in steps)) == [(0, 1, 2), (1, 2, 2)]
    assert (place / "ranks").read_text().split() == ["2", "run", "2", "2", "run"]


def test_it_saves_before_a_time_limit_meant_for_more_gpus_ends_it(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    """It runs with one GPU, cannot grow because somebody waits, and needs longer than its limit of a minute."""
    blocker = submit(small, "--nodes=2", "--gpus-per-node=3", "--time=20")
    until(lambda: state_of(client, blocker) == "RUNNING", "6 of 8 GPUs are taken")
    place = open_tmp / "limited"
    place.mkdir()
    words = ("--elastic=1-4", "--checkpoint=USR1", "--gpus-per-node=4", "--time=1", f"--output={place}/out")
    job_id = sxbatch(small, *words, str(SCRIPT), str(place), str(spool), "350")
    with a_daemon(small, tmp_path, config(spool)):
        until(lambda: state_of(client, job_id) == "RUNNING", "it starts with what there is")
        submit(small, "--nodes=2", "--gpus-per-node=4", "--time=20")
        until(lambda: final_state(small, job_id) not in ("PENDING", "RUNNING", "COMPLETING"), "it ends", 300)
    assert final_state(small, job_id) == "COMPLETED"
    steps = done(place)
    assert sorted({step for _run, step, *_ in steps}) == list(range(1, 351))
    assert {gpus for _run, _step, gpus, _nodes in steps} == {1}
    assert max(steps)[0] >= 1
    assert "its time limit would end it" in (tmp_path / "log").read_text()


def test_what_slurm_lets_one_change_of_a_job_that_waits(small: Cluster, client: CliClient) -> None:
    """Sizes, with the type of the GPUs and the other resources kept; a refused change changes nothing."""
    full = submit(small, "--nodes=2", "--gpus-per-node=4")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    job_id = submit(small, "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2", "--gpus-per-node=2")
    before = next(job for job in client.jobs() if job.job_id == job_id)
    assert (before.nodes, before.tasks, before.cpus, before.gpus, before.gres_per_node) == (2, 4, 8, 4, "gpu:2")
    assert client.apply([SetNodeCount(job_id, 1, 2, 4), SetGres(job_id, "gpu:4,shard:1")]) != ()
    assert client.apply([SetNodeCount(job_id, 1, 2, 4), SetGres(job_id, "gpu:4")]) == ()
    after = next(job for job in client.jobs() if job.job_id == job_id)
    assert (after.nodes, after.tasks, after.cpus, after.gpus, after.gres_per_node) == (1, 2, 4, 4, "gpu:4")
    argv = ["scontrol", "update", f"JobId={job_id}", "NumNodes=2-1", "NumTasks=4", "NumCPUs=8"]
    refused = subprocess.run(argv, env=environment(small), capture_output=True, text=True, check=False)
    assert "Node count specification invalid" in refused.stderr or "Maximum node count" in refused.stderr
    failure = ChangeFailure(SetNodeCount(job_id, 2, 4, 8), refused.stderr)
    assert client.apply(restored([failure], {job_id: after})) == ()
    again = next(job for job in client.jobs() if job.job_id == job_id)
    assert (again.nodes, again.tasks, again.cpus) == (1, 2, 4)
    (failure,) = client.apply([SetGres(full, "gpu:1")])
    assert failure.change == SetGres(full, "gpu:1")
