"""Leases on a real cluster: reservations that hold nodes for a blocked gang, and go whatever happens to the daemon."""

import signal
import time
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import parse
from slurm_plugin.devcluster import Cluster
from slurm_plugin.observation.standing import leased_job
from slurm_plugin.steering.controller import Controller
from tests.slurm.jobs import a_daemon, config, run, state_of, submit, until

pytestmark = [pytest.mark.slurm, pytest.mark.long]


def leases(client: CliClient) -> list[str]:
    return [r.name for r in client.reservations() if leased_job(r.name) is not None]


def test_a_blocked_gang_gets_a_lease_that_goes_with_the_job(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    running = submit(small, "--nodes=1", "--gpus-per-node=4", "--time=60")
    until(lambda: state_of(client, running) == "RUNNING", "one node is taken")
    gang = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=60")
    with a_daemon(small, tmp_path, config(spool, "fifo")):
        until(lambda: leases(client) == [f"explsched_{gang}"], "the gang has a lease")
        (lease,) = client.reservations()
        assert lease.end_s - lease.start_s <= 120
        later = submit(small, "--nodes=1", "--gpus-per-node=1", "--time=120")
        short = submit(small, "--nodes=1", "--gpus-per-node=1", "--time=5")
        until(lambda: state_of(client, short) == "RUNNING", "a short job is backfilled")
        assert state_of(client, later) == "PENDING"
        run(small, "scancel", str(running), str(short))
        until(lambda: state_of(client, gang) == "RUNNING", "the gang starts before its lease")
        until(lambda: leases(client) == [], "the lease goes when its job has started")


def test_leases_of_a_dead_daemon_do_their_work_and_vanish(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    running = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=1", script="sleep 50")
    until(lambda: state_of(client, running) == "RUNNING", "the cluster is full")
    gang = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=60")
    with a_daemon(small, tmp_path, config(spool, "fifo")) as daemon:
        until(lambda: leases(client) == [f"explsched_{gang}"], "the gang has a lease")
        daemon.send_signal(signal.SIGKILL)
    (lease,) = client.reservations()
    until(lambda: state_of(client, gang) == "RUNNING", "Slurm starts the leased job by itself", 120)
    until(lambda: client.reservations() == (), "the lease ends by itself", 240)
    assert lease.end_s == lease.start_s + 2 * 60  # Slurm takes the name off its list in a cycle of its own


def test_a_daemon_that_stops_takes_its_leases_with_it(
    small: Cluster, client: CliClient, spool: Path, tmp_path: Path
) -> None:
    running = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=60")
    until(lambda: state_of(client, running) == "RUNNING", "the cluster is full")
    gang = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=60")
    with a_daemon(small, tmp_path, config(spool, "fifo")) as daemon:
        until(lambda: leases(client) == [f"explsched_{gang}"], "the gang has a lease")
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
        assert client.reservations() == ()
        assert {job.reservation for job in client.jobs()} == {""}


def test_a_lease_stays_until_its_owner_changes_what_the_job_asks_for(
    small: Cluster, client: CliClient, spool: Path
) -> None:
    """It would start before everybody's on whatever nodes it asks for then."""
    running = submit(small, "--nodes=2", "--gpus-per-node=4", "--time=60")
    until(lambda: state_of(client, running) == "RUNNING", "the cluster is full")
    job = submit(small, "--nodes=1", "--gpus-per-node=4", "--time=60")
    until(lambda: {one.reason for one in client.jobs()} == {"None", "Resources"}, "Slurm has tested it")
    daemon = Controller(client, parse(config(spool, "fifo"), Path("explsched.yaml")))
    for _ in range(3):
        daemon.reconcile(time.time())
        assert leases(client) == [f"explsched_{job}"]
    run(small, "scontrol", "update", f"JobId={job}", "ExcNodeList=n1")
    for _ in range(2):
        daemon.reconcile(time.time())
        assert client.reservations() == ()
        assert {one.reservation for one in client.jobs()} == {""}


def test_a_job_that_maintenance_keeps_out_takes_no_lease_from_others(
    small: Cluster, client: CliClient, spool: Path
) -> None:
    one_node = ("--nodes=1", "--gpus-per-node=4", "--chdir=/tmp")
    busy = [submit(small, *one_node, "--time=3") for _ in (1, 2)]
    until(lambda: {state_of(client, job) for job in busy} == {"RUNNING"}, "the cluster is full")
    when = ("StartTime=now+20minutes", "Duration=60", "Nodes=ALL", "Flags=MAINT,IGNORE_JOBS", "Users=root")
    run(small, "scontrol", "create", "reservation", "ReservationName=maintenance", *when)
    order = {"scope": "user", "site_factor_file": str(spool.parent / "site_factors.json")}
    daemon = Controller(client, parse(config(spool, "fifo", order=order), Path("explsched.yaml")))
    try:
        long = submit(small, *one_node, "--time=60", "--uid=games", "--nice=-100")
        short = submit(small, *one_node, "--time=5", "--uid=news")
        until(lambda: _reasons(client).keys() == {long, short}, "both wait")
        until(lambda: "None" not in _reasons(client).values(), "Slurm has tested both")
        daemon.reconcile(time.time())
        assert leases(client) == [f"explsched_{short}"]
        run(small, "scontrol", "update", f"JobId={long}", "TimeMin=5")  # backfill may shorten it
        daemon.reconcile(time.time())
        assert leases(client) == []
    finally:
        run(small, "scancel", "--user=games")
        run(small, "scancel", "--user=news")


def _reasons(client: CliClient) -> dict[int, str]:
    return {job.job_id: job.reason for job in client.jobs() if job.state == "PENDING"}


@pytest.mark.parametrize("asked", ["--array=0-1", "--exclusive"])
def test_a_node_that_comes_free_goes_to_the_user_who_is_next_and_not_to_one_with_a_lease(
    small: Cluster, client: CliClient, spool: Path, asked: str
) -> None:
    """Neither an array nor what is left to Slurm gets a lease itself."""
    one_node = ("--nodes=1", "--gpus-per-node=4", "--time=60", "--chdir=/tmp")
    busy = [submit(small, *one_node) for _ in (1, 2)]
    until(lambda: {state_of(client, job) for job in busy} == {"RUNNING"}, "the cluster is full")
    order = {"scope": "user", "site_factor_file": str(spool.parent / "site_factors.json")}
    daemon = Controller(client, parse(config(spool, "fifo", order=order), Path("explsched.yaml")))
    try:
        submit(small, *one_node, "--uid=games", "--nice=-100", asked)
        late = submit(small, *one_node, "--uid=news")
        waiting = {"Resources", "Priority"}
        until(
            lambda: {job.reason for job in client.jobs() if job.state == "PENDING"} == waiting, "Slurm has tested both"
        )
        daemon.reconcile(time.time())
        assert leases(client) == []
        run(small, "scancel", str(busy[0]))
        until(lambda: {job.user for job in client.jobs() if job.state == "RUNNING"} != {"root"}, "the next one starts")
        assert state_of(client, late) == "PENDING"
    finally:
        run(small, "scancel", "--user=games")
        run(small, "scancel", "--user=news")
