"""Jobs that are not steered are left to Slurm: on a real cluster, under a daemon that steers all partitions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import a_daemon, changes, command, config, environment, run, state_of, submit, until

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
    left = f"Job {without[0]} of root: PENDING, left to Slurm because it asks for no GPUs. Slurm says: "
    assert told.stdout.startswith(left)


QUICK = {"utility": {"quantum_s": 4.0}, "preemption": {"grace_s": 5.0, "max_per_hour": 1000}}
REPORTING = """
trap : USR1
for step in $(seq 1 2000); do
  printf '{{"time_s": %s, "restart": %d, "step": %d, "metric": "loss", "value": 2}}\\n' \
    "$(date +%s.%N)" "${{SLURM_RESTART_COUNT:-0}}" "$step" >> {spool}/$SLURM_JOB_ID.jsonl
  sleep 0.3
done
"""
PASSES = 25
CONSENTS = ("--requeue", "--gpus-per-node=4", "--comment=explsched:sweep=flat&checkpoint=USR1")


@pytest.fixture(params=["maintenance ahead", "over the limit of its partition"])
def impossible(request: pytest.FixtureRequest, small: Cluster, client: CliClient) -> Iterator[str]:
    """What keeps a job of an hour from starting; the cluster is as before afterwards."""
    if request.param == "maintenance ahead":
        when = ("StartTime=now+9minutes", "Duration=60", "Nodes=ALL", "Flags=MAINT,IGNORE_JOBS", "Users=root")
        run(small, "scontrol", "create", "reservation", "ReservationName=maintenance", *when)
        yield "ReqNodeNotAvail"  # the reservation goes with the client
    else:
        run(small, "scontrol", "update", "PartitionName=main", "MaxTime=20")
        yield "PartitionTimeLimit"
        run(small, "scontrol", "update", "PartitionName=main", "MaxTime=INFINITE")


def test_nobody_is_interrupted_for_a_job_that_cannot_start(
    small: Cluster, client: CliClient, impossible: str, spool: Path, tmp_path: Path
) -> None:
    held = [submit(small, *CONSENTS, "--time=8", script=REPORTING.format(spool=spool)) for _ in range(2)]
    until(lambda: all(state_of(client, job) == "RUNNING" for job in held), "all GPUs are taken")
    long = submit(small, "--time=60", "--gpus-per-node=4", "--comment=explsched:sweep=untried")
    log = tmp_path / "log"

    def reason() -> str:
        return next(job.reason for job in client.jobs() if job.job_id == long)

    with a_daemon(small, tmp_path, config(spool, **QUICK)):
        until(lambda: log.exists() and log.read_text().count(" pass jobs=") >= PASSES, "many passes are made", 120)
        until(lambda: reason().startswith(impossible), "Slurm says why it cannot start")
        told = log.read_text()
        assert "SignalJob" not in told
        assert "RequeueJob" not in told
        assert told.count(" changes=0 ") >= PASSES - 3  # nor is it given a lease, again and again
        # The same job interrupts somebody as soon as it could start.
        run(small, "scontrol", "update", f"JobId={long}", "TimeLimit=5")
        until(lambda: state_of(client, long) == "RUNNING", "room is made for it")
    assert log.read_text().count("RequeueJob") == 1


def test_no_component_of_a_heterogeneous_job_gets_a_lease(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    holder = submit(small, "--gpus-per-node=4", "--time=60")
    until(lambda: state_of(client, holder) == "RUNNING", "one node is taken")
    whole = ("--nodes=1", "--gpus-per-node=4", "--time=60")
    first = submit(small, *whole, ":", *whole)
    until(lambda: {job.het_job_id for job in client.jobs()} == {None, first}, "both components wait")
    (second,) = (job.job_id for job in client.jobs() if job.het_job_id == first and job.job_id != first)
    assert [client.part(f"{first}+{number}") for number in range(2)] == [first, second]
    log = tmp_path / "log"
    with a_daemon(small, tmp_path, config(spool, "fifo")):
        until(lambda: len(changes(log)) >= 10, "some passes are made")
        assert client.reservations() == ()
        assert changes(log)[-1] == 0


def test_a_job_alone_on_its_node_holds_all_its_gpus(small: Cluster, client: CliClient) -> None:
    alone = submit(small, "--gres=gpu:1", "--exclusive")
    until(lambda: state_of(client, alone) == "RUNNING", "it has a node")
    (job,) = client.look().jobs
    assert [gpus for _, gpus in job.gpu_nodes] == [4]
    assert "GRES=gpu:4(IDX:0-3)" in run(small, "scontrol", "show", "job", str(alone), "--details")


def test_free_gpus_on_a_node_without_free_cpus_are_no_start(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    """Slurm's reason comes first, and nothing fits that does not."""
    cpus = submit(small, "--nodes=2", "--ntasks-per-node=16", "--mem=100")
    until(lambda: state_of(client, cpus) == "RUNNING", "all CPUs are taken, and no GPU")
    waits = submit(small, "--gres=gpu:1", "--mem=100")
    alone = submit(small, "--gres=gpu:1", "--exclusive")
    until(lambda: [job.reason for job in client.jobs() if job.job_id == waits] == ["Resources"], "Slurm has tested it")
    path = tmp_path / "explsched.yaml"
    path.write_text(config(spool, "srsf"))

    def explained(job_id: int) -> list[str]:
        return run(small, command("sexplsched"), "explain", str(job_id), "--config", str(path)).splitlines()

    lines = explained(waits)
    assert lines[1].startswith("Slurm says: Resources; priority ")
    assert "has too few CPUs left" in lines[3]
    left = next(line for line in explained(alone) if "left to Slurm" in line)
    assert "--exclusive" in left
    listed = run(small, command("sexplsched"), "status", "--config", str(path), "-o", "jobid:8,reason:80")
    assert f"{waits}" in listed
    assert "Resources; " in listed
    assert "left to Slurm, because it shares its nodes with no other job" in listed
