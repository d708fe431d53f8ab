"""The documented sacct command on a real cluster gives a file that the reader understands."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sched_policy.simulator.formats import read_any, sacct
from sched_policy.simulator.trace import Trace, TraceError
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, up
from tests.slurm.jobs import environment, run, state_of, submit, until

pytestmark = pytest.mark.slurm


def history(cluster: Cluster, directory: Path) -> Trace:
    """What the documented command line yields now; an empty trace as long as it holds no job that has ended."""
    command = sacct.COMMAND.replace("2026-02-01", "now+1hour")
    subprocess.run(["bash", "-c", command], cwd=directory, env=environment(cluster), check=True)
    try:
        return read_any(directory / "history.txt")
    except TraceError as error:
        assert "no row can be used" in str(error)
        return Trace(())


@pytest.mark.usefixtures("needs_accounting")
def test_the_history_of_a_real_cluster_is_read(place: Path, tmp_path: Path) -> None:
    cluster = up(ClusterSpec(2, 4, 0, accounting=True), place)
    client = CliClient(environment=cluster.env())
    plain = submit(cluster, "--gres=gpu:2", "--time=10", script="sleep 1")
    array = submit(cluster, "--gres=gpu:1", "--array=0-1", "--time=UNLIMITED", script="sleep 1")
    gang = submit(cluster, "--gres=gpu:1", ":", "--gres=gpu:3", script="sleep 1")
    requeued = submit(
        cluster, "--gres=gpu:1", "--requeue", script='sleep 1; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    )
    submit(cluster, script="sleep 1")  # without a GPU
    submit(cluster, "--gres=gpu:1", "--hold")  # never starts

    until(lambda: state_of(client, requeued) == "RUNNING", "the job runs")
    run(cluster, "scontrol", "requeue", str(requeued))
    until(lambda: state_of(client, requeued) == "PENDING", "the job waits again")
    run(cluster, "scontrol", "update", f"job={requeued}", "StartTime=now")  # Slurm makes it wait for two minutes

    until(lambda: len(history(cluster, tmp_path).jobs) == 5, "all jobs have ended and are accounted")
    trace = history(cluster, tmp_path)
    jobs = {job.job_id: job for job in trace.jobs}
    assert (jobs[plain].gpus, jobs[plain].time_limit_s) == (2, 600)
    assert (jobs[array].gpus, jobs[array].time_limit_s) == (1, None)
    assert jobs[gang].gpus == 4
    assert gang + 1 not in jobs
    assert {job.gpus for job_id, job in jobs.items() if job_id not in (plain, gang)} == {1}
    assert {(job.user, job.queue) for job in trace.jobs} == {("root", "main")}
    assert all(1 <= job.run_s < 60 for job in trace.jobs)
    assert min(job.submit_s for job in trace.jobs) == 0
    assert [row.reason.partition(":")[0] for row in trace.rejected] == ["AllocTRES"]
    rows = [line.split("|") for line in (tmp_path / "history.txt").read_text().splitlines()]
    runs_s = [float(row[rows[0].index("ElapsedRaw")]) for row in rows if row[0] == str(requeued)]
    assert len(runs_s) == 2
    assert jobs[requeued].run_s == sum(runs_s)
