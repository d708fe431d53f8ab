"""Scope `user` on a real cluster with accounts, fair share, QOS, nice and two partitions, for unprivileged users.

Between users the order stays exactly that of Slurm alone; a policy moves a user's own jobs only.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from explsched import process
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from slurm_plugin.observation.site_factors import OwnFactors
from tests.slurm.jobs import a_daemon, changes, command, config, empty, environment, run, state_of, submit, until
from tests.slurm.users import as_user

pytestmark = pytest.mark.slurm
ACCOUNTS = {"news": "vision", "uucp": "vision", "backup": "speech"}
SHARES = {"vision": 10, "speech": 40}
SETTINGS = (
    ("PriorityWeightAge", "2000"),
    ("PriorityMaxAge", "1-0"),
    ("PriorityWeightFairshare", "100000"),
    ("PriorityWeightQOS", "50000"),
    ("PriorityWeightPartition", "20000"),
    ("PriorityCalcPeriod", "1"),
    ("PartitionName", "long Nodes=n2 MaxTime=INFINITE PriorityJobFactor=1000 State=UP"),
    ("PartitionName", "urgent Nodes=n2 MaxTime=INFINITE PriorityTier=10 State=UP"),
)
SCOPE = {"order": {"scope": "user"}}


@pytest.fixture(scope="module")
def site(needs_accounting: None, open_tmp: Path) -> Iterator[Cluster]:
    place = open_tmp / "scope"
    cluster = up(ClusterSpec(nodes=2, gpus_per_node=4, shards_per_node=0, accounting=True, extra=SETTINGS), place)
    for account, shares in SHARES.items():
        run(cluster, "sacctmgr", "--immediate", "add", "account", account, f"fairshare={shares}")
    run(cluster, "sacctmgr", "--immediate", "add", "qos", "urgent", "priority=100")
    for user, account in ACCOUNTS.items():
        qos = ("qos=normal,urgent", "defaultqos=normal")
        run(cluster, "sacctmgr", "--immediate", "add", "user", user, f"account={account}", *qos)
    yield cluster
    down(place)


@pytest.fixture
def client(site: Cluster) -> Iterator[CliClient]:
    """The cluster is full; it is empty afterwards."""
    client = CliClient(environment=site.env())
    full = submit(site, "--nodes=2", "--gpus-per-node=4", "--exclusive")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    yield client
    for user in ACCOUNTS:
        run(site, "scancel", f"--user={user}")
    empty(site)


def submit_as(site: Cluster, user: str, *options: str) -> int:
    return as_user(user, lambda: submit(site, "--chdir=/tmp", "--gres=gpu:1", *options))


def a_queue(site: Cluster) -> dict[int, str]:
    """Jobs of three users, in turns, the long ones first; what each of them is about."""
    kinds: dict[int, str] = {}
    for minutes in (90, 60, 30, 10):
        for user in ACCOUNTS:
            for options in ((), ("--nice=3000",), ("--qos=urgent",), ("--partition=long",), ("--partition=urgent",)):
                job = submit_as(site, user, f"--time={minutes}", *options)
                kinds[job] = " ".join((user, *options))
    return kinds


def in_order(client: CliClient, jobs: dict[int, str]) -> list[SlurmJob]:
    """The waiting jobs as Slurm orders them."""
    waiting = [job for job in client.jobs() if job.job_id in jobs and job.state == "PENDING"]
    return sorted(waiting, key=lambda job: (_tier(job), -job.priority, job.submit_s, job.job_id))


def by_slurm_alone(client: CliClient, jobs: dict[int, str]) -> list[SlurmJob]:
    """As Slurm would order them now without any site factor."""
    waiting = [job for job in client.jobs() if job.job_id in jobs and job.state == "PENDING"]
    return sorted(waiting, key=lambda job: (_tier(job), -(job.native_priority or 0), job.submit_s, job.job_id))


def _tier(job: SlurmJob) -> bool:
    """Slurm sorts by PriorityTier first, whatever the priorities."""
    return job.partition != "urgent"


def every_priority_is_known(client: CliClient, jobs: dict[int, str]) -> bool:
    return all(job.natives for job in client.jobs() if job.job_id in jobs)


def once(site: Cluster, path: Path) -> None:
    argv = [command("sexplschedd"), "--once", "--config", str(path)]
    done = subprocess.run(argv, env=environment(site), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def settings(spool: Path, tmp_path: Path, scope: str = "user", policy: str = "srsf") -> str:
    order = {"scope": scope, "site_factor_file": str(tmp_path / "site_factors.json")}
    return config(spool, policy, order=order)


def test_fair_share_nice_qos_partition_and_tier_decide_between_users(
    site: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    kinds = a_queue(site)
    until(lambda: every_priority_is_known(client, kinds), "Slurm has computed all priorities")
    alone = [kinds[job.job_id] for job in by_slurm_alone(client, kinds)]
    path = tmp_path / "explsched.yaml"
    path.write_text(settings(spool, tmp_path))
    once(site, path)
    ours = in_order(client, kinds)
    assert [kinds[job.job_id] for job in ours] == alone
    assert any(job.site_factor for job in ours)
    for kind in set(kinds.values()):
        limits = [job.time_limit_s for job in ours if kinds[job.job_id] == kind]
        is_cut_off = "--nice" in kind  # by more than there is: nobody is first among these but by submission
        assert limits == sorted(limits, key=lambda limit: limit or 0, reverse=is_cut_off), kind
    # Slurm computes all priorities anew each minute: neither order nor site factors change.
    once(site, path)
    again = in_order(client, kinds)
    assert [kinds[job.job_id] for job in again] == [kinds[job.job_id] for job in by_slurm_alone(client, kinds)]


def test_a_liar_moves_only_his_own_jobs(site: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    kinds = {submit_as(site, user, f"--time={minutes}"): user for minutes in (60, 30) for user in ACCOUNTS}
    lie = "--comment=explsched:sweep=all-mine"
    kinds |= {submit_as(site, "uucp", "--time=1", lie): "uucp" for _ in range(2)}
    until(lambda: every_priority_is_known(client, kinds), "Slurm has computed all priorities")
    alone = [kinds[job.job_id] for job in by_slurm_alone(client, kinds)]
    path = tmp_path / "explsched.yaml"
    path.write_text(settings(spool, tmp_path, policy="explsched"))
    once(site, path)
    assert [kinds[job.job_id] for job in in_order(client, kinds)] == alone


def test_what_an_admin_has_set_is_kept_and_told(site: Cluster, client: CliClient, spool: Path, tmp_path: Path) -> None:
    jobs = {submit_as(site, "news", f"--time={minutes}"): "news" for minutes in (60, 30, 10)}
    first = min(jobs)
    until(lambda: every_priority_is_known(client, jobs), "Slurm has computed all priorities")
    run(site, "scontrol", "update", f"JobId={first}", "SiteFactor=-4000")
    path = tmp_path / "explsched.yaml"
    path.write_text(settings(spool, tmp_path))
    once(site, path)
    once(site, path)
    factors = {job.job_id: job.site_factor or 0 for job in client.jobs() if job.job_id in jobs}
    assert factors[first] <= -3990  # still as much lower as the admin wanted
    told = json.loads(
        subprocess.run(
            [command("sexplsched"), "doctor", "--json", "--config", str(path)],
            env=environment(site),
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    )
    (finding,) = [one for one in told if one["check"] == "site factors"]
    assert str(first) in finding["found"]


def test_what_is_ours_stays_ours_while_its_owner_requeues_and_holds_a_job(
    site: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    """The owner may also give it any begin time. The other job is a task that outlives the record of its array."""
    (full,) = [job.job_id for job in client.jobs()]
    array, job = submit_as(site, "uucp", "--array=1-2%1", "--requeue"), submit_as(site, "news", "--requeue")
    until(lambda: every_priority_is_known(client, {array: "uucp", job: "news"}), "Slurm has computed all priorities")
    path = tmp_path / "explsched.yaml"
    path.write_text(settings(spool, tmp_path, scope="partition"))
    once(site, path)
    run(site, "scancel", str(full))
    until(lambda: state_of(client, job) == "RUNNING", "it runs")
    task = next(one.job_id for one in client.jobs() if one.array_task_id == 1)
    once(site, path)
    run(site, "scancel", f"{array}_2")
    for owner, held in (("news", job), ("uucp", task)):
        as_user(owner, partial(run, site, "scontrol", "requeuehold", "State=SpecialExit", str(held)))
    until(lambda: {(one.state, one.priority) for one in client.jobs()} == {("PENDING", 0)}, "they are held")
    once(site, path)
    as_user("news", lambda: run(site, "scontrol", "release", str(job)))
    as_user("news", lambda: run(site, "scontrol", "update", f"JobId={job}", "StartTime=uts200000000000"))
    once(site, path)
    full = submit(site, "--nodes=2", "--gpus-per-node=4", "--exclusive")
    until(lambda: state_of(client, full) == "RUNNING", "the cluster is full")
    run(site, "scontrol", "release", str(task))
    for held in (job, task):
        run(site, "scontrol", "update", f"JobId={held}", "StartTime=now")
    until(lambda: every_priority_is_known(client, {job: "news", task: "uucp"}), "they wait again")
    found = [one for one in client.jobs() if one.job_id != full]
    assert all(one.site_factor for one in found)
    assert OwnFactors.of_daemon(tmp_path / "site_factors.json").others(found) == {}


def test_site_factors_survive_a_restart_of_the_daemon(
    site: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    jobs = {submit_as(site, "news", f"--time={minutes}"): "news" for minutes in (60, 30, 10)}
    until(lambda: every_priority_is_known(client, jobs), "Slurm has computed all priorities")
    text = settings(spool, tmp_path)
    log = tmp_path / "log"
    for _ in range(2):
        log.unlink(missing_ok=True)
        with a_daemon(site, tmp_path, text):
            until(lambda: len(changes(log)) >= 4, "some passes are made")
            assert changes(log)[-1] == 0
    (tmp_path / "site_factors.json").unlink()
    order = [job.job_id for job in in_order(client, jobs)]
    once(site, tmp_path / "explsched.yaml")  # without its notes it takes them for somebody else's, and keeps them
    assert [job.job_id for job in in_order(client, jobs)] == order == sorted(jobs, reverse=True)


def test_a_slurmdbd_that_hangs_stops_no_pass_and_the_order_is_right_when_it_is_back(
    site: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    """Slurm may change no job that slurmdbd is just numbering; what it refuses is written in a later pass."""
    (slurmdbd,) = [daemon for daemon in site.daemons if daemon.name == "slurmdbd"]
    log = tmp_path / "log"

    def passes() -> int:
        return log.read_text().count(" pass jobs=") if log.exists() else 0

    with a_daemon(site, tmp_path, settings(spool, tmp_path)):
        until(passes, "a pass is made")
        process.send(slurmdbd, signal.SIGSTOP)
        try:
            jobs = {submit_as(site, "news", f"--time={minutes}"): "news" for minutes in (60, 30, 10)}
            before = passes()
            until(lambda: passes() > before + 2, "passes go on", 90)
        finally:
            process.send(slurmdbd, signal.SIGCONT)
        best_first = sorted(jobs, reverse=True)
        until(lambda: [job.job_id for job in in_order(client, jobs)] == best_first, "they are in order", 90)
    assert all(job.priority > 0 for job in client.jobs() if job.job_id in jobs)
