"""A full private cluster with a long queue that keeps moving."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import ChangeFailure, DeleteReservation, SetSiteFactor
from slurm_plugin.devcluster import ClusterSpec
from slurm_plugin.reconcile import leased_job

# Requests and the share of jobs that make them. The whole nodes are those that the daemon makes leases for.
_SHAPES = (
    (("--gpus-per-node=1",), 0.55),
    (("--gpus-per-node=2",), 0.20),
    (("--gpus-per-node=4",), 0.17),
    (("--gpus-per-node=8",), 0.06),
    (("--nodes=2", "--gpus-per-node=8"), 0.02),
)
_SLEEP = "sleep $((20 + SLURM_JOB_ID % 40))"
_FEED_S = 2.5


def spec(jobs: int) -> ClusterSpec:
    """4 nodes x 8 GPUs. Slurm's mix of short and full scheduling cycles, but three times as many of them."""
    extra = (
        ("MaxJobCount", str(2 * jobs + 1000)),
        ("MaxArraySize", str(jobs + 1)),
        ("SchedulerParameters", "batch_sched_delay=1,sched_interval=20,bf_interval=10"),
        ("DefMemPerCPU", "100"),
    )
    return ClusterSpec(nodes=4, gpus_per_node=8, extra=extra)


def fill(jobs: int, environment: Mapping[str, str], seed: int) -> None:
    """Submit `jobs` jobs. Time limits tell nothing of how long they run, so that any order ends as many a minute.

    They are submitted as arrays, which is fast; the time limit that each task gets makes it a job record of its own.
    """
    chance = np.random.default_rng(seed)
    tasks = []
    for options, share in _SHAPES:
        count = max(1, round(share * jobs))
        answer = _sbatch((*options, "--parsable", f"--array=0-{count - 1}", "--wrap", _SLEEP), environment)
        answer.check_returncode()
        tasks += [f"{int(answer.stdout)}_{i}" for i in range(count)]
    chance.shuffle(tasks)  # among equals Slurm takes the one that became a record of its own first
    lines = "".join(f"update JobId={task} TimeLimit={_minutes(chance)}\n" for task in tasks)
    subprocess.run(["scontrol"], input=lines.encode(), env=environment, capture_output=True, check=True)


@contextmanager
def feed(environment: Mapping[str, str], seed: int) -> Iterator[None]:
    """Submit a job every so often, about as many as end."""
    chance, stop = np.random.default_rng(seed), threading.Event()

    def work() -> None:
        while not stop.wait(_FEED_S):
            shape = _SHAPES[chance.choice(len(_SHAPES), p=[share for _, share in _SHAPES])][0]
            _sbatch((*shape, f"--time={_minutes(chance)}", "--wrap", _SLEEP), environment)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def forget_steering(client: CliClient) -> tuple[ChangeFailure, ...]:
    """Take back what the daemon has left: site factors and leases."""
    factors = [SetSiteFactor(job.job_id, 0) for job in client.jobs() if job.site_factor]
    leases = [DeleteReservation(r.name) for r in client.reservations() if leased_job(r.name) is not None]
    return client.apply([*factors, *leases])


def _minutes(chance: np.random.Generator) -> int:
    return int(chance.integers(10, 600))


def _sbatch(options: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sbatch", "--output=/dev/null", *options], env=environment, capture_output=True, check=False)
