"""A gateway with real replica jobs behind a real HAProxy: no request is lost while replicas come, go and die."""

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from inference_gateway.errors import GatewayError
from inference_gateway.replicas.reports import registered
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.devcluster import Cluster
from slurm_plugin.devcluster.machine import reserved
from testkit.gateway import Gateway, Load, services_file
from tests.inference_gateway.rig import ask
from tests.slurm.gateway import in_foreground
from tests.slurm.jobs import empty, run, state_of, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (scripts/install)"),
]


@pytest.fixture
def directory(cluster: Cluster, open_tmp: Path) -> Iterator[Path]:
    """A directory with a path short enough for HAProxy's sockets; all jobs are gone afterwards."""
    yield Path(tempfile.mkdtemp(dir=open_tmp))
    empty(cluster)


@pytest.fixture
def port() -> Iterator[int]:
    """One that HAProxy shares and nobody else gets."""
    with reserved(1) as (held,):
        yield held


def active(client: CliClient, tag: str) -> list[SlurmJob]:
    """The jobs of a tag that wait or run, in order; slurmctld remembers those that have ended, too."""
    found = (job for job in client.tagged_jobs(tag) if job.state in ("PENDING", "RUNNING"))
    return sorted(found, key=lambda job: job.job_id)


def succeeded(record: Path, job_id: int) -> bool:
    """Whether another job than this one serves the gateway."""
    return record.exists() and json.loads(record.read_text())["job_id"] != job_id


def ended(client: CliClient, job_id: int) -> bool:
    return state_of(client, job_id) not in ("RUNNING", "COMPLETING")


def test_a_burst_and_back_without_a_failed_request(cluster: Cluster, directory: Path) -> None:
    # Long requests rather than many: a busy machine sends fewer than were asked for.
    with in_foreground(cluster, directory, requests_per_s=4) as gateway:
        until(lambda: gateway.serving() == 1, "the first replica serves")
        with Load(gateway.url, per_s=3, stream=True).running() as steady:
            with Load(gateway.url, per_s=13, tokens=40).running() as burst:
                until(lambda: gateway.serving() == 4, "the burst has its replicas")
            until(lambda: gateway.serving() < 4, "replicas leave after the burst", patience_s=120)
        assert burst.failures == steady.failures == []
        assert burst.answers["200"] > 0
        until(lambda: len(gateway.events("drained")) > 0, "a replica was drained")
        assert gateway.events("cut") == []


@pytest.mark.parametrize(
    ("options", "most_lost"), [((), 1), (("--batch", "--signal=USR1"), 0)], ids=["cancelled", "signalled"]
)
def test_a_replica_that_is_told_to_end_is_replaced_and_costs_at_most_what_is_on_its_way(
    cluster: Cluster, directory: Path, options: tuple[str, ...], most_lost: int
) -> None:
    """A POST that HAProxy sends in the millisecond in which the relay closes cannot be sent again; others can."""
    with in_foreground(cluster, directory, scale={"min": 2}) as gateway:
        until(lambda: gateway.serving() == 2, "both replicas serve")
        victim = gateway.status()["replicas"][0]
        with Load(gateway.url, per_s=15).running() as load:
            time.sleep(2)
            run(cluster, "scancel", *options, str(victim["job_id"]))
            until(lambda: victim["name"] not in {one["name"] for one in gateway.status()["replicas"]}, "it is gone")
            until(lambda: gateway.serving() == 2, "it is replaced")
        assert len(load.failures) <= most_lost, load.failures
        assert load.answers["200"] > 30


def test_killed_replicas_and_lost_nodes_cost_no_request_that_may_be_repeated(cluster: Cluster, directory: Path) -> None:
    a_node_each = {"cpus": cluster.spec.cpus_per_node}
    options = {"replica": a_node_each, "repeat_posts": "unanswered", "scale": {"min": 3}}
    with in_foreground(cluster, directory, **options) as gateway:
        until(lambda: gateway.serving() == 3, "the replicas serve")
        killed, lost, _ = (one["job_id"] for one in gateway.status()["replicas"])
        node = run(cluster, "squeue", "--noheader", "--jobs", str(lost), "--format=%N").strip()
        client = CliClient(environment=cluster.env())
        with Load(gateway.url, per_s=15).running() as load:
            run(cluster, "scancel", "--signal=KILL", "--full", str(killed))
            until(lambda: killed not in gateway.job_ids() and gateway.serving() == 3, "the killed one is replaced")
            run(cluster, "scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
            until(lambda: lost not in gateway.job_ids() and gateway.serving() == 3, "the lost one is replaced")
            until(lambda: all(found.schedulable for found in client.nodes()), "slurmd has brought its node back")
        assert load.failures == []
        assert load.answers["200"] > 30


def test_a_killed_control_plane_leaves_traffic_alone_and_adopts_all(cluster: Cluster, directory: Path) -> None:
    with in_foreground(cluster, directory, scale={"min": 3}) as gateway:
        until(lambda: gateway.serving() == 3, "the replicas serve")
        before = gateway.job_ids()
        with Load(gateway.url, per_s=15).running() as load:
            for starts in (2, 3):
                os.kill(gateway.control_plane(), signal.SIGKILL)
                until(partial(gateway.has_started, starts), "a new control plane has adopted them")
            until(lambda: gateway.serving() == 3, "all serve")
        assert load.failures == []
        assert gateway.job_ids() == before
        assert set(gateway.jobs_of("submitted")) == before
        assert {job.job_id for job in active(CliClient(environment=cluster.env()), "igw:t:")} == before


def test_the_first_request_waits_for_a_replica(cluster: Cluster, directory: Path) -> None:
    lazy = {"min": 0, "rule": "target", "options": {"look_back": 2, "down_delay_s": 5}}
    with in_foreground(cluster, directory, scale=lazy) as gateway:
        until(lambda: gateway.status()["time_s"] > 0, "the control plane reports")
        assert gateway.status()["replicas"] == []
        answer = ask(urlsplit(gateway.url).port or 0, "POST", "/v1/chat/completions", {"model": "tiny"})
        assert answer.status == 200
        assert gateway.events("submitted") != []
        until(lambda: gateway.status()["replicas"] == [], "nobody asks: the replica goes", patience_s=120)


def test_an_edited_services_file_is_taken_without_a_failed_request(cluster: Cluster, directory: Path) -> None:
    with in_foreground(cluster, directory) as gateway:
        until(lambda: gateway.serving() == 1, "the replica serves")
        before = gateway.job_ids()
        data = yaml.safe_load(gateway.services.read_text())
        with Load(gateway.url, per_s=15).running() as load:
            data["services"]["more"] = data["services"]["tiny"]
            gateway.services.write_text(yaml.safe_dump(data))
            gateway.command("reload")
            until(lambda: gateway.serving("more") == 1, "the new service has a replica")
            data["services"]["more"] = {"replica": {}}
            gateway.services.write_text(yaml.safe_dump(data))
            with pytest.raises(GatewayError, match="command"):
                gateway.command("reload")
            os.kill(gateway.control_plane(), signal.SIGKILL)
            until(lambda: gateway.has_started(3), "the control plane goes on with what was accepted")
            del data["services"]["more"]
            gateway.services.write_text(yaml.safe_dump(data))
            gateway.command("reload")
            until(lambda: not gateway.jobs("more"), "the service that is gone leaves no job")
        assert load.failures == []
        assert before <= gateway.job_ids()


def test_a_service_that_a_reload_removes_finishes_its_requests(cluster: Cluster, directory: Path) -> None:
    """Nor does a slip in the services file, which is mended while one is open, cost its replica."""
    with in_foreground(cluster, directory) as gateway, ThreadPoolExecutor(1) as pool:
        until(lambda: gateway.serving() == 1, "the replica serves")
        good = gateway.services.read_text()
        slip = good.replace("  tiny:", "  tinny:")
        (job,) = jobs = gateway.jobs("tiny")
        asked = {"model": "tiny", "stream": True, "max_tokens": 1500}
        stream = pool.submit(ask, urlsplit(gateway.url).port or 0, "POST", "/v1/chat/completions", asked)
        until(lambda: gateway.status()["in_flight"] == 1, "a request is open")
        for edited in (slip, good, slip):
            before = len(gateway.events("control plane started"))
            gateway.services.write_text(edited)
            gateway.command("reload")
            until(partial(gateway.has_started, before + 1), "the control plane has the edited file")
            assert (gateway.jobs("tiny"), gateway.serving("tiny")) == (jobs, int(edited == good))
            assert not stream.done()
        assert stream.result().body.endswith(b"data: [DONE]\n\n")
        until(lambda: not gateway.jobs("tiny"), "the replica ends after its last request")
        assert job in gateway.jobs_of("drained")


def test_a_broken_command_is_given_up(cluster: Cluster, directory: Path) -> None:
    broken = {"command": "false {port}"}
    with in_foreground(cluster, directory, replica=broken, scale={"min": 4, "attempts": 2}) as gateway:
        until(lambda: gateway.status().get("given_up") is True, "it gives up")
        submitted = len(gateway.events("submitted"))
        assert submitted == 5  # four at once, then one at a time
        gateway.command("scale", "tiny", "1")
        until(lambda: len(gateway.events("submitted")) > submitted, "a person can let it try again")


def test_a_gateway_job_hands_over_before_its_time_limit(cluster: Cluster, directory: Path, port: int) -> None:
    services = services_file(directory, port, scale={"min": 2})
    gateway = Gateway(cluster.env(), services, "", directory / "gateway")
    gateway.command("up", "--wait", "60", "--time", "2", "--sbatch", f"--export=ALL,TMPDIR={directory}")
    record = gateway.state / "gateway.json"
    first = json.loads(record.read_text())["job_id"]
    until(lambda: gateway.serving() == 2, "the replicas serve")
    replicas = gateway.job_ids()
    client = CliClient(environment=cluster.env())
    with Load(gateway.command("address").strip(), per_s=10).running() as load:
        until(partial(succeeded, record, first), "the successor serves", 120)
        until(partial(ended, client, first), "the first one has ended")
        time.sleep(2)
    assert load.failures == []
    assert gateway.job_ids() == replicas
    assert "does not start" not in (gateway.state / "gateway.log").read_text()
    gateway.command("down", "--now")


def test_a_gateway_job_that_is_signalled_or_killed_is_succeeded_by_another(
    cluster: Cluster, directory: Path, port: int
) -> None:
    """The signal says to hand over, and costs no request; what a reload has changed of the job is in force then."""
    services = services_file(directory, port, scale={"min": 2, "max": 2})
    gateway = Gateway(cluster.env(), services, "", directory / "gateway")
    options = ("--sbatch", f"--export=ALL,TMPDIR={directory}")
    gateway.command("up", "--wait", "60", *options)
    until(lambda: gateway.serving() == 2, "the replicas serve")
    client = CliClient(environment=cluster.env())
    replicas = gateway.job_ids()
    address = gateway.command("address")
    record = gateway.state / "gateway.json"
    until(lambda: [job.state for job in active(client, "igwjob:t")] == ["RUNNING", "PENDING"], "a successor waits")
    changed = yaml.safe_load(services.read_text())
    services.write_text(yaml.safe_dump({**changed, "job": {**changed.get("job", {}), "time": "0:50:00"}}))
    gateway.command("reload")
    for ending in (("--batch", "--signal=USR1"), ("--full", "--signal=KILL")):
        until(lambda: [job.state for job in active(client, "igwjob:t")] == ["RUNNING", "PENDING"], "a successor waits")
        first = json.loads(record.read_text())["job_id"]
        with Load(address.strip(), per_s=10).running() as load:
            run(cluster, "scancel", *ending, str(first))
            until(partial(succeeded, record, first), "the successor serves")
            until(partial(ended, client, first), "the first one has ended")
        assert ending[0] == "--full" or load.failures == []
        assert gateway.command("address") == address
        assert {job.time_limit_s for job in active(client, "igwjob:t")} == {3000.0}
    with Load(address.strip(), per_s=10).running() as load:
        until(lambda: gateway.serving() == 2, "its replicas are adopted")
        time.sleep(2)
    assert load.failures == []
    assert gateway.job_ids() == replicas
    gateway.command("down")
    assert active(client, "igw") == []


def test_replicas_serve_their_gateway_alone_and_share_no_key(cluster: Cluster, directory: Path) -> None:
    with in_foreground(cluster, directory, scale={"min": 2}, metrics={}) as gateway:
        until(lambda: gateway.serving() == 2, "both replicas serve")
        until(lambda: all(one["load"] for one in gateway.status()["replicas"]), "their metrics are read")
        places = [gateway.state / "replicas" / one["name"] for one in gateway.status()["replicas"]]
        assert len({(place / "key").read_text() for place in places}) == 2
        for place in places:
            told = registered(place)
            assert told is not None
            with socket.create_connection((told.host, told.port), timeout=30) as link:
                link.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert not link.recv(1000).startswith(b"HTTP")
        with Load(gateway.url, per_s=5).running() as load:
            time.sleep(1)
        assert load.failures == []
