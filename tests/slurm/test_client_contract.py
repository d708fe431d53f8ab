"""One contract for every adapter that can run here; which ones did is in the test ids."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from explsched.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.client import batch, capabilities, process
from slurm_plugin.client.changes import (
    AttachReservation,
    CancelJob,
    ClearDependency,
    CreateReservation,
    DeleteReservation,
    ExtendReservation,
    RequeueJob,
    SetSiteFactor,
    SignalJob,
)
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import SlurmClient, probe_pyslurm
from slurm_plugin.client.pyslurm_ import PyslurmClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster import Cluster
from tests.slurm.jobs import empty, run, start_again, submit, until
from tests.slurm.users import ORDINARY, as_user

pytestmark = pytest.mark.slurm


@pytest.fixture(params=["cli", "cli-scontrol", "pyslurm"])
def client(request: pytest.FixtureRequest, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmClient]:
    for key, value in cluster.env().items():
        monkeypatch.setenv(key, value)
    if request.param == "cli":
        found = batch.find(CliClient().capabilities().version.release, 10, os.environ)
        if found is None:
            pytest.skip("explsched-site-factors is not installed for this Slurm: cli-scontrol is what runs")
        yield CliClient()
    elif request.param == "cli-scontrol":
        monkeypatch.setattr(batch, "find", lambda *_: None)
        yield CliClient()
    else:
        fault = probe_pyslurm()
        if fault is not None:
            pytest.skip(f"pyslurm cannot run here: {fault}")
        pyslurm_client = PyslurmClient()
        yield pyslurm_client
        pyslurm_client.close()
    empty(cluster)


def test_capabilities(client: SlurmClient) -> None:
    found = client.capabilities()
    assert found.version >= capabilities.OLDEST
    here = {capability for capability, there in found if there}
    assert {capabilities.SITE_FACTOR, capabilities.BACKFILL, capabilities.SHARDS} <= here
    assert capabilities.LUA_SUBMIT not in here
    assert found.rate_limit() is None


def test_nodes(client: SlurmClient) -> None:
    nodes = client.nodes()
    assert [(node.name, node.gpus) for node in nodes] == [(f"n{i}", 8) for i in (1, 2, 3, 4)]
    assert all(node.schedulable and node.partitions == {"main"} for node in nodes)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_an_ordinary_user_sees_the_nodes_of_hidden_partitions(client: SlurmClient, cluster: Cluster) -> None:
    """As squeue --all shows their jobs."""
    run(cluster, "scontrol", "update", "PartitionName=main", "Hidden=YES")
    try:
        assert as_user(ORDINARY, lambda: [node.name for node in client.nodes()]) == ["n1", "n2", "n3", "n4"]
    finally:
        run(cluster, "scontrol", "update", "PartitionName=main", "Hidden=NO")


HOSTILE = "a b|x\nJobId=7 UserId=root(0) \u00e9\u2603 \"q\" 'p' $(touch /tmp/x) %s \\n"


def test_hostile_names_and_comments(client: SlurmClient, cluster: Cluster) -> None:
    hostile = submit(cluster, f"--job-name={HOSTILE}", f"--comment={HOSTILE}", "--hold")
    plain = submit(cluster, "--job-name=plain", "--hold")
    jobs = {job.job_id: job for job in client.jobs()}
    assert jobs[plain].name == "plain"
    assert (jobs[hostile].uid, jobs[hostile].user, jobs[hostile].comment) == (0, "root", HOSTILE)


@pytest.mark.parametrize(
    ("options", "gpus", "per_node"),
    [
        (["--gres=gpu:2"], 2, 2),
        (["--gres=gpu"], 1, 1),
        (["--gpus=3"], 3, None),
        (["--gpus-per-node=2", "--nodes=2"], 4, 2),
        (["--gpus-per-task=1", "--ntasks=4"], 4, None),
        (["--gres=shard:2"], 0, None),
        ([], 0, None),
    ],
)
def test_gpu_requests(
    client: SlurmClient, cluster: Cluster, options: list[str], gpus: int, per_node: int | None
) -> None:
    job_id = submit(cluster, *options)
    until(lambda: any(j.job_id == job_id and j.state == "RUNNING" for j in client.jobs()), "the job runs")
    (job,) = client.jobs()
    assert (job.gpus, job.gpus_per_node) == (gpus, per_node)
    assert sum(share for _node, share in job.gpu_nodes) == gpus
    assert job.time_limit_s == 3600
    assert job.start_s is not None
    assert job.submit_s <= job.start_s


@pytest.mark.parametrize("asked", [["--gpus-per-task=1", "--ntasks=9"], ["--gpus=9"]], ids=" ".join)
def test_gpus_spread_unevenly_are_counted_where_they_are(
    client: SlurmClient, cluster: Cluster, asked: list[str]
) -> None:
    """Slurm fills the first node, which has 8."""
    job_id = submit(cluster, "--nodes=2", *asked)
    until(lambda: any(j.job_id == job_id and j.state == "RUNNING" for j in client.jobs()), "the job runs")
    (job,) = client.jobs()
    assert job.gpu_nodes == (("n1", 8), ("n2", 1))


def test_time_for_which_a_job_was_suspended_is_no_run_time(client: SlurmClient, cluster: Cluster) -> None:
    job_id, other = submit(cluster, "--gres=gpu:2"), submit(cluster, "--gres=gpu:2")

    def records() -> list[SlurmJob]:
        found = {job.job_id: job for job in client.jobs()}
        return [found[n] for n in (job_id, other)]

    until(lambda: all(job.state == "RUNNING" for job in records()), "the jobs run")
    run(cluster, "scontrol", "suspend", str(job_id))
    until(lambda: records()[0].suspended_s >= 4, "the job has been suspended for a while")
    run(cluster, "scontrol", "resume", str(job_id))
    resumed, always = records()
    assert (resumed.state, always.suspended_s) == ("RUNNING", 0.0)
    ends_s = float(
        run(cluster, "env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--jobs", str(job_id), "-o", "%e")
    )
    assert resumed.start_s is not None
    assert abs(resumed.start_s + resumed.suspended_s + 3600 - ends_s) <= 2


def test_what_a_job_asks_of_its_nodes_is_read(client: SlurmClient, cluster: Cluster) -> None:
    asks, other = submit(cluster, "--hold", "--exclude=n[1-2]", "--contiguous"), submit(cluster, "--hold")
    found = {job.job_id: (job.excluded_nodes, job.contiguous) for job in client.look().jobs}
    assert (found[asks], found[other]) == ((("n1", "n2"), True), ((), False))


@pytest.mark.parametrize("more", [[], ["--mem-per-cpu=500", "--ntasks=2"], ["--mem=1500"], ["--mem-per-gpu=700"]])
def test_a_job_with_cpus_per_gpu_waits_with_the_memory_that_it_will_get(
    client: SlurmClient, cluster: Cluster, more: list[str]
) -> None:
    job_id = submit(cluster, "--hold", "--gpus=2", "--cpus-per-gpu=2", *more)

    def record() -> SlurmJob:
        return next(job for job in client.look().jobs if job.job_id == job_id)

    waits_with_mib = record().memory_mib
    run(cluster, "scontrol", "release", str(job_id))
    until(lambda: record().state == "RUNNING", "the job runs")
    assert record().memory_mib == waits_with_mib


def test_what_a_job_says_of_switches_is_read(client: SlurmClient, cluster: Cluster) -> None:
    asks, other = submit(cluster, "--hold", "--switches=2@00:30:00"), submit(cluster, "--hold")
    found = {job.job_id: job.most_switches for job in client.jobs()}
    assert (found[asks], found[other]) == (2, 0)


def test_an_allocation_without_a_batch_script_is_not_requeued(client: SlurmClient, cluster: Cluster) -> None:
    run(cluster, "salloc", "--no-shell", "--quiet", "--gres=gpu:1")
    batch_job = submit(cluster, "--requeue")
    (allocation,) = [job for job in client.jobs() if job.job_id != batch_job]
    assert {job.job_id: job.requeues for job in client.jobs()} == {allocation.job_id: False, batch_job: True}
    refused = RequeueJob(allocation.job_id)
    assert [failure.change for failure in client.apply([refused])] == [refused]


def test_a_deadline_is_read(client: SlurmClient, cluster: Cluster) -> None:
    due = submit(cluster, "--hold", "--deadline=now+5hours")
    other = submit(cluster, "--hold")
    found = {job.job_id: job.deadline_s for job in client.jobs()}
    assert found == {due: pytest.approx(time.time() + 5 * 3600, abs=60), other: None}


def test_a_waiting_array_is_one_record(client: SlurmClient, cluster: Cluster) -> None:
    array = submit(cluster, "--array=0-9%2", "--hold", "--gres=gpu:1")
    (job,) = client.jobs()
    assert (job.job_id, job.array_tasks, job.gpus) == (array, 10, 1)


def test_a_requeued_task_is_seen_beside_the_tasks_that_wait(client: SlurmClient, cluster: Cluster) -> None:
    """By default squeue shows it as one of those, with the reasons of both."""
    array = submit(cluster, "--array=0-9%1", "--requeue", "--gres=gpu:1")

    def tasks() -> dict[int | None, tuple[str, int]]:
        return {job.array_task_id: (job.state, job.array_tasks) for job in client.jobs() if job.array_job_id == array}

    until(lambda: tasks() == {0: ("RUNNING", 1), None: ("PENDING", 9)}, "the first task runs")
    (first,) = (job.job_id for job in client.jobs() if job.array_task_id == 0)
    assert client.apply([RequeueJob(first)]) == ()
    until(lambda: tasks().get(0) == ("PENDING", 1), "it waits again, by itself")
    (task,) = (job for job in client.jobs() if job.array_task_id == 0)
    assert (task.job_id, task.restarts) == (first, 1)


def test_the_task_that_has_its_arrays_id_is_changed_alone(
    client: SlurmClient, cluster: Cluster, tmp_path: Path
) -> None:
    """The last task to start keeps the id of the array, by which Slurm's commands mean all of its tasks."""
    tmp_path.chmod(0o755)
    words = f"trap 'touch {tmp_path}/$SLURM_ARRAY_TASK_ID' USR1; touch {tmp_path}/ready-$SLURM_ARRAY_TASK_ID"
    script = f"{words}; while :; do sleep 0.1; done"
    array = submit(cluster, "--array=0-1", "--requeue", "--gres=gpu:1", script=script)
    until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "both tasks listen")
    numbers = {job.job_id: job.array_task_id for job in client.jobs()}
    (other,) = numbers.keys() - {array}
    assert client.apply([SignalJob(array, "USR1")]) == ()
    until((tmp_path / str(numbers[array])).exists, "the task has its signal")
    assert client.apply([RequeueJob(array)]) == ()
    until(lambda: any(job.job_id == array and job.restarts == 1 for job in client.jobs()), "it was requeued")
    assert client.apply([CancelJob(array)]) == ()
    until(lambda: [job.job_id for job in client.jobs()] == [other], "it is gone")
    (left,) = client.jobs()
    assert (left.state, left.restarts) == ("RUNNING", 0)
    assert not (tmp_path / str(numbers[other])).exists()


def test_site_factors_are_written_read_and_reset(client: SlurmClient, cluster: Cluster) -> None:
    blocked = ["--nodes=4", "--gres=gpu:8"]
    submit(cluster, *blocked)
    jobs = [submit(cluster, *blocked) for _ in range(3)]
    until(lambda: sum(job.state == "PENDING" for job in client.jobs()) == 3, "three jobs wait")
    factors = dict(zip(jobs, (500, -7, 100000), strict=True))
    assert client.apply([SetSiteFactor(job, factor) for job, factor in factors.items()]) == ()
    found = {job.job_id: job for job in client.jobs()}
    assert {job: found[job].site_factor for job in jobs} == factors
    assert found[jobs[2]].priority > found[jobs[0]].priority
    seen = client.look()
    assert {job.job_id: job for job in seen.jobs} == found
    assert (seen.nodes, seen.reservations) == (client.nodes(), client.reservations())
    assert client.apply([SetSiteFactor(jobs[0], 0)]) == ()
    assert {job.job_id: job.site_factor for job in client.jobs()}[jobs[0]] == 0


def test_a_vanished_job_fails_alone(client: SlurmClient, cluster: Cluster) -> None:
    jobs = [submit(cluster, "--hold") for _ in range(4)]
    changes = [SetSiteFactor(job, 10 + i) for i, job in enumerate(jobs)]
    gone = SetSiteFactor(999_999, 5)
    failures = client.apply([*changes[:2], gone, *changes[2:]])
    assert [failure.change for failure in failures] == [gone]
    assert "nvalid job id" in failures[0].message


def lease(name: str, start_s: float, *nodes: str, user: str = "root") -> CreateReservation:
    return CreateReservation(name, start_s, 2, nodes, (user,), "main")


def test_the_life_of_a_lease(client: SlurmClient, cluster: Cluster) -> None:
    job = submit(cluster, "--hold", "--nodes=2", "--gres=gpu:8")
    start_s = client.jobs()[0].submit_s + 3600
    assert client.apply([lease("explsched_1", start_s, "n1", "n2"), AttachReservation(job, "explsched_1")]) == ()
    (found,) = client.reservations()
    assert (found.name, found.start_s, found.nodes, found.users) == ("explsched_1", start_s, ("n1", "n2"), ("root",))
    assert found.end_s - found.start_s == 120
    assert client.jobs()[0].reservation == "explsched_1"
    assert client.apply([ExtendReservation("explsched_1", start_s + 300)]) == ()
    (longer,) = client.reservations()
    assert (longer.start_s, longer.end_s, longer.nodes) == (start_s, start_s + 300, ("n1", "n2"))
    assert client.apply([AttachReservation(job, ""), DeleteReservation("explsched_1")]) == ()
    assert client.reservations() == ()
    assert client.jobs()[0].reservation == ""


def test_a_lease_that_has_begun_can_be_extended(client: SlurmClient, cluster: Cluster) -> None:
    job = submit(cluster, "--hold", "--nodes=2", "--gres=gpu:8")
    now_s = math.ceil(time.time())
    assert client.apply([lease("explsched_1", now_s + 5, "n1", "n2"), AttachReservation(job, "explsched_1")]) == ()
    until(lambda: time.time() > now_s + 6, "the lease has begun")
    assert client.apply([ExtendReservation("explsched_1", now_s + 900)]) == ()
    (longer,) = client.reservations()
    assert longer.end_s == now_s + 900


def test_a_running_jobs_lease_can_be_deleted(client: SlurmClient, cluster: Cluster) -> None:
    job = submit(cluster, "--hold", "--gres=gpu:8")
    client.apply([lease("explsched_1", client.jobs()[0].submit_s + 3600, "n1"), AttachReservation(job, "explsched_1")])
    run(cluster, "scontrol", "release", str(job))
    until(lambda: client.jobs()[0].state == "RUNNING", "the job starts before its lease")
    assert client.apply([AttachReservation(job, ""), DeleteReservation("explsched_1")]) == ()
    assert client.reservations() == ()
    assert client.jobs()[0].state == "RUNNING"


def test_slurm_takes_a_list_of_leases(client: SlurmClient, cluster: Cluster) -> None:
    assert client.apply([lease(f"explsched_{number}", 4e9 - 600 * number, "n1") for number in (1, 2)]) == ()
    for named in ("explsched_1,", "explsched_2,explsched_1"):
        job = submit(cluster, "--hold", "--gres=gpu:8", f"--reservation={named}")
        (found,) = (one for one in client.jobs() if one.job_id == job)
        assert found.reservation == named
        assert found.reservations == set(named.split(",")) - {""}
        assert client.apply([AttachReservation(job, "")]) == ()
        assert all(one.reservation == "" for one in client.jobs())
    assert client.apply([DeleteReservation(f"explsched_{number}") for number in (1, 2)]) == ()


def test_a_refused_lease_is_reported(client: SlurmClient) -> None:
    good, bad = lease("explsched_1", 4e9, "n1"), lease("explsched_2", 4e9, "nosuchnode")
    failures = client.apply([bad, good, DeleteReservation("nosuchreservation")])
    assert [failure.change for failure in failures] == [bad, DeleteReservation("nosuchreservation")]
    assert [found.name for found in client.reservations()] == ["explsched_1"]


def test_nothing_can_be_injected(client: SlurmClient) -> None:
    for name in ("x Flags=MAINT", "x\nshutdown", ""):
        changes = [AttachReservation(1, name or " "), ExtendReservation(name, 0)]
        failures = client.apply(changes)
        assert [failure.change for failure in failures] == changes
        assert all("cannot be given to scontrol" in failure.message for failure in failures)


def test_signal_requeue_and_start_at_once(client: SlurmClient, cluster: Cluster) -> None:
    job = submit(cluster, "--requeue", script="trap 'exit 0' USR1\nwhile :; do sleep 0.1; done")
    other = submit(cluster, "--requeue")
    until(lambda: all(j.state == "RUNNING" for j in client.jobs()), "both jobs run")
    assert client.apply([RequeueJob(other)]) == ()
    start_again(client, other)
    until(lambda: any(j.job_id == other and j.state == "RUNNING" for j in client.jobs()), "it runs again")
    assert {j.job_id: j.restarts for j in client.jobs()} == {job: 0, other: 1}
    assert client.apply([SignalJob(job, "USR1")]) == ()
    until(lambda: [j.job_id for j in client.jobs()] == [other], "the signalled job ends by itself")
    assert client.apply([CancelJob(other)]) == ()
    until(lambda: client.jobs() == (), "the cancelled job is gone")


def test_tasks_of_arrays_of_which_others_wait_are_signalled_once(
    client: SlurmClient, cluster: Cluster, tmp_path: Path
) -> None:
    """slurmctld does it, but answers that the array is in transition."""
    tmp_path.chmod(0o755)
    told = tmp_path / "told"
    script = f"trap 'echo $SLURM_ARRAY_JOB_ID >> {told}' USR1; touch {tmp_path}/ready-$SLURM_JOB_ID"
    arrays = [
        submit(cluster, "--array=0-4%1", "--gres=gpu:1", script=f"{script}; while :; do sleep 0.1; done")
        for _ in range(3)
    ]
    until(lambda: len(list(tmp_path.glob("ready-*"))) == 3, "a task of each listens")
    tasks = {job.array_job_id: job.job_id for job in client.jobs() if job.state == "RUNNING"}
    assert client.apply([SignalJob(tasks[array], "USR1") for array in arrays]) == ()
    until(lambda: told.exists() and len(told.read_text().splitlines()) == 3, "each has its signal")
    assert sorted(map(int, told.read_text().split())) == sorted(arrays)


def test_a_signal_that_reaches_no_process_is_told(client: SlurmClient, cluster: Cluster) -> None:
    array = submit(cluster, "--array=0-1", "--gres=gpu:1", script="trap : USR1\nwhile :; do sleep 0.1; done")
    until(lambda: [job.state for job in client.jobs()] == ["RUNNING"] * 2, "both tasks run")
    run(cluster, "scontrol", "suspend", f"{array}_0")
    signals = {job.array_task_id: SignalJob(job.job_id, "USR1") for job in client.jobs()}
    assert [failure.change for failure in client.apply(list(signals.values()))] == [signals[0]]
    run(cluster, "scontrol", "resume", f"{array}_0")
    assert client.apply(list(signals.values())) == ()


def test_a_finished_job_is_not_run_again(client: SlurmClient, cluster: Cluster) -> None:
    job = submit(cluster, "--requeue", script="true")
    until(lambda: client.jobs() == (), "the job has ended")
    client.apply([RequeueJob(job)])
    assert "JobState=COMPLETED" in run(cluster, "scontrol", "show", "job", str(job))


def test_load(client: SlurmClient) -> None:
    load = client.load()
    assert load.server_threads >= 1
    assert load.last_cycle_s >= 0


def test_an_unreachable_slurmctld_is_its_own_error(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = cluster.layout.slurm_conf.read_text()
    port = next(line for line in text.splitlines() if line.startswith("SlurmctldPort="))
    conf = tmp_path_factory.mktemp("conf") / "slurm.conf"
    conf.write_text(text.replace(port, "SlurmctldPort=1"))
    environment = process.environment({**cluster.env(), "SLURM_CONF": str(conf)})
    with pytest.raises(SlurmUnreachableError):
        CliClient(timeout_s=2, environment=environment).jobs()
    program = batch.find(CliClient(environment=cluster.env()).capabilities().version.release, 10, environment)
    if program is not None:
        with pytest.raises(SlurmUnreachableError, match=batch.PROGRAM + ".*[Uu]nable to contact"):
            batch.write(program, [SetSiteFactor(1, 5)], 60, environment)


def test_the_site_factor_program_refuses_what_it_does_not_understand(cluster: Cluster) -> None:
    environment = process.environment(cluster.env())
    program = batch.find(CliClient(environment=environment).capabilities().version.release, 10, environment)
    if program is None:
        pytest.skip("explsched-site-factors is not installed for this Slurm")
    for line in ("1 2 3", "x 2", "1"):
        answer = process.run([program], 10, environment, stdin=f"1 5\n{line}\n")
        assert (answer.returncode, answer.out) == (2, "")
        assert f"line 2: '{line}' is not JOBID FACTOR" in answer.err


def test_submit_and_find_by_tag(client: SlurmClient, cluster: Cluster) -> None:
    script = "#!/bin/bash\nsleep 600\n"
    tag = f"tag:{time.time_ns()}:"  # slurmctld still knows the ended jobs of other adapters' turns
    first = client.submit(script, [f"--comment={tag}1", "--job-name=one", "--output=/dev/null"])
    second = client.submit(script, [f"--comment={tag}2", f"--dependency=afterany:{first}", "--output=/dev/null"])
    submit(cluster, "--comment=tag:b")
    submit(cluster)
    found = {job.job_id: job for job in client.tagged_jobs(tag)}
    assert {job_id: job.comment for job_id, job in found.items()} == {first: f"{tag}1", second: f"{tag}2"}
    assert found[first].name == "one"
    until(lambda: {job.job_id: job.state for job in client.tagged_jobs(tag)}[first] == "RUNNING", "the first runs")
    queue = {job.job_id: job for job in client.queue()}
    assert queue[first].start_s == pytest.approx(time.time(), abs=60)
    assert (queue[second].start_s, queue[second].ready) == (None, False), "it waits for the first"
    assert queue[second].partitions == found[second].partitions
    assert {(job.nodes, job.limit_s) for job in queue.values()} == {(1, found[first].time_limit_s)}
    assert client.apply([ClearDependency(second)]) == ()
    until(lambda: all(job.state == "RUNNING" for job in client.tagged_jobs(tag)), "both run")
    assert client.apply([CancelJob(first)]) == ()
    until(lambda: {job.job_id: job.state for job in client.tagged_jobs(tag)}[first] == "CANCELLED", "it has ended")
    assert first not in {job.job_id for job in client.jobs() if job.state == "RUNNING"}


def test_a_job_that_outlives_its_reservation_waits(client: SlurmClient, cluster: Cluster) -> None:
    """Slurm shows RESV_DEL_HOLD in place of PENDING from then on, also once the job is released."""
    every_node = ("--nodes=4", "--exclusive")
    first = submit(cluster, *every_node)
    until(lambda: any(job.job_id == first and job.state == "RUNNING" for job in client.jobs()), "the first runs")
    when = ("StartTime=now", "Duration=60", "Nodes=ALL", "Users=root", "Flags=IGNORE_JOBS")
    run(cluster, "scontrol", "create", "reservation", "ReservationName=brief", *when)
    second = submit(cluster, *every_node, "--reservation=brief")
    run(cluster, "scontrol", "update", "ReservationName=brief", "EndTime=now+2")

    def record() -> SlurmJob:
        return next(job for job in client.jobs() if job.job_id == second)

    until(lambda: record().reason == "Reservation brief was deleted", "Slurm holds it", patience_s=180)
    assert (record().state, record().priority) == ("PENDING", 0)
    assert {job.job_id: job.ready for job in client.queue()} == {first: False, second: False}
    run(cluster, "scontrol", "release", str(second))
    assert record().state == "PENDING"
    assert {job.job_id: job.ready for job in client.queue()} == {first: False, second: True}


def test_when_a_job_would_start_is_told_and_nothing_is_submitted(client: SlurmClient) -> None:
    before = client.jobs()
    assert client.expected_start_s("#!/bin/bash\ntrue\n", ["--time=1"]) == pytest.approx(time.time(), abs=120)
    with pytest.raises(SlurmError, match="tells no start: .*artition"):
        client.expected_start_s("#!/bin/bash\ntrue\n", ["--partition=nosuch"])
    assert client.jobs() == before


def test_a_refused_submission_says_why(client: SlurmClient) -> None:
    with pytest.raises(SlurmError, match="sbatch refused the job: .*artition"):
        client.submit("#!/bin/bash\ntrue\n", ["--partition=nosuch"])
