"""Users with real uids who pry, squat and lie, and the daemon as an admin who is not root, on a real cluster."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from explsched import report
from explsched.spool import MODE
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import parse
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.steering.controller import Controller
from tests.slurm.jobs import config, empty, run, state_of, submit, until
from tests.slurm.users import STEERS, as_user

pytestmark = pytest.mark.slurm
ADA, EVE = "news", "uucp"
SETTINGS = (("PriorityWeightAge", "1000"), ("PriorityWeightQOS", "50000"))


@pytest.fixture(scope="module")
def site(needs_accounting: None, open_tmp: Path) -> Iterator[Cluster]:
    place = open_tmp / "hostile"
    cluster = up(ClusterSpec(nodes=1, gpus_per_node=4, shards_per_node=0, accounting=True, extra=SETTINGS), place)
    run(cluster, "sacctmgr", "--immediate", "add", "account", "lab")
    run(cluster, "sacctmgr", "--immediate", "add", "qos", "urgent", "priority=100")
    for user in (ADA, EVE):
        qos = ("qos=normal,urgent", "defaultqos=normal")
        run(cluster, "sacctmgr", "--immediate", "add", "user", user, "account=lab", *qos)
    run(cluster, "sacctmgr", "--immediate", "add", "user", STEERS, "account=lab", "AdminLevel=Admin")
    yield cluster
    down(place)


@pytest.fixture
def client(site: Cluster) -> Iterator[CliClient]:
    yield CliClient(environment=site.env())
    for user in (ADA, EVE):
        run(site, "scancel", f"--user={user}")
    empty(site)


@pytest.fixture
def private_spool(open_tmp: Path) -> Path:
    """As the package makes it: of the daemon's group."""
    path = open_tmp / f"private-{time.monotonic_ns()}"
    path.mkdir()
    os.chown(path, 0, pwd.getpwnam(STEERS).pw_gid)
    path.chmod(MODE)
    return path


def submit_as(site: Cluster, user: str, *options: str) -> int:
    return as_user(user, lambda: submit(site, "--chdir=/tmp", "--gres=gpu:1", *options))


def report_as(user: str, spool: Path, job_id: int, **values: float) -> None:
    def call() -> bool:
        os.environ |= {"EXPLSCHED_SPOOL": str(spool), "SLURM_JOB_ID": str(job_id)}
        for step in (1, 2, 3):
            report(step=step, **values)
        return True

    as_user(user, call)


def uid_of(user: str) -> int:
    return pwd.getpwnam(user).pw_uid


def reports_seen(user: str, spool: Path, jobs: dict[int, str]) -> dict[int, int]:
    """How many reports of each job a process of that user can read."""

    def call() -> dict[int, int]:
        owners = {job_id: uid_of(owner) for job_id, owner in jobs.items()}
        found = ProgressSpool(spool).read(owners, time.time())
        return {job_id: len(progress.reports) for job_id, progress in found.items()} | {0: 0}

    return {job_id: count for job_id, count in as_user(user, call).items() if count}


def kinds_in_order(jobs: list[SlurmJob], priorities: dict[int, int]) -> list[tuple[str, str]]:
    return [(job.user, job.qos) for job in sorted(jobs, key=lambda job: (-priorities[job.job_id], job.job_id))]


def test_reports_are_private_and_lies_move_no_other_users_job(
    site: Cluster, client: CliClient, private_spool: Path, tmp_path: Path
) -> None:
    taken = private_spool / str(uid_of(ADA))  # the name that her directory would have
    taken.symlink_to("/etc")
    os.chown(taken, uid_of(EVE), uid_of(EVE), follow_symlinks=False)
    trainings = {
        submit_as(site, user, "--comment=explsched:sweep=s", "--time=60"): user for user in (ADA, ADA, EVE, EVE)
    }
    until(lambda: all(state_of(client, job) == "RUNNING" for job in trainings), "the cluster is full")
    for job_id, user in trainings.items():
        report_as(user, private_spool, job_id, loss=0.5 if user == ADA else 1e-9)
    every = dict.fromkeys(trainings, 3)
    assert reports_seen(STEERS, private_spool, trainings) == every
    for user in (ADA, EVE):
        assert reports_seen(user, private_spool, trainings) == {job: 3 for job in trainings if trainings[job] == user}

    for minutes in (90, 60, 30):
        for user, qos in ((ADA, "normal"), (EVE, "normal"), (EVE, "urgent"), (ADA, "urgent")):
            lie = ("--comment=explsched:sweep=mine",) if user == EVE else ()
            submit_as(site, user, f"--time={minutes}", f"--qos={qos}", *lie)
    waiting = [job.job_id for job in client.jobs() if job.state == "PENDING"]
    until(lambda: all(job.natives for job in client.jobs() if job.job_id in waiting), "Slurm has computed priorities")
    spool_settings = {"order": {"scope": "user", "site_factor_file": str(private_spool / "site_factors.json")}}
    text = config(private_spool, "srsf", **spool_settings)

    def a_pass() -> tuple[int, int]:
        """As the administrator, who is not root."""
        done = Controller(client, parse(text, tmp_path / "explsched.yaml")).reconcile(time.time())
        return len(done.changes), len(done.failures)

    changes, failures = as_user(STEERS, a_pass)
    assert (changes > 0, failures) == (True, 0)
    jobs = [job for job in client.jobs() if job.job_id in waiting]
    alone = kinds_in_order(jobs, {job.job_id: job.native_priority or 0 for job in jobs})
    assert kinds_in_order(jobs, {job.job_id: job.priority for job in jobs}) == alone
    assert all(state_of(client, job) == "RUNNING" for job in trainings)
