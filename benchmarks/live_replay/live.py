"""Runs one arm of the replay on a fresh private cluster."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.live_replay import log
from benchmarks.live_replay.workload import CLUSTER, sbatch_options
from simulation.cluster.settings import PassTimes
from simulation.traces.trace import Trace, TraceJob
from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient

INTERVAL_S = 1.0
# A preemption costs two passes and another launch, nearly three seconds: a run is left alone for ten times that.
QUANTUM_S = 30.0

# The same for both arms. Intervals of seconds instead of half minutes, because jobs last seconds. Limits stay in
# minutes (see workload.py), so backfill keeps its resolution of one and looks as far ahead as the longest of them.
# `defer`: else the main scheduler also looks at once after some jobs' ends, namely where slurmd hears of the end before
# the job's own process is gone, a race of milliseconds. `disable_job_shrink`: as `sexplsched doctor` asks where jobs
# share GPUs. At `debug` slurmctld tells when the schedulers look.
SLURM_CONF = (
    (
        "SchedulerParameters",
        "bf_interval=1,bf_resolution=60,bf_window=43200,bf_continue,sched_interval=1,defer,disable_job_shrink",
    ),
    ("SlurmctldDebug", "debug"),
    ("MinJobAge", "3600"),
    ("KillWait", "2"),
)


@dataclass(frozen=True, slots=True)
class LiveJob:
    """What became of a job; times are seconds since the replay began.

    `submit_s` is when slurmctld had it, `end_s` is None if the job was lost: did not complete. `runs` are its runs by
    slurmctld's log.
    """

    job: TraceJob
    submit_s: float
    end_s: float | None
    runs: tuple[log.Run, ...]

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        return len(self.runs) - 1


@dataclass(frozen=True, slots=True)
class LiveArm:
    """An arm as it went: its jobs, and when the schedulers looked at the queue."""

    jobs: tuple[LiveJob, ...]
    pass_times: PassTimes


Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Work:
    """How jobs of the trace are submitted and do their work.

    `look` is called every `poll_s` with Slurm's commands, their environment, and the jobs submitted so far by Slurm's
    id; it returns how many of them are still there.
    """

    spec: devcluster.ClusterSpec
    script: Path
    options: Callable[[TraceJob], Sequence[str]]
    arguments: Callable[[TraceJob, Path], Sequence[str]]
    look: Callable[[CliClient, Mapping[str, str], Mapping[int, TraceJob]], int]
    poll_s: float = 1.0


def daemon_settings(policy: str, scope: str = "user") -> Mapping[str, object]:
    """The daemon's configuration for compressed time."""
    return {
        "policy": policy,
        "order": {"scope": scope},
        "interval_s": INTERVAL_S,
        "slurm": {"client": "cli"},
        "utility": {"quantum_s": QUANTUM_S},
        "preemption": {"grace_s": 5.0, "max_per_hour": 100_000},
    }


def arguments(job: TraceJob, directory: Path) -> tuple[str, str, str]:
    """What job.sh is called with."""
    return str(round(1e6 * job.run_s)), str(directory), sys.executable


def _present(client: CliClient, _environment: Mapping[str, str], _submitted: Mapping[int, TraceJob]) -> int:
    return len(client.jobs())


ALONE = Work(
    devcluster.ClusterSpec(CLUSTER.nodes, CLUSTER.gpus_per_node, extra=SLURM_CONF),
    Path(__file__).with_name("job.sh"),
    sbatch_options,
    arguments,
    _present,
)
"""Jobs that share with nobody and sleep for their run time."""


def run(
    directory: Path,
    trace: Trace,
    settings: Mapping[str, object] | None,
    longest_s: float,
    tell: Tell,
    work: Work = ALONE,
) -> LiveArm:
    """Submit the trace in its own time and wait for all of it; `settings` None is Slurm alone.

    Raises `TimeoutError` if jobs are left after `longest_s`. The cluster is removed afterwards.
    """
    cluster = devcluster.up(work.spec, directory / "cluster")
    try:
        product = devcluster.Product(directory / "explsched")
        product.install(settings or {})
        (directory / "saved").mkdir()
        here = str(Path.cwd())
        environment = {**os.environ, **cluster.env(), **product.env(), "PYTHONPATH": here}
        with product.daemon(environment) if settings else nullcontext():
            client = CliClient(environment=cluster.env())
            submitted, zero_s = _replay(directory, trace, environment, client, longest_s, tell, work)
        slurmctld = (cluster.layout.logs / "slurmctld.log").read_text()
        told, queued_s = log.runs(slurmctld, zero_s), log.submissions(slurmctld, zero_s)
        jobs = tuple(
            _final(job, queued_s[job_id], told[job_id], _record(job_id, environment), zero_s)
            for job, job_id in zip(trace.jobs, submitted, strict=True)
        )
        passes = product.log.read_text() if settings else ""
        return LiveArm(jobs, log.pass_times(slurmctld, passes, zero_s))
    finally:
        devcluster.down(directory / "cluster")


def _replay(
    directory: Path,
    trace: Trace,
    environment: dict[str, str],
    client: CliClient,
    longest_s: float,
    tell: Tell,
    work: Work,
) -> tuple[list[int], float]:
    """Slurm's id of each job, and the Unix time at which the replay began."""
    sbatch, job_environment = _prepared(work.script, directory, environment)
    zero_s = time.time()
    submitted: list[int] = []
    ended, polled_s = 0, 0.0
    while ended < len(trace.jobs):
        now_s = time.time() - zero_s
        if now_s > longest_s:
            raise TimeoutError(f"{len(trace.jobs) - ended} jobs still there after {longest_s:.0f} s")
        while len(submitted) < len(trace.jobs) and trace.jobs[len(submitted)].submit_s <= time.time() - zero_s:
            job = trace.jobs[len(submitted)]
            argv = [*sbatch, *work.options(job), str(work.script), *work.arguments(job, directory)]
            done = subprocess.run(argv, env=job_environment, capture_output=True, text=True, check=True)
            submitted.append(int(done.stdout))
        if time.time() - polled_s >= work.poll_s:
            polled_s = time.time()
            ended = len(submitted) - work.look(client, environment, dict(zip(submitted, trace.jobs, strict=False)))
            tell(ended, len(trace.jobs))
        upcoming_s = trace.jobs[len(submitted)].submit_s if len(submitted) < len(trace.jobs) else float("inf")
        time.sleep(max(0.0, min(work.poll_s, upcoming_s - (time.time() - zero_s))))
    return submitted, zero_s


def _prepared(script: Path, directory: Path, environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """What sxbatch would hand to sbatch, and the environment: asked once, not to load the machine 200 times."""
    argv = [sys.executable, "-m", "wrappers.sxbatch", "--dry-run", "--json", "--checkpoint=USR1", "--parsable"]
    argv += [f"--output={directory}/job-%j.out", f"--chdir={Path.cwd()}", str(script)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return found["command"][:-1], {**environment, **found["environment"]}


def _record(job_id: int, environment: dict[str, str]) -> dict[str, str]:
    argv = ["scontrol", "show", "job", str(job_id), "--oneliner"]
    seconds = {**environment, "SLURM_TIME_FORMAT": "%s"}
    text = subprocess.run(argv, env=seconds, capture_output=True, text=True, check=True).stdout
    return {key: value for key, _, value in (word.partition("=") for word in text.split())}


def _final(job: TraceJob, at_s: float, runs: Sequence[log.Run], record: Mapping[str, str], zero_s: float) -> LiveJob:
    """The job's fate. Where the log does not tell when its last run began, Slurm's record does, in whole seconds."""
    *earlier, last = runs
    if math.isnan(last.start_s):
        last = replace(last, start_s=float(record["StartTime"]) - zero_s, nodes=record["NodeList"])
    return LiveJob(job, at_s, last.end_s if record["JobState"] == "COMPLETED" else None, (*earlier, last))
