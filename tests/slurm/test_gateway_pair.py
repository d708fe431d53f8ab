"""Two gateways for the same services: one leads, both serve, and what is killed costs the other nothing."""

import http.client
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from slurm_plugin.devcluster.machine import reserved
from testkit.gateway import Gateway, Load, second, services_file
from tests.inference_gateway.rig import ask
from tests.slurm.gateway import in_foreground
from tests.slurm.jobs import empty, run, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy (scripts/install)"),
]


@pytest.fixture
def directory(cluster: Cluster, open_tmp: Path) -> Iterator[Path]:
    """A directory with a path short enough for HAProxy's sockets; all jobs are gone afterwards."""
    yield Path(tempfile.mkdtemp(dir=open_tmp))
    empty(cluster)


def leader(gateway: Gateway) -> int:
    """The control plane that holds the lock of both."""
    inode = gateway.paths.lock.stat().st_ino
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    (pid,) = (int(lock[4]) for lock in locks if lock[1] == "FLOCK" and lock[5].endswith(f":{inode}"))
    return pid


def offers(port: int, model: str) -> bool:
    """Whether the gateway at this port lists the model; one whose job was just killed may answer in part, or not."""
    try:
        answer = ask(port, "GET", "/v1/models")
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == 200 and model in {found["id"] for found in answer.json["data"]}


def test_the_lead_passes_on_and_replicas_are_submitted_once(cluster: Cluster, directory: Path) -> None:
    with (
        reserved(1) as (port,),
        in_foreground(cluster, directory, scale={"min": 2}, second_port=port) as first,
    ):
        other = second(first)
        assert (first.state / "address").read_text() == f"{first.url}\n{other.url}\n"
        until(lambda: first.serving() == 2, "both replicas serve")
        before = first.job_ids()
        until(lambda: json.loads(other.paths.plane.read_text())["orders_s"] > 0, "the other one follows")
        with Load(first.url, per_s=5).running() as one, Load(other.url, per_s=5).running() as two:
            for started in (2, 3, 4):
                os.kill(leader(first), signal.SIGKILL)
                until(partial(first.has_started, started), "another control plane leads")
            until(lambda: first.serving() == 2, "all serve")
            until(lambda: min(one.answers["200"], two.answers["200"]) > 30, "both answer")
        assert one.failures == two.failures == []
        assert first.job_ids() == before
        assert set(first.jobs_of("submitted")) == before
        with Load(first.url, per_s=5).running() as one, Load(other.url, per_s=5).running() as two:
            time.sleep(1)
            first.command("scale", "tiny", "3")
            until(lambda: first.serving() == 3, "one more serves")
            until(lambda: len(json.loads(other.paths.plane.read_text())["servers"]) == 3, "at the other one, too")
            os.kill(other.haproxy(), signal.SIGKILL)
            time.sleep(3)
        assert one.failures == []
        assert two.answers["200"] > 0


def test_both_jobs_start_and_end_together(cluster: Cluster, directory: Path) -> None:
    with reserved(2) as (gateway_port, second_port):
        services = services_file(directory, gateway_port, scale={"min": 1}, second_port=second_port)
        gateway = Gateway(cluster.env(), services, f"http://127.0.0.1:{gateway_port}", directory / "gateway")
        gateway.command("up", "--wait", "60", "--sbatch", f"--export=ALL,TMPDIR={directory}")
        assert len(gateway.command("address").split()) == 2
        until(lambda: gateway.serving() == 1, "the replica serves")
        gateway.command("reload")
        with Load(second(gateway).url, per_s=5).running() as load:
            time.sleep(1)
        assert load.failures == []
        assert len(gateway.jobs("tiny")) == 1
        edited = yaml.safe_load(services.read_text())
        edited["services"]["tiny"]["models"] = ["edited"]
        services.write_text(yaml.safe_dump(edited))
        job = json.loads(second(gateway).paths.gateway.read_text())["job_id"]
        run(cluster, "scancel", "--full", "--signal=KILL", str(job))
        for port in (second_port, gateway_port):
            until(partial(offers, port, "edited"), "what a successor takes the other one takes, too")
        gateway.command("down")
        found = CliClient(environment=cluster.env()).tagged_jobs("igw")
        assert [job for job in found if job.state in ("PENDING", "RUNNING")] == []
