"""Limits of associations and QOS hold for jobs whose size explsched changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.client.changes import SetNodeCount
from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import parse
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from slurm_plugin.steering.controller import Controller
from tests.slurm.jobs import a_daemon, config, empty, run, state_of, submit, until
from tests.slurm.users import ORDINARY, add_users, as_user

pytestmark = pytest.mark.slurm
SETTINGS = (("AccountingStorageEnforce", "associations,limits,qos"), ("AccountingStorageTRES", "gres/gpu"))


@pytest.fixture
def site(needs_accounting: None, open_tmp: Path) -> Iterator[Cluster]:
    place = open_tmp / "limits"
    cluster = up(ClusterSpec(nodes=4, gpus_per_node=4, shards_per_node=0, accounting=True, extra=SETTINGS), place)
    add_users(cluster)
    yield cluster
    run(cluster, "scancel", f"--user={ORDINARY}")
    empty(cluster)
    down(place)


def test_an_elastic_job_over_several_nodes_stays_within_its_owners_limit_on_cpus(
    site: Cluster, spool: Path, tmp_path: Path
) -> None:
    client = CliClient(environment=site.env())
    comment = "--comment=explsched:elastic=1-4/1&checkpoint=USR1"
    elastic = ("--nodes=4", "--ntasks-per-node=1", "--gres=gpu:1", comment, "--chdir=/tmp")

    def held(*options: str) -> int:
        return as_user(ORDINARY, lambda: submit(site, "--hold", *options))

    waits, runs = held(*elastic), held("--ntasks=2", "--gres=gpu:1", "--chdir=/tmp")
    assert not client.look().limits_cpus
    run(site, "sacctmgr", "--immediate", "modify", "qos", "normal", "set", "MaxTRESPerUser=cpu=2")
    client = CliClient(environment=site.env())
    assert client.look().limits_cpus
    run(site, "scontrol", "release", str(runs))
    until(lambda: state_of(client, runs) == "RUNNING", "all CPUs of the owner are in use")
    run(site, "scontrol", "release", str(waits))
    reason = "QOSMaxCpuPerUserLimit"
    until(lambda: reason in [job.reason for job in client.jobs()], "the limit keeps the elastic job from starting")
    done = Controller(client, parse(config(spool), tmp_path / "explsched.yaml")).reconcile(time.time())
    assert not [change for change in done.changes if isinstance(change, SetNodeCount)]


def test_room_is_made_for_one_job_at_a_time_and_for_one_at_most_that_a_limit_stops(
    site: Cluster, spool: Path, tmp_path: Path
) -> None:
    """Two of the four that wait may start; until GPUs are free Slurm does not say that the others may not."""
    client = CliClient(environment=site.env())
    whole = ("--nodes=1", "--gres=gpu:4", "--chdir=/tmp")
    saves = "trap : USR1; while true; do sleep 0.2; done"
    held = [submit(site, *whole, "--comment=explsched:checkpoint=USR1", script=saves) for _ in range(4)]
    until(lambda: all(state_of(client, job_id) == "RUNNING" for job_id in held), "all GPUs are in use")
    run(site, "sacctmgr", "--immediate", "modify", "qos", "normal", "set", "MaxTRESPerUser=gres/gpu=8")
    sections = {
        "las": {"limits_gpu_s": [1.0]},
        "utility": {"quantum_s": 1.0},
        "preemption": {"grace_s": 2.0, "max_per_job": 1},
    }
    with a_daemon(site, tmp_path, config(spool, "tiresias", **sections)):
        waiting = as_user(ORDINARY, lambda: [submit(site, *whole) for _ in range(4)])

        def reasons() -> list[str]:
            return sorted(job.reason for job in client.jobs() if job.job_id in waiting)

        until(lambda: reasons() == ["None", "None", "QOSMaxGRESPerUser", "QOSMaxGRESPerUser"], "two start", 120)
    assert sum(job.restarts for job in client.jobs() if job.job_id in held) in (2, 3)
