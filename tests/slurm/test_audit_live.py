"""What the daemon wrote down is what Slurm has, and a reset leaves nothing of ours behind."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from explsched.cli import root
from slurm_plugin.audit_file import read, replayed
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, up
from slurm_plugin.observation.standing import leased_job
from tests.slurm.checkpointing import SCRIPT, UNTIL_REQUEUED
from tests.slurm.jobs import a_daemon, config, run, state_of, submit, until

pytestmark = pytest.mark.slurm


def sexplsched(cluster: Cluster, *argv: str) -> Result:
    result = CliRunner().invoke(root, argv, env={**os.environ, **cluster.env()})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_audit_file_tells_what_slurm_has_and_a_reset_takes_it_back(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    holder = submit(small, "--nodes=1", "--gpus-per-node=4", "--time=60")
    until(lambda: state_of(client, holder) == "RUNNING", "one node is taken")
    noted = "JS1:abc explsched-preemption:since=1&n=0&lost=0"
    run(small, "scontrol", "update", f"JobId={holder}", f"AdminComment={noted}")
    gang = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=60")
    with a_daemon(small, tmp_path, config(spool, "fifo")):
        until(lambda: [lease.name for lease in client.reservations()] == [f"explsched_{gang}"], "there is a lease")
        waiting = [submit(small, "--gpus-per-node=4", "--time=120") for _ in range(3)]
        until(
            lambda: len({job.site_factor for job in client.jobs() if job.job_id in waiting}) == 3, "there is an order"
        )
        refused = CliRunner().invoke(root, ["admin", "reset", "-f", str(tmp_path / "explsched.yaml")])
        assert "a daemon runs (pid " in str(refused.exception)

    changes = list(read(spool.parent / "audit.jsonl"))
    found = {job.job_id: job.site_factor for job in client.jobs() if job.state == "PENDING"}
    assert replayed(changes, "SiteFactor") == {job_id: factor for job_id, factor in found.items() if factor}
    assert {entry.rule for entry in changes} >= {"order", "lease"}
    assert all(entry.reason and entry.policy == "fifo" for entry in changes)
    shown = sexplsched(small, "audit", str(gang), "-f", str(tmp_path / "explsched.yaml")).output
    assert f"explsched_{gang}" in shown

    dry = sexplsched(small, "admin", "reset", "--dry-run", "-f", str(tmp_path / "explsched.yaml"))
    assert "would change" in dry.output
    assert any(job.site_factor for job in client.jobs())
    done = sexplsched(small, "admin", "reset", "-f", str(tmp_path / "explsched.yaml"))
    assert done.exit_code == 0, done.output
    assert not any(job.site_factor for job in client.jobs())
    assert not [lease for lease in client.reservations() if leased_job(lease.name) is not None]
    comments = {job.job_id: job.admin_comment for job in client.jobs()}
    assert comments[holder] == "JS1:abc"
    again = sexplsched(small, "admin", "reset", "-f", str(tmp_path / "explsched.yaml"))
    assert "nothing of explsched is left in Slurm" in again.output
    run(small, "scontrol", "update", f"JobId={gang}", "SiteFactor=7")  # the others would start with it, and lose it
    (spool.parent / "site_factors.json").write_text("as a full disk may leave it")
    kept = sexplsched(small, "admin", "reset", "-f", str(tmp_path / "explsched.yaml")).output
    assert f"are kept (job {gang}: 7)" in kept
    assert "nothing of explsched is left in Slurm" not in kept
    assert [entry for entry in read(spool.parent / "audit.jsonl", time.time() - 600) if "reset" in entry.reason]


def test_a_reset_reaches_site_factors_that_slurm_does_not_show(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    """It shows none of jobs that run or may not start yet, and counts them once these wait."""
    everything = "--nodes=2", "--gpus-per-node=4"
    full = submit(small, *everything)
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    held, later, dependent, runs = jobs = [submit(small, "--gpus-per-node=1", "--time=30") for _ in range(4)]

    def factors() -> list[int | None]:
        return [job.site_factor for job in client.jobs() if job.job_id in jobs]

    with a_daemon(small, tmp_path, config(spool, "fifo")):
        until(lambda: all(factors()), "all have our factors")
    run(small, "scontrol", "hold", str(held))
    run(small, "scontrol", "update", f"JobId={later}", "StartTime=now+1hour")
    run(small, "scontrol", "update", f"JobId={dependent}", f"Dependency=afterany:{held}")
    run(small, "scancel", str(full))
    until(lambda: state_of(client, runs) == "RUNNING", "one of them runs")
    # Of the job with the dependency it shows one until the scheduler has looked at it next.
    until(lambda: factors() == [None] * 4, "Slurm shows none")

    reset = "admin", "reset", "-f", str(tmp_path / "explsched.yaml")
    assert sexplsched(small, *reset, "--dry-run").output.count(" SiteFactor=0\n") == 4
    done = sexplsched(small, *reset)
    assert done.exit_code == 0, done.output
    assert "nothing of explsched is left in Slurm" in sexplsched(small, *reset).output
    run(small, "scontrol", "requeue", str(runs))
    full = submit(small, *everything, "--exclusive")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full again")
    run(small, "scontrol", "release", str(held))
    run(small, "scontrol", "update", f"JobId={dependent}", "Dependency=")
    for job in (later, runs):
        run(small, "scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: None not in factors(), "Slurm shows them again")
    assert factors() == [0] * 4


def test_changes_replayed_from_the_audit_are_slurms_own_record(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path, open_tmp: Path
) -> None:
    """Trainings that take turns on the whole cluster, with others in the queue that are put in order meanwhile."""
    sections = {
        "las": {"limits_gpu_s": [16.0, 64.0]},
        "utility": {"quantum_s": 2.0},
        "preemption": {"grace_s": 20.0, "max_per_job_per_hour": 12},
    }
    whole = ("--nodes=2", "--gpus-per-node=4", "--requeue", "--comment=explsched:checkpoint=USR1")
    noted = "JS1:abc"
    with a_daemon(small, tmp_path, config(spool, "tiresias", **sections)) as daemon:
        for name in "abc":
            place = open_tmp / f"replayed_{name}"
            place.mkdir()
            _ = submit(small, *whole, script=f"exec bash {SCRIPT} {place} {spool} {UNTIL_REQUEUED}")
        others = [submit(small, "--gpus-per-node=4", f"--time={10 * minutes}") for minutes in range(1, 5)]
        run(small, "scontrol", "update", f"JobId={others[0]}", f"AdminComment={noted}")
        until(lambda: sum(job.restarts for job in client.jobs()) >= 2, "two have made room", 150)
        daemon.terminate()
        daemon.wait(timeout=60)
    changes = [entry for entry in read(spool.parent / "audit.jsonl") if not entry.refused]
    requeued = Counter(entry.job for entry in changes if (entry.field, entry.after) == ("JobState", "PENDING"))
    # Slurm counts a requeue when the job's last process has ended.
    until(lambda: requeued == {job.job_id: job.restarts for job in client.jobs() if job.restarts}, "Slurm has them all")
    found = {job.job_id: job for job in client.jobs()}
    comments = {job_id: job.admin_comment for job_id, job in found.items() if job.admin_comment}
    assert {**replayed(changes, "AdminComment"), others[0]: noted} == comments
    # Slurm tells no factor of a job that may not start yet, as one that was just requeued.
    told = {job_id: job for job_id, job in found.items() if job.site_factor is not None}
    waiting = {job_id: job.site_factor for job_id, job in told.items() if job.state == "PENDING"}
    assert set(others) <= waiting.keys()
    factors = replayed(changes, "SiteFactor")
    assert waiting == {job_id: factors.get(job_id, 0) for job_id in waiting}
    leases: dict[str, int] = Counter()
    for entry in changes:
        if entry.field == "Lease":
            leases[f"explsched_{entry.job}"] += 1 if entry.after else -1
    ours = {lease.name for lease in client.reservations() if leased_job(lease.name) is not None}
    assert ours == {name for name, count in leases.items() if count} == set(), "those that are left go with the daemon"


@pytest.mark.usefixtures("needs_accounting")
def test_the_report_tells_what_sacct_has(place: Path, tmp_path: Path) -> None:
    begun_s = time.time()
    cluster = up(ClusterSpec(1, 4, 0, accounting=True), place)
    client = CliClient(environment=cluster.env())
    for sweep in ("digits", "letters"):
        submit(cluster, "--gres=gpu:2", "--time=10", f"--comment=explsched:sweep={sweep}", script="sleep 2")
    lines_of = "--comment=two\nexplsched:sweep=lines"
    submit(cluster, "--gres=gpu:1", "--time=10", lines_of, script="sleep 2; exit 3")
    until(lambda: not client.jobs(), "all jobs have ended")
    path = tmp_path / "explsched.yaml"
    path.write_text(f"audit: {{file: {tmp_path}/audit.jsonl}}\n")
    asked = ("report", "--by", "sweep", "--since", "1h", "--json", "-f", str(path))
    found = {}

    def is_told() -> bool:
        found.update(json.loads(sexplsched(cluster, *asked).stdout))
        names = {line["name"] for line in found["lines"] if line["used_gpu_h"] > 0}
        return names >= {"root/digits", "root/letters", "root/lines"}

    until(is_told, "slurmdbd has the jobs and their comments")
    lines = {line["name"]: line for line in found["lines"]}
    longest_gpu_h = 2 * (time.time() - begun_s) / 3600
    assert 2 * 2 / 3600 <= lines["root/digits"]["used_gpu_h"] <= longest_gpu_h
    assert lines["root/digits"]["useful_gpu_h"] == lines["root/digits"]["used_gpu_h"]
    assert 2 * longest_gpu_h > found["all_gpu_h"] > found["idle_gpu_h"] > 0, "4 GPUs, as long as there was a cluster"
