"""Runs the sweep once on a private cluster and records what it learned over GPU-seconds."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.sweep_demo import sweep
from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient
from slurm_plugin.devcluster.machine import until
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.spool import ProgressSpool

POLL_S = 0.5
LONGEST_S = 900.0
_WARM_START = (sys.executable, "-m", "benchmarks.sweep_demo.warm_start")

# One quantum is about a seventh of a training here; a site's trainings run for hours and use the default.
QUANTUM_S = 10.0
INTERVAL_S = 0.5  # 0.7 % of a training; the default, 15 s, is 0.4 % of an hour
_MAY_PAUSE, _MAY_STOP = "--checkpoint=USR1", "--early-stop"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the sweep.

    Attributes:
        name: as tables and pictures show it.
        daemon: the daemon's configuration, None for Slurm without explsched.
        asks_optuna: the trainings ask Optuna's ASHA whether to go on.
        permissions: what the trainings allow explsched, as options of `sxbatch`.

    """

    name: str
    daemon: Mapping[str, object] | None = field(hash=False)
    asks_optuna: bool = False
    permissions: tuple[str, ...] = (_MAY_PAUSE, _MAY_STOP)


_DAEMON = {
    "interval_s": INTERVAL_S,
    "slurm": {"client": "cli"},
    "utility": {"quantum_s": QUANTUM_S},
    "preemption": {"grace_s": 15.0, "max_per_hour": 1000},
}
SLURM_ALONE = Arm("Slurm alone", None)
ASHA = Arm("ASHA", None, asks_optuna=True)
EXPLSCHED = Arm("explsched", _DAEMON)
WITHOUT_STOP = Arm("explsched, no early stop", _DAEMON, permissions=(_MAY_PAUSE,))


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of a run: time since its start, and the GPU-seconds it had used; infinite for what never came."""

    elapsed_s: float
    gpu_s: float


NEVER = Moment(float("inf"), float("inf"))


@dataclass(frozen=True, slots=True)
class Curve:
    """What a run of the sweep had learned, sampled over time; all tuples have one entry per sample.

    Attributes:
        elapsed_s: since the first sample.
        gpu_seconds: held by the sweep's jobs until then.
        total_reduction: sum over the jobs of the fall of the validation loss since each job's first report.
        best_loss: of all jobs; infinity before the first report.

    """

    elapsed_s: tuple[float, ...]
    gpu_seconds: tuple[float, ...]
    total_reduction: tuple[float, ...]
    best_loss: tuple[float, ...]

    def to_reduction(self, target: float) -> Moment:
        """When the total reduction had reached `target`."""
        return self._first(reduction >= target for reduction in self.total_reduction)

    def to_loss(self, target: float) -> Moment:
        """When some model had a loss of `target` or less."""
        return self._first(loss <= target for loss in self.best_loss)

    def _first(self, reached: Iterable[bool]) -> Moment:
        found = (at for at, is_reached in enumerate(reached) if is_reached)
        return next((Moment(self.elapsed_s[at], self.gpu_seconds[at]) for at in found), NEVER)

    def mean_regret(self, best: float, first: float, until_gpu_s: float) -> float:
        """Mean over the first `until_gpu_s` GPU-seconds of (best loss so far - best) / (first - best), at most 1.

        A run that ended before keeps its last loss. The area under this curve is what tuners are compared by.
        """
        steps = zip((0.0, *self.gpu_seconds), (*self.gpu_seconds, until_gpu_s), (first, *self.best_loss), strict=True)
        area = sum(
            max(0.0, min(end, until_gpu_s) - min(begin, until_gpu_s)) * min(1.0, (loss - best) / (first - best))
            for begin, end, loss in steps
        )
        return area / until_gpu_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: its curve and what became of the jobs."""

    curve: Curve
    completed: int
    stopped: int
    lost: int
    requeues: int


ProgressReport = Callable[[int, int, float], None]


def run(directory: Path, arm: Arm, sweep_name: str, seed: int, tell: ProgressReport) -> Outcome:
    """Run the named sweep on a fresh cluster of 2 nodes x 4 GPUs below `directory`, which is removed afterwards."""
    spec = devcluster.ClusterSpec(nodes=2, gpus_per_node=4, shards_per_node=16, extra=(("MinJobAge", "3600"),))
    cluster = devcluster.up(spec, directory / "cluster")
    try:
        product = devcluster.Product(directory / "explsched")
        product.install(arm.daemon or {})
        (directory / "checkpoints").mkdir()
        sweep.save_digits(directory / "digits.npz", seed)
        environment = {**os.environ, **cluster.env(), **product.env(), "PYTHONPATH": os.getcwd()}  # noqa: PTH109
        with _warm_start(directory), product.daemon(environment) if arm.daemon else nullcontext():
            # Nobody starts before all are submitted: otherwise what is measured depends on how long that takes.
            _partition(environment, "DOWN")
            jobs = _submit(directory, arm, sweep.configurations(sweep_name, seed), environment)
            _partition(environment, "UP")
            return _watch(jobs, product.spool, CliClient(environment=cluster.env()), environment, tell)
    finally:
        devcluster.down(directory / "cluster")


def _partition(environment: dict[str, str], state: str) -> None:
    argv = ["scontrol", "update", "PartitionName=main", f"State={state}"]
    subprocess.run(argv, env=environment, check=True)


@contextmanager
def _warm_start(directory: Path) -> Iterator[None]:
    """The server that starts trainings, until the block ends."""
    path = directory / "warm"
    with subprocess.Popen([*_WARM_START, "serve", str(path)]) as server:
        try:
            until(path.exists, "the trainings' server listens")
            yield
        finally:
            server.terminate()


def _submit(
    directory: Path, arm: Arm, configurations: Sequence[sweep.Configuration], environment: dict[str, str]
) -> list[int]:
    """Submit every configuration with sxbatch; returns the job ids."""
    script = directory / "train.sh"
    train = [*_WARM_START, "run", str(directory / "warm")]
    fixed = [f"--steps={sweep.STEPS}", f"--step-s={sweep.STEP_S}", f"--data={directory / 'digits.npz'}"]
    fixed.append(f"--checkpoint-dir={directory / 'checkpoints'}")
    if arm.asks_optuna:
        fixed.append(f"--asha={directory / 'optuna.journal'}")
    run_it = [sys.executable, "-m", "wrappers.sxrun", "--", *train, *fixed]
    script.write_text(f'#!/bin/bash\nexec {" ".join(run_it)} "$@"\n')
    options = ["--sweep=digits", *arm.permissions, "--gpus-per-node=1", "--time=30", "--parsable"]
    options += ["--job-name=digits", f"--output={directory}/job-%j.out", f"--chdir={os.getcwd()}"]  # noqa: PTH109
    jobs = []
    for configuration in configurations:
        argv = [sys.executable, "-m", "wrappers.sxbatch", *options, str(script), *configuration.arguments()]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        jobs.append(int(done.stdout))
    return jobs


def _watch(
    jobs: list[int], spool_directory: Path, client: CliClient, environment: dict[str, str], tell: ProgressReport
) -> Outcome:
    """Sample until every job has ended."""
    spool = ProgressSpool(spool_directory)
    owners = dict.fromkeys(jobs, os.geteuid())
    began_s = last_s = time.time()
    held_gpu_s = 0.0
    samples: list[tuple[float, float, float, float]] = []
    deadline = time.monotonic() + LONGEST_S
    requeues: dict[int, int] = {}
    while True:
        records = [job for job in client.jobs() if job.job_id in owners]
        now_s = time.time()
        held_gpu_s += (now_s - last_s) * sum(job.gpus for job in records if job.state in ("RUNNING", "COMPLETING"))
        last_s = now_s
        requeues.update({job.job_id: job.restarts for job in records})
        reduction, best = _learned(spool.read(owners, now_s).values())
        samples.append((now_s - began_s, held_gpu_s, reduction, best))
        tell(len(jobs) - len(records), len(jobs), best)
        if not records:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(records)} jobs still there after {LONGEST_S:.0f} s: {records[:3]}")
        time.sleep(POLL_S)
    elapsed_s, gpu_s, reductions, bests = zip(*samples, strict=True)
    completed, stopped = _final_states(jobs, environment)
    lost = len(jobs) - completed - stopped
    return Outcome(Curve(elapsed_s, gpu_s, reductions, bests), completed, stopped, lost, sum(requeues.values()))


def _learned(progress: Iterable[JobProgress]) -> tuple[float, float]:
    """(total fall of the loss since each job's first report, best loss of all)."""
    total, best = 0.0, float("inf")
    for job in progress:
        losses = [r.value for r in job.reports if math.isfinite(r.value)]
        if losses:
            total += max(0.0, losses[0] - min(losses))
            best = min(best, *losses)
    return total, best


def _final_states(jobs: list[int], environment: dict[str, str]) -> tuple[int, int]:
    """How many jobs completed, and how many were stopped early (all of the sweep consented to that)."""
    states = []
    for job in jobs:
        argv = ["scontrol", "show", "job", str(job), "--oneliner"]
        out = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout
        states.append(out.partition("JobState=")[2].split()[0])
    return states.count("COMPLETED"), states.count("CANCELLED")
