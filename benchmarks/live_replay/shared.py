"""`python -m benchmarks.live_replay.shared --trace FILE`: `explsched-share` and `muri-l`, both live, on shared GPUs.

Slurm hands out shares of one GPU, not of several, so each job asks for one shard whatever its gang was: models, stage
times, run times and arrivals are the trace's. The GPUs are only counted; how fast the jobs on one of them progress
beside each other is what Muri's measurements say of their stages (`sched_policy.group.interleave`), for both arms. Run
times are unknown to both: every job has the same time limit. After each arm the simulator replays it, with the passes
of the schedulers as they ran and what a run really cost beyond its work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import click
from msgspec import to_builtins

from benchmarks.live_replay import figures, live
from benchmarks.muri_parity import ATTRIBUTION
from sched_policy.catalog import PolicyOptions
from sched_policy.group.interleave import iteration_s
from sched_policy.model import StageProfile
from simulation.cluster.settings import Settings
from simulation.traces.formats import read_any
from simulation.traces.trace import ClusterShape, StageTimes, Trace, TraceJob
from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import ShardRule

GPUS, PER_GPU = 4, 4
_LIMIT_S = 36_000.0
_LEAST_LOADED = ("SelectTypeParameters", "CR_Core_Memory,LL_SHARED_GRES")
"""Slurm's setting by which shards are those of the GPU with most of them free; without it, of the first with enough."""
_SCRIPT = Path(__file__).with_name("share.sh")


def compressed(trace: Trace, jobs: int, factor: float, skipped: int = 0) -> Trace:
    """The jobs after the first `skipped`, each of one GPU, with all times divided by `factor`."""
    chosen = trace.jobs[skipped : skipped + jobs]
    first_s = chosen[0].submit_s
    return Trace.of(
        replace(
            job,
            submit_s=(job.submit_s - first_s) / factor,
            run_s=job.run_s / factor,
            gpus=1,
            stages=_divided(job, factor),
            time_limit_s=_LIMIT_S,
        )
        for job in chosen
    )


def _divided(job: TraceJob, factor: float) -> StageTimes:
    if job.stages is None:
        raise click.UsageError(f"job {job.job_id} has no stage times")
    return StageTimes(job.stages.io_s / factor, job.stages.gpu_s / factor, job.stages.net_s / factor)


def profile(job: TraceJob) -> StageProfile:
    """Times of an iteration alone."""
    if job.stages is None:
        raise ValueError(f"job {job.job_id} has no stage times")
    return StageProfile(job.iteration_s, job.stages.io_s, job.stages.gpu_s, job.stages.net_s)


class Progress:
    """How far the jobs have come. Between two looks they run as they were seen to run at the first.

    What they print is in `directory`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._left_s: dict[int, float] = {}
        self._speed: dict[int, float] = {}
        self._seen_s = time.monotonic()
        self._ended: set[int] = set()
        self._began_s: dict[int, float] = {}
        self.worked_s: dict[int, float] = {}
        """From a job's first look while it ran until its work was done, by its number in the trace; of its last run.

        It is told to end at the look after that: how late is what its launch costs, as are its start and end.
        """

    def look(self, client: CliClient, environment: Mapping[str, str], submitted: Mapping[int, TraceJob]) -> int:
        """Let jobs progress, and end those that have done their work; jobs that are still there."""
        jobs = client.jobs()
        now_s = time.monotonic()
        elapsed_s, self._seen_s = now_s - self._seen_s, now_s
        for job_id, speed in self._speed.items():
            self._left_s[job_id] = self._left_s.get(job_id, submitted[job_id].run_s) - elapsed_s * speed
        there: dict[object, list[int]] = {}
        for job in jobs:
            if job.state == "RUNNING" and job.gpu_indices and job.job_id not in self._ended:
                there.setdefault(job.gpu_indices, []).append(job.job_id)
        done = [
            job_id
            for ids in there.values()
            for job_id in ids
            if self._left_s.get(job_id, 1.0) <= 0 and self._is_ready(job_id)
        ]
        if done:
            argv = ["scancel", "--batch", "--signal=USR2", *map(str, done)]
            subprocess.run(argv, env=dict(environment), check=True)
            self._ended.update(done)
            self.worked_s.update(
                {submitted[job_id].job_id: now_s - self._late_s(job_id) - self._began_s[job_id] for job_id in done}
            )
        self._speed = {
            job_id: speed
            for ids in there.values()
            for job_id, speed in speeds({one: profile(submitted[one]) for one in ids if one not in done}).items()
        }
        self._began_s = {job_id: self._began_s.get(job_id, now_s) for job_id in self._speed}
        return len(jobs)

    def _late_s(self, job_id: int) -> float:
        """How long ago the job's work was done, by its speed since the look before."""
        return -self._left_s[job_id] / self._speed[job_id] if job_id in self._speed else 0.0

    def _is_ready(self, job_id: int) -> bool:
        """Whether the job would take a signal for its end, and not be killed by it."""
        output = self._directory / f"job-{job_id}.out"
        return output.exists() and output.stat().st_size > 0


def speeds(members: Mapping[int, StageProfile]) -> Mapping[int, float]:
    """Speed of each job of a GPU, 1 if it were alone."""
    if not members:
        return {}
    together_s = iteration_s(list(members.values()))
    return {job_id: min(1.0, alone.iteration_s / together_s) for job_id, alone in members.items()}


def options(job: TraceJob) -> tuple[str, ...]:
    """A share of a GPU, stage times declared in milliseconds as a user would."""
    own = profile(job)
    stages_ms = [f"{1000 * second:.9f}" for second in (own.iteration_s, own.io_s, own.gpu_s, own.net_s)]
    times = "/".join(time_ms.rstrip("0").rstrip(".") for time_ms in stages_ms)
    return (
        "--gres=shard:1",
        f"--comment=explsched:checkpoint=USR1&stages={times}",
        f"--time={round(_LIMIT_S / 60)}",
        f"--job-name=replay{job.job_id}",
    )


def cluster_of(*extra: tuple[str, str]) -> devcluster.ClusterSpec:
    """One node whose GPUs are shared; `extra` are lines of slurm.conf besides the replay's."""
    return devcluster.ClusterSpec(1, GPUS, shards_per_node=GPUS * PER_GPU, extra=(*live.SLURM_CONF, *extra))


def _arm(
    policy: str, trace: Trace, quantum_s: float, longest_s: float, spec: devcluster.ClusterSpec
) -> dict[str, object]:
    own = {"order": {"scope": "partition"}, "utility": {"quantum_s": quantum_s}}
    settings = {**live.daemon_settings(policy), **own}
    began_s, before = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        Path(scratch).chmod(0o755)
        progress = Progress(Path(scratch))
        work = live.Work(spec, _SCRIPT, options, lambda _job, _directory: (sys.executable,), progress.look, poll_s=0.5)
        arm = live.run(Path(scratch), trace, settings, longest_s, _tell, work)
    found = figures.live(arm.jobs)
    costs_s = launches_s(arm.jobs, progress.worked_s)
    how = Settings(
        live.INTERVAL_S,
        backfill_interval_s=live.INTERVAL_S,
        main_interval_s=live.INTERVAL_S,
        pass_times=arm.pass_times,
        checkpoint_s=1.0,
        restart_s=fmean(costs_s),
        shards=PER_GPU,
        shard_rule=rule_of(spec),
    )
    shape = ClusterShape(1, GPUS)
    submitted = figures.submitted(arm.jobs)
    simulated = figures.simulated(submitted, policy, PolicyOptions(quantum_s=quantum_s), how, costs_s, shape)
    return {
        "sim_avg_jct_s": round(simulated.avg_jct_s, 3),
        "sim_makespan_s": round(simulated.makespan_s, 3),
        "launch_s": round(fmean(costs_s), 3),
        "pass_s": {who: figures.mean_gap_s(times_s) for who, times_s in to_builtins(arm.pass_times).items()},
        "avg_jct_s": round(found.avg_jct_s, 3),
        "makespan_s": round(found.makespan_s, 3),
        "preemptions": found.preemptions,
        "jobs_lost": figures.lost(arm.jobs),
        "seconds": round(time.monotonic() - began_s),
        "load_before_after": [round(before, 2), round(os.getloadavg()[0], 2)],
    }


def launches_s(jobs: Sequence[live.LiveJob], worked_s: Mapping[int, float]) -> tuple[float, ...]:
    """What each run cost beyond its progress: until it was first seen to run, and after it was told to end."""
    return tuple(
        job.end_s - job.runs[0].start_s - worked_s[job.job.job_id]
        for job in jobs
        if job.end_s is not None and not job.restarts and job.job.job_id in worked_s
    )


def rule_of(spec: devcluster.ClusterSpec) -> ShardRule:
    """How its Slurm chooses the GPU of a shard."""
    return ShardRule.LEAST_LOADED if _LEAST_LOADED in spec.extra else ShardRule.FIRST_FIT


def _tell(_ended: int, _total: int) -> None:
    pass


@click.command()
@click.option("--trace", "path", required=True, type=click.Path(path_type=Path), help="Jobs with stage times.")
@click.option("--jobs", default=200, show_default=True, type=click.IntRange(min=1), help="So many.")
@click.option("--skip", "skipped", default=0, show_default=True, type=click.IntRange(min=0), help="After so many.")
@click.option("--compress", default=4000.0, show_default=True, type=click.FloatRange(min=1), help="Divides all times.")
@click.option("--quantum", "quantum_s", default=live.QUANTUM_S, show_default=True, help="Seconds a run is left alone.")
@click.option("--longest", "longest_s", default=600.0, show_default=True, help="Seconds an arm may take.")
@click.option("--least-loaded", is_flag=True, help="Slurm gives shards of the GPU with most left (newer than 22.05).")
@click.option("--out", type=click.Path(path_type=Path), help="Also write the figures to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures alone.")
def main(
    path: Path,
    jobs: int,
    skipped: int,
    compress: float,
    quantum_s: float,
    longest_s: float,
    least_loaded: bool,  # noqa: FBT001
    out: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Replay jobs of a trace under both policies on private clusters of one node with 4 GPUs."""
    trace = compressed(read_any(path), jobs, compress, skipped)
    if not trace.jobs:
        raise click.UsageError(f"{path} has no jobs after the first {skipped}")
    spec = cluster_of(_LEAST_LOADED) if least_loaded else cluster_of()
    arms: dict[str, dict[str, object]] = {}
    for policy in ("muri-l", "explsched-share"):
        arms[policy] = _arm(policy, trace, quantum_s, longest_s, spec)
        if not as_json:
            click.echo(f"{policy}: {arms[policy]}", err=True)
    ratio = {name: _number(arms["muri-l"][name]) / _number(arms["explsched-share"][name]) for name in _RATIOS}
    report = {
        "attribution": ATTRIBUTION,
        "jobs": len(trace.jobs),
        "skipped": skipped,
        "least_loaded": least_loaded,
        "gpus": GPUS,
        "compress": compress,
        "quantum_s": quantum_s,
        "sim_jct_ratio": round(_number(arms["muri-l"]["sim_avg_jct_s"]) / _number(arms[_OURS]["sim_avg_jct_s"]), 4),
        "jct_ratio": round(ratio["avg_jct_s"], 4),
        "makespan_ratio": round(ratio["makespan_s"], 4),
        "jobs_lost": sum(int(_number(arm["jobs_lost"])) for arm in arms.values()),
        "arms": arms,
    }
    if out:
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(report))


_OURS = "explsched-share"
_RATIOS = ("avg_jct_s", "makespan_s")


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"a figure is {value!r}, not a number")
    return value


if __name__ == "__main__":
    main()
