"""How fast explsched reads and feeds a Slurm with many waiting jobs, on a private cluster of its own.

Prints medians: `snapshot_s` (all reads of a pass), `reorder_s` (a new site factor for every job, until squeue shows the
new order) and `status_s` (`sexplsched status` from start to finish), beside the bare commands in the same run.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import click

from slurm_plugin import devcluster
from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.cli import CliClient


@click.command()
@click.option("--jobs", default=1000, show_default=True, type=click.IntRange(1, 20000), help="Waiting jobs.")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(1, 100), help="Repetitions.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(jobs: int, rounds: int, as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """Measure snapshot, reorder and status with many waiting jobs."""
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        Path(scratch).chmod(0o755)
        spec = devcluster.ClusterSpec(extra=(("MaxJobCount", str(2 * jobs + 100)),))
        cluster = devcluster.up(spec, Path(scratch) / "c")
        try:
            figures = _measure(cluster, Path(scratch), jobs, rounds)
        finally:
            devcluster.down(Path(scratch) / "c")
    if as_json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:<24} {value:.4f}" for name, value in figures.items()))


def _measure(cluster: devcluster.Cluster, scratch: Path, jobs: int, rounds: int) -> dict[str, float]:
    environment = {**os.environ, **cluster.env()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what pip installs has its bytecode
    config = scratch / "explsched.yaml"
    config.write_text(json.dumps({"slurm": {"client": "cli"}, "progress": {"spool": str(scratch)}}))
    _submit(jobs, environment)
    client = CliClient(environment=cluster.env())
    status = [str(Path(sys.executable).parent / "sexplsched"), "status", "--config", str(config)]

    waiting = [job.job_id for job in client.jobs() if job.state == "PENDING"]
    directions = itertools.cycle([1, -1])
    measured: dict[str, Callable[[], float]] = {
        "snapshot_s": lambda: _timed(client.look),
        "reorder_s": lambda: _reorder(client, waiting, next(directions)),
        "status_s": lambda: _timed(lambda: _run(status, environment)),
        "bare_scontrol_s": lambda: _timed(lambda: _bare_reorder(waiting, environment)),
        "bare_squeue_s": lambda: _timed(lambda: _run(["squeue", "-h"], environment)),
        "bare_python_s": lambda: _timed(lambda: _run([sys.executable, "-c", "pass"], environment)),
    }
    # In turns, so that a machine that becomes slower for a while does so for all of them.
    taken = [{name: measure() for name, measure in measured.items()} for _ in range(rounds)]
    return {"jobs": len(waiting) + 1, **{name: median(turn[name] for turn in taken) for name in measured}}


def _submit(jobs: int, environment: dict[str, str]) -> None:
    """Jobs that cannot start: the nodes have 8 GPUs each and one job holds them all."""
    script = "#!/bin/sh\nsleep 3600\n"
    argv = ["sbatch", "--nodes=4", "--gpus-per-node=8", "--output=/dev/null"]
    for _ in range(jobs + 1):
        subprocess.run(argv, input=script, env=environment, text=True, capture_output=True, check=True)


def _reorder(client: CliClient, waiting: Sequence[int], direction: int) -> float:
    """Seconds from the first byte written until squeue shows every job's new priority, in the new order."""
    changes = [SetSiteFactor(job_id, 1000 + direction * i) for i, job_id in enumerate(waiting, start=1)]
    began_s = time.perf_counter()
    failures = client.apply(changes)
    shown = {job.job_id: job for job in client.jobs()}
    elapsed_s = time.perf_counter() - began_s
    if failures or any(shown[change.job_id].site_factor != change.site_factor for change in changes):
        raise RuntimeError(f"not every site factor arrived: {failures[:3]}")
    priorities = [shown[job_id].priority for job_id in waiting]
    if priorities != sorted(priorities, reverse=direction < 0):
        raise RuntimeError("squeue does not show the new order")
    return elapsed_s


def _bare_reorder(waiting: Sequence[int], environment: dict[str, str]) -> None:
    """The same writes by scontrol alone, nothing checked: what this machine's Slurm takes for them."""
    lines = "".join(f"u job={job_id} sitef={factor}\n" for factor, job_id in enumerate(waiting))
    subprocess.run(["scontrol"], input=lines, env=environment, text=True, capture_output=True, check=True)


def _timed(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _run(argv: list[str], environment: dict[str, str]) -> None:
    subprocess.run(argv, env=environment, capture_output=True, check=True)


if __name__ == "__main__":
    main()
