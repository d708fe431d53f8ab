"""CUDA MPS that slurmd starts and ends as the jobs' users (wrappers.node_mps), on a real cluster."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec, down, up
from tests.slurm.jobs import environment, until
from tests.slurm.users import ORDINARY, STEERS
from wrappers import mps

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).parents[2]

# Goes into the background as the real one does, and ends when it is told to. Who it is, and what it was told, it writes
# into its log directory.
_CONTROL = """#!/bin/bash
pid_file=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
if [ "$1" = -d ]; then
  echo "start $(id -un) $CUDA_VISIBLE_DEVICES" >> "$CUDA_MPS_LOG_DIRECTORY/told"
  setsid sleep 3600 < /dev/null > /dev/null 2>&1 &
  echo $! > "$pid_file"
  mkfifo -m 600 "$CUDA_MPS_PIPE_DIRECTORY/control"
else
  read -r word
  echo "$word $(id -un)" >> "$CUDA_MPS_LOG_DIRECTORY/told"
  kill "$(cat "$pid_file")"
  rm "$CUDA_MPS_PIPE_DIRECTORY/control"
fi
"""
_SCRIPT = """#!/bin/sh
export PATH={bin}:$PATH PYTHONPATH={root} EXPLSCHED_NODE_MPS={place}
exec {python} -m wrappers.node_mps {action} 2>> {place}/../said
"""


class Site:
    """A cluster of one node with one GPU of four shards, whose slurmd starts MPS."""

    def __init__(self, cluster: Cluster, files: Path) -> None:
        self.cluster, self.files = cluster, files

    def submit(self, user: str, script: str = "sleep 600") -> int:
        """A job of that user on a shard of the GPU, which runs."""
        done = subprocess.run(
            ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--gres=shard:1"],
            env=environment(self.cluster),
            input=f"#!/bin/sh\n{script}\n",
            user=user,
            group=pwd.getpwnam(user).pw_gid,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def running(self, job: int) -> bool:
        return any(one.job_id == job and one.state == "RUNNING" for one in self.client.jobs())

    def end(self, job: int) -> None:
        subprocess.run(["scancel", str(job)], env=environment(self.cluster), check=True)
        self.gone(job)

    def gone(self, job: int) -> None:
        """Wait until the job has ended, and its epilog with it."""
        held = ("RUNNING", "COMPLETING")
        until(lambda: all(one.job_id != job or one.state not in held for one in self.client.jobs()), f"job {job} ends")

    @property
    def client(self) -> CliClient:
        return CliClient(environment=self.cluster.env())

    def room(self, user: str) -> Path:
        return self.files / "mps" / f"{pwd.getpwnam(user).pw_uid}-0"

    def serves(self, user: str) -> bool:
        return bool(mps.answering({mps.PIPE_VARIABLE: str(self.room(user) / "mps")}))

    def daemon(self, user: str) -> int:
        return int((self.room(user) / "mps" / "nvidia-cuda-mps-control.pid").read_text())

    def told(self, user: str) -> list[str]:
        return (self.room(user) / "log" / "told").read_text().splitlines()

    def said(self) -> str:
        path = self.files / "said"
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def site(needs_slurm: None, open_tmp: Path) -> Iterator[Site]:
    files = open_tmp / "node_mps"
    for directory in (files / "bin", files / "mps"):
        directory.mkdir(parents=True)
    (files / "bin" / "nvidia-cuda-mps-control").write_text(_CONTROL)
    (files / "bin" / "nvidia-cuda-mps-control").chmod(0o755)
    extra = []
    for action in ("prolog", "epilog"):
        words = {"bin": files / "bin", "root": ROOT, "place": files / "mps", "python": sys.executable}
        (files / action).write_text(_SCRIPT.format(action=action, **words))
        (files / action).chmod(0o755)
        extra.append((action.capitalize(), str(files / action)))
    place = open_tmp / "node_mps_cluster"
    yield Site(up(ClusterSpec(nodes=1, gpus_per_node=1, shards_per_node=4, extra=tuple(extra)), place), files)
    down(place)
    for pid_file in files.glob("mps/*/mps/*.pid"):  # of a test that failed
        subprocess.run(["kill", pid_file.read_text().strip()], capture_output=True, check=False)
    shutil.rmtree(files)


def test_jobs_of_a_user_share_a_daemon_of_his_own_until_the_last_is_gone(site: Site) -> None:
    first = site.submit(ORDINARY)
    until(lambda: site.serves(ORDINARY), "the first job's prolog starts MPS")
    daemon = site.daemon(ORDINARY)
    assert Path(f"/proc/{daemon}").stat().st_uid == pwd.getpwnam(ORDINARY).pw_uid
    assert (site.room(ORDINARY) / "mps").stat().st_mode & 0o777 == 0o700
    assert site.told(ORDINARY) == [f"start {ORDINARY} 0"]
    second = site.submit(ORDINARY)
    until(lambda: site.running(second), "the second job runs beside the first")
    assert site.daemon(ORDINARY) == daemon
    site.end(first)
    assert site.serves(ORDINARY)
    assert site.daemon(ORDINARY) == daemon
    site.end(second)
    until(lambda: not site.serves(ORDINARY), "the last job's epilog ends MPS")
    assert site.told(ORDINARY) == [f"start {ORDINARY} 0", f"quit {ORDINARY}"]
    assert site.said() == ""


def test_users_have_daemons_of_their_own_and_a_crash_ends_nobody_elses(site: Site) -> None:
    steady = site.submit(STEERS)
    until(lambda: site.serves(STEERS), "MPS of the one")
    daemon = site.daemon(STEERS)
    crash = site.files / "crash"
    crashing = site.submit(ORDINARY, f"until [ -e {crash} ]; do sleep 0.1; done; kill -KILL $$")
    until(lambda: site.running(crashing) and site.serves(ORDINARY), "MPS of the other")
    assert site.daemon(ORDINARY) != daemon
    crash.touch()
    site.gone(crashing)
    until(lambda: not site.serves(ORDINARY), "the crashed job's epilog ends MPS")
    assert site.serves(STEERS)
    assert site.daemon(STEERS) == daemon
    site.end(steady)
    until(lambda: not site.serves(STEERS), "the last job's epilog ends MPS")
    assert site.said() == ""


def test_a_daemon_that_was_killed_is_started_by_the_next_job(site: Site) -> None:
    first = site.submit(ORDINARY)
    until(lambda: site.serves(ORDINARY), "MPS")
    killed = site.daemon(ORDINARY)
    os.kill(killed, 9)
    (site.room(ORDINARY) / "mps" / "control").unlink()  # the real one's next start removes it
    second = site.submit(ORDINARY)
    until(lambda: site.serves(ORDINARY), "MPS again")
    assert site.daemon(ORDINARY) != killed
    for job in (first, second):
        site.end(job)
    until(lambda: not site.serves(ORDINARY), "the last job's epilog ends MPS")
    states = {node.state for node in site.client.nodes()}
    assert not any("DRAIN" in state for state in states)
