"""Submitting and watching small jobs on the tests' cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_plugin.client.changes import StartAtOnce
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.devcluster import Cluster, DevClusterError, machine
from slurm_plugin.devcluster.machine import until as until
from slurm_plugin.observation.standing import has_settled, waits_for_requeue_delay

ROOT = Path(__file__).parents[2]
_PREFIX = machine.prefix()
SPANK_PLUGIN = ROOT / "build" / (f"slurm{_PREFIX}" if _PREFIX else "native") / "slurm_plugin" / "spank" / "explsched.so"
"""Where scripts/native builds it for the Slurm at hand: Slurm loads only plugins of its own release."""


def environment(cluster: Cluster, **more: str) -> dict[str, str]:
    return {**os.environ, **cluster.env(), **more}


def run(cluster: Cluster, *argv: str, stdin: str | None = None) -> str:
    done = subprocess.run(argv, env=environment(cluster), input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: {done.stderr or done.stdout}"
    return done.stdout


def submit(cluster: Cluster, *options: str, script: str = "sleep 600") -> int:
    text = f"#!/bin/bash\n{script}\n"
    return int(run(cluster, "sbatch", "--parsable", "--output=/dev/null", *options, stdin=text))


def sxbatch(cluster: Cluster, *words: str) -> int:
    """Submit as a user would."""
    more = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{environment(cluster)['PATH']}"}
    argv = [command("sxbatch"), "--json", *words]
    told = subprocess.run(argv, env=environment(cluster, **more), capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    job_id: int = json.loads(told.stdout)["job_id"]
    return job_id


def state_of(client: CliClient, job_id: int) -> str:
    return next((job.state for job in client.jobs() if job.job_id == job_id), "GONE")


def start_again(client: SlurmClient, job_id: int) -> None:
    """Lift the delay of a requeued job when the daemon would."""

    def settled() -> bool:
        record = next((job for job in client.jobs() if job.job_id == job_id), None)
        now_s = time.time()
        return record is not None and waits_for_requeue_delay(record, now_s) and has_settled(record, now_s)

    until(settled, "Slurm delays the requeued job, whose last run is over")
    assert client.apply([StartAtOnce(job_id)]) == ()


def empty(cluster: Cluster) -> None:
    """Cancel every job and remove every reservation, and wait until they are gone."""
    run(cluster, "scancel", "--user=root")
    client = CliClient(environment=cluster.env())
    try:
        until(lambda: not client.jobs(), "all jobs are gone", patience_s=240)  # Slurm asks a node again after a while
    except DevClusterError as error:
        raise DevClusterError(f"{error}: {client.jobs()}") from error
    for reservation in client.reservations():
        run(cluster, "scontrol", "delete", f"ReservationName={reservation.name}")


def final_state(cluster: Cluster, job_id: int) -> str:
    return run(cluster, "scontrol", "show", "job", str(job_id), "-o").partition("JobState=")[2].split()[0]


def config(spool: Path, policy: str = "explsched", **sections: object) -> str:
    """A configuration of the daemon: a pass each second, jobs report to `spool`, all jobs are one owner's.

    So these tests see the policy's own order; scopes have tests of their own.
    """
    base = {"policy": policy, "interval_s": 1.0, "slurm": {"client": "cli"}, "progress": {"spool": str(spool)}}
    order = {"scope": "partition", "site_factor_file": str(spool.parent / "site_factors.json")}
    audit = {"file": str(spool.parent / "audit.jsonl")}
    state = {"directory": str(spool.parent / "state"), "socket": str(spool.parent / "state.sock")}
    return json.dumps({**base, "order": order, "audit": audit, "state": state, **sections})


@contextmanager
def a_daemon(cluster: Cluster, directory: Path, config: str) -> Iterator[subprocess.Popen[bytes]]:
    """The real daemon with this configuration; ended at the end, however the test went."""
    daemon = start_daemon(cluster, directory, config)
    try:
        yield daemon
    finally:
        daemon.kill()
        daemon.wait()


def start_daemon(cluster: Cluster, directory: Path, config: str) -> subprocess.Popen[bytes]:
    path = directory / "explsched.yaml"
    path.write_text(config)
    argv = [command("sexplschedd"), "--config", str(path), "--log-file", str(directory / "log")]
    return subprocess.Popen(argv, env=environment(cluster))


def changes(log: Path) -> list[int]:
    """How many changes each pass made that the daemon has logged."""
    text = log.read_text() if log.exists() else ""
    return [int(count) for count in re.findall(r" pass jobs=.* changes=(\d+) failures=", text)]


def command(name: str) -> str:
    """A command of ours, as installed beside the Python that runs the tests."""
    return str(Path(sys.executable).parent / name)
