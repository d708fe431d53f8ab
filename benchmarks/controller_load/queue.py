"""A full private cluster with a long queue that keeps moving."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from slurm_plugin.client.changes import ChangeFailure, DeleteReservation, SetSiteFactor
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster import ClusterSpec
from slurm_plugin.observation.standing import leased_job

# Requests and the share of jobs that make them. The whole nodes are those that the daemon makes leases for.
_SHAPES = (
    (("--gpus-per-node=1",), 0.55),
    (("--gpus-per-node=2",), 0.20),
    (("--gpus-per-node=4",), 0.17),
    (("--gpus-per-node=8",), 0.06),
    (("--nodes=2", "--gpus-per-node=8"), 0.02),
)
_SLEEP = "sleep $((20 + SLURM_JOB_ID % 40))"
_SUBMITTERS = 4
_FEED_S = 2.5


def spec(jobs: int) -> ClusterSpec:
    """4 nodes x 8 GPUs. Full scheduling cycles come more often than by default, to have as many in each stretch."""
    extra = (
        ("MaxJobCount", str(2 * jobs + 1000)),
        ("SchedulerParameters", "batch_sched_delay=1,sched_interval=10,bf_interval=10"),
        ("DefMemPerCPU", "100"),
        ("PriorityWeightPartition", "100000"),  # one for all, so that --nice does not push priorities below 1
    )
    return ClusterSpec(nodes=4, gpus_per_node=8, extra=extra)


def fill(jobs: int, environment: Mapping[str, str], seed: int) -> None:
    """Submit `jobs` jobs, no arrays: the main scheduler passes over the rest of an array once it rejected a task."""
    chance = np.random.default_rng(seed)
    requests = [_options(chance) for _ in range(jobs)]
    with ThreadPoolExecutor(_SUBMITTERS) as pool:
        for done in pool.map(lambda request: _sbatch(request, environment), requests):
            done.check_returncode()


@contextmanager
def feed(environment: Mapping[str, str], seed: int) -> Iterator[None]:
    """Submit a job every so often, about as many as end."""
    chance, stop = np.random.default_rng(seed), threading.Event()

    def work() -> None:
        while not stop.wait(_FEED_S):
            _sbatch(_options(chance), environment)

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


def _options(chance: np.random.Generator) -> tuple[str, ...]:
    """A job of some shape and priority.

    Priorities differ also without us, as with fair share: sorting a queue that is in order of submission would be
    cheaper than sorting a real one. A time limit does not tell how long its job runs: any order ends as many a minute.
    """
    shape = _SHAPES[chance.choice(len(_SHAPES), p=[share for _, share in _SHAPES])][0]
    return (*shape, f"--time={chance.integers(10, 600)}", f"--nice={chance.integers(1, 5000)}", "--wrap", _SLEEP)


def _sbatch(options: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sbatch", "--output=/dev/null", *options], env=environment, capture_output=True, check=False)
