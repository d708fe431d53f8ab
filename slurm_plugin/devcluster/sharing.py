"""A private cluster whose jobs share GPUs: GPU doubles, members that compute, and the daemon that groups them.

For tests and for `benchmarks.group_kills`; the native build (scripts/native) has what the members run.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from explsched import interpreter
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster.cluster import Cluster, ClusterSpec, Product

GPUS, PER_GPU = 2, 4
SPEC = ClusterSpec(
    nodes=1, gpus_per_node=GPUS, shards_per_node=GPUS * PER_GPU, extra=(("MinJobAge", "3600"), ("KillWait", "2"))
)
SETTINGS: Mapping[str, object] = {
    "policy": "muri-s",
    "interval_s": 1.0,
    "slurm": {"client": "cli"},
    "order": {"scope": "partition"},
}
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
class Native:
    """What of the native build the members need. `library` and `manager` are what `wrappers.kernel_manager` finds."""

    library: Path
    manager: Path
    client: Path
    double: Path

    @classmethod
    def of(cls, build: Path, library: Path, manager: Path) -> Native:
        """Raises `FileNotFoundError` for what is not built."""
        kernels = build.resolve() / "tests" / "kernel"
        found = cls(library, manager, kernels / "share" / "share_client", kernels / "fakecuda" / "fakecuda")
        for path in (found.client, found.double):
            if not path.exists():
                raise FileNotFoundError(f"{path}: scripts/native builds it")
        return found


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
    def product(self) -> Product:
        """The daemon's configuration and the spool."""
        return Product(self.place / "explsched")

    @property
    def log(self) -> Path:
        """The daemon's log."""
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

    def filler(self, gpus: int = 1) -> int:
        """Submit a job that holds whole GPUs until it is cancelled, which frees all of them at once."""
        return self.submit(f"--gres=gpu:{gpus}", "--wrap=sleep 3600")

    def start_daemon(self) -> subprocess.Popen[bytes]:
        """The real daemon, as an admin would start it."""
        return subprocess.Popen([*self.product.daemon_argv(), "--log-file", str(self.log)], env=dict(self.environment))


def prepare(place: Path, cluster: Cluster, native: Native) -> Site:
    """Write the members' script and the configuration."""
    (place / "kernels").write_text("step 32 0 1000000 400 400\n")
    sxrun = shlex.join(interpreter.of_module("wrappers.sxrun"))
    script = place / "member.sh"
    script.write_text(_SCRIPT.format(place=place, double=native.double, sxrun=sxrun, client=native.client))
    added = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "EXPLSCHED_INTERCEPT_LIBRARY": str(native.library),
        "EXPLSCHED_KM": str(native.manager),
        "FAKECUDA_KERNELS": str(place / "kernels"),
        "XDG_CACHE_HOME": str(place / "cache"),
    }
    site = Site(place, cluster, {**os.environ, **cluster.env(), **added})
    site.product.install(SETTINGS)
    return Site(place, cluster, {**site.environment, **site.product.env()})
