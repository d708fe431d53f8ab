"""The private cluster, the members of groups, and the daemon that groups them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import Cluster, ClusterSpec
from wrappers import installed

GPUS, PER_GPU = 2, 4
SPEC = ClusterSpec(
    nodes=1, gpus_per_node=GPUS, shards_per_node=GPUS * PER_GPU, extra=(("MinJobAge", "3600"), ("KillWait", "2"))
)
INTERVAL_S = 1.0
# Milliseconds per iteration: two kinds of trainings that suit each other, as they wait for different resources.
KINDS = ("100/90/10/0", "100/10/90/0")

# A member that is killed goes back to the queue by itself, as after the failure of a node.
_SCRIPT = """#!/bin/bash
export FAKECUDA_GPU={place}/gpu-$SLURM_JOB_GPUS LD_LIBRARY_PATH={double}
start=$(awk '{{ printf "%.0f", $1 * 1e9 }}' /proc/uptime)
{sxrun} --share best-effort -- {client} 'step*2' 10 "$start" "$1" && exit 0
scontrol requeue "$SLURM_JOB_ID" && exec sleep 60
"""


@dataclass(frozen=True, slots=True)
class Site:
    """Where everything lies, and how to talk to the cluster."""

    place: Path
    cluster: Cluster
    environment: Mapping[str, str]

    @property
    def client(self) -> CliClient:
        """Slurm's commands for this cluster."""
        return CliClient(environment=self.environment)

    @property
    def log(self) -> Path:
        """What the daemon tells."""
        return self.place / "sexplschedd.log"

    def submit(self, *options: str) -> int:
        """Submit with sbatch; returns the job's id."""
        argv = ["sbatch", "--parsable", f"--output={self.place}/job-%j.out", "--open-mode=append", *options]
        done = subprocess.run(argv, env=dict(self.environment), capture_output=True, text=True, check=True)
        return int(done.stdout)

    def member(self, kind: str, work_s: float) -> int:
        """Submit a job for a share of a GPU that computes for `work_s`."""
        comment = f"--comment=explsched:stages={kind}"
        return self.submit("--gres=shard:1", "--requeue", comment, str(self.place / "member.sh"), str(work_s))

    def filler(self) -> int:
        """Submit a job that holds a whole GPU until it is cancelled."""
        return self.submit("--gres=gpu:1", "--wrap=sleep 3600")

    def start_daemon(self) -> subprocess.Popen[bytes]:
        """The real daemon, as an admin would start it."""
        argv = [sys.executable, "-m", "slurm_plugin.daemon", "--config", str(self.place / "explsched.yaml")]
        return subprocess.Popen([*argv, "--log-file", str(self.log)], env=dict(self.environment))


def needed(build: Path) -> tuple[Path, Path]:
    """A program that uses the GPU, and the GPU's double. Raises `NotInstalledError` or `FileNotFoundError`."""
    installed.library(os.environ)
    installed.manager(os.environ)
    kernels = build.resolve() / "tests" / "kernel"
    client, double = kernels / "share" / "share_client", kernels / "fakecuda" / "fakecuda"
    for path in (client, double):
        if not path.exists():
            raise FileNotFoundError(f"{path}: scripts/native builds it")
    return client, double


def configure(place: Path) -> None:
    """The daemon's configuration and spool."""
    (place / "spool").mkdir()
    settings = {
        "policy": "muri-s",
        "interval_s": INTERVAL_S,
        "slurm": {"client": "cli"},
        "progress": {"spool": str(place / "spool")},
    }
    (place / "explsched.yaml").write_text(yaml.safe_dump(settings))


def prepare(place: Path, cluster: Cluster, build: Path) -> Site:
    """Write the members' script and the configuration. Raises as `needed`."""
    client, double = needed(build)
    configure(place)
    (place / "kernels").write_text("step 32 0 1000000 400 400\n")
    here = Path(__file__).parents[2]
    sxrun = shlex.join([sys.executable, "-m", "wrappers.sxrun"])
    script = place / "member.sh"
    script.write_text(_SCRIPT.format(place=place, double=double, sxrun=sxrun, client=client))
    added = {
        "PYTHONPATH": str(here),
        "EXPLSCHED_INTERCEPT_LIBRARY": str(installed.library(os.environ)),
        "EXPLSCHED_KM": str(installed.manager(os.environ)),
        "EXPLSCHED_SPOOL": str(place / "spool"),
        "FAKECUDA_KERNELS": str(place / "kernels"),
        "XDG_CACHE_HOME": str(place / "cache"),
    }
    return Site(place, cluster, {**os.environ, **cluster.env(), **added})
