"""The documented sacct command on a real cluster gives a file that the reader understands."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from explsched.preemption_record import Interruption, PreemptionRecord, read
from simulation.results.history import read as history_of
from simulation.results.metrics import measure
from simulation.traces.formats import read_any, sacct
from simulation.traces.trace import Trace, TraceError
from slurm_plugin.client.changes import RequeueJob, SetAdminComment
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, up
from slurm_plugin.observation.run_times import read_past
from tests.slurm.jobs import environment, run, start_again, state_of, submit, until

pytestmark = pytest.mark.slurm
UNTIL_REQUEUED = 'sleep 1; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'


def print_history(cluster: Cluster, directory: Path, *columns: str) -> Path:
    """The file that the documented command line makes now, with more columns at its end."""
    command = sacct.COMMAND.replace("2026-02-01", "now+1hour").replace("ReqTRES", ",".join(("ReqTRES", *columns)))
    subprocess.run(["bash", "-c", command], cwd=directory, env=environment(cluster), check=True)
    return directory / "history.txt"


def history(cluster: Cluster, directory: Path) -> Trace:
    """What is in it; an empty trace as long as it holds no job that has ended."""
    print_history(cluster, directory)
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
    requeued = submit(cluster, "--gres=gpu:1", "--requeue", script=UNTIL_REQUEUED)
    submit(cluster, script="sleep 1")  # without a GPU
    submit(cluster, "--gres=gpu:1", "--hold")  # never starts

    until(lambda: state_of(client, requeued) == "RUNNING", "the job runs")
    run(cluster, "scontrol", "requeue", str(requeued))
    until(lambda: state_of(client, requeued) == "PENDING", "the job waits again")
    run(cluster, "scontrol", "update", f"job={requeued}", "StartTime=now")  # Slurm makes it wait for two minutes

    of_requeued = ("sacct", f"--jobs={requeued}", "--allocations", "--noheader", "--parsable2", "--format=State")
    until(lambda: run(cluster, *of_requeued).strip() == "COMPLETED", "the job has ended after its second run")
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
    past = read_past(client.accounting, time.time() - 3600, time.time() + 60)
    gpus = sorted(one.likeness.gpus for one in past)  # components of a gang are counted apart
    assert gpus == [1, 1, 1, 1, 2, 3], past
    assert all(one.likeness.user == "root" and 1 <= one.run_s < 60 for one in past)
    rows = [line.split("|") for line in (tmp_path / "history.txt").read_text().splitlines()]
    runs_s = [float(row[rows[0].index("ElapsedRaw")]) for row in rows if row[0] == str(requeued)]
    assert len(runs_s) == 2
    assert jobs[requeued].run_s == sum(runs_s)


@pytest.mark.usefixtures("needs_accounting")
def test_slurmdbd_keeps_what_preemption_cost_after_the_job_has_ended(place: Path, tmp_path: Path) -> None:
    cluster = up(ClusterSpec(1, 4, 0, accounting=True, extra=(("MinJobAge", "2"),)), place)
    client = CliClient(environment=cluster.env())
    job_id = submit(cluster, "--gres=gpu:2", "--time=10", "--requeue", script=UNTIL_REQUEUED)
    until(lambda: state_of(client, job_id) == "RUNNING", "the job runs")
    submitted_s = next(job.submit_s for job in client.jobs() if job.job_id == job_id)
    cost = Interruption(0, time.time(), 2, 40.0, "a shorter job, 100% of it: a|b")
    account = PreemptionRecord(submitted_s, others="of the site").plus(cost)
    time.sleep(2)  # sacct leaves out a run of less than a second
    assert client.apply([SetAdminComment(job_id, account.text()), RequeueJob(job_id)]) == ()
    until(lambda: state_of(client, job_id) == "PENDING", "the job waits again")
    start_again(client, job_id)
    until(lambda: state_of(client, job_id) == "GONE", "the job has ended")
    until(lambda: not run(cluster, "squeue", "--noheader", "--states=all"), "slurmctld has forgotten it")

    shown = ("sacct", f"--jobs={job_id}", "--allocations", "--noheader", "--parsable2", "--format=AdminComment")
    assert run(cluster, *shown).strip() == account.text()
    kept = read(account.text(), time.time(), restarts=1)
    assert (kept.submitted_s, kept.count, kept.lost_gpu_s, kept.latest[0].reason) == (submitted_s, 1, 40.0, cost.reason)
    past = measure(history_of(print_history(cluster, tmp_path, "AdminComment")).outcome)
    assert past.jobs == 1
    assert past.preemptions == 1
    assert past.lost_gpu_h == pytest.approx(40 / 3600)
