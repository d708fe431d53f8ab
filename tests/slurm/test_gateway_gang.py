"""Replicas over several nodes of a real cluster, with their model on the nodes' disk."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster
from testkit.gateway import SERVER, Load
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


def test_a_replica_over_two_nodes_is_one_and_is_replaced_as_one(cluster: Cluster, directory: Path) -> None:
    (directory / "model").write_text("weights")
    told = f"{directory}/told"
    write = f"(env; cat {{model}}) > {told}.$SLURM_JOB_ID"
    worker = f"sh -c '{write}; exec sleep 600' {{rank}} {{leader}}"
    replica = {
        "command": f"{SERVER} --token-ms 20 --model tiny --model nodes-{{nodes}}-{{rank}}",
        "worker_command": worker,
        "nodes": 2,
        "stage": {"source": f"{directory}/model", "target": f"{directory}/local"},
    }
    with in_foreground(cluster, directory, replica=replica, scale={"min": 1, "max": 1}) as gateway:
        until(lambda: gateway.serving() == 1, "the leader serves")
        [first] = gateway.job_ids()
        assert run(cluster, "squeue", "--noheader", "--jobs", str(first), "--format=%D").strip() == "2"
        lines = Path(f"{told}.{first}").read_text().splitlines()
        assert lines[-1] == "weights"
        heard = dict(line.split("=", 1) for line in lines if "=" in line)
        assert (heard["EXPLSCHED_RANK"], heard["EXPLSCHED_NODES"], heard["PET_NODE_RANK"]) == ("1", "2", "1")
        assert heard["MASTER_ADDR"]
        assert heard["EXPLSCHED_REPLICA_KEY"]
        [endpoint] = yaml.safe_load((gateway.state / "endpoints" / "tiny.yaml").read_text())["endpoints"]
        assert endpoint["labels"] == {"service": "tiny", "job": str(first)}
        assert endpoint["port"] == str(gateway.status()["replicas"][0]["port"])
        with Load(gateway.url, per_s=5).running() as load:
            time.sleep(1)
        assert load.failures == []
        # The worker's end is the replica's.
        run(cluster, "scancel", "--signal=KILL", f"{first}.0")
        until(lambda: gateway.serving() == 1 and first not in gateway.job_ids(), "another gang serves")
        [second] = gateway.job_ids()
        node = run(cluster, "squeue", "--noheader", "--jobs", str(second), "--format=%N").strip()
        last = run(cluster, "scontrol", "show", "hostnames", node).split()[-1]
        run(cluster, "scontrol", "update", f"NodeName={last}", "State=DOWN", "Reason=test")
        until(lambda: gateway.serving() == 1 and second not in gateway.job_ids(), "the lost node's gang is replaced")
        client = CliClient(environment=cluster.env())
        until(lambda: all(found.schedulable for found in client.nodes()), "slurmd has brought its node back")
