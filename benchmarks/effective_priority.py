"""Whether the priorities that the daemon writes are in force while Slurm's backfill lets go of its locks.

A private cluster of its own with many waiting whole-node jobs of three lengths, cycles of seconds that yield, and the
daemon's own passes. Prints for each pass what was written and how many jobs were not in force before it, and the mean
depth of backfill cycles (sdiag) for Slurm alone and under the daemon.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from msgspec import Struct, to_builtins

from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import BackfillSection, Config, OrderSection, ProgressSection
from slurm_plugin.steering.controller import Controller

SETTINGS = (
    "bf_continue,bf_interval=5,bf_max_time=60,bf_max_job_test=20000,bf_resolution=10,"
    "bf_yield_interval=200000,bf_yield_sleep=500000,max_rpc_cnt=0"
)


class PassFigures(Struct, frozen=True):
    """One pass: what it wrote, and what it found. `out_of_force` had a priority that nobody had written."""

    took_s: float
    written: int
    out_of_force: int
    worst_head: int


class Figures(Struct, frozen=True):
    """All of it. Depths are jobs per backfill cycle."""

    jobs: int
    depth_alone: float
    depth_with: float
    passes: tuple[PassFigures, ...]


@click.command()
@click.option("--jobs", default=5000, show_default=True, type=click.IntRange(10, 20000), help="Waiting jobs.")
@click.option("--seconds", default=120.0, show_default=True, type=click.FloatRange(10), help="Length of each phase.")
@click.option("--policy", default="srsf", show_default=True, help="Policy of the daemon.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(jobs: int, seconds: float, policy: str, as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """Measure how much of what is written is in force."""
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        Path(scratch).chmod(0o755)
        extra = (
            ("MaxJobCount", str(2 * jobs + 100)),
            ("SchedulerParameters", SETTINGS),
            ("PriorityWeightAge", "100000"),
        )
        spec = devcluster.ClusterSpec(nodes=16, gpus_per_node=4, shards_per_node=0, extra=extra)
        cluster = devcluster.up(spec, Path(scratch) / "c")
        try:
            figures = _measure(cluster, Path(scratch), jobs, seconds, policy)
        finally:
            devcluster.down(Path(scratch) / "c")
    if as_json:
        print(json.dumps(to_builtins(figures)))
        return
    print(f"backfill depth: {figures.depth_alone:.0f} jobs alone, {figures.depth_with:.0f} under the daemon")
    for number, one in enumerate(figures.passes, start=1):
        print(
            f"pass {number:>3}: {one.took_s:5.2f} s, {one.written:>4} changes, {one.out_of_force:>4} jobs not in force"
        )


def _measure(cluster: devcluster.Cluster, scratch: Path, jobs: int, seconds: float, policy: str) -> Figures:
    environment = {**os.environ, **cluster.env()}
    _submit(jobs, environment)
    depth_alone = _depth(environment, lambda: time.sleep(seconds))
    config = Config(
        policy=policy,
        progress=ProgressSection(spool=scratch),
        order=OrderSection(site_factor_file=scratch / "site_factors.json"),
        backfill=BackfillSection(reservation_depth=1),
    )
    client = CliClient(environment=cluster.env())
    controller = Controller(client, config)
    passes: list[PassFigures] = []
    depth_with = _depth(environment, lambda: passes.extend(_passes(controller, seconds)))
    return Figures(jobs, depth_alone, depth_with, tuple(passes))


def _passes(controller: Controller, seconds: float) -> Iterator[PassFigures]:
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s:
        began_s = time.monotonic()
        done = controller.reconcile(time.time())
        took_s = time.monotonic() - began_s
        waiting = sorted(
            (job for job in done.seen.jobs.values() if job.natives),
            key=lambda job: -job.priority_with(job.site_factor or 0),
        )
        wrong = [not job.is_in_force for job in waiting]
        yield PassFigures(round(took_s, 2), len(done.changes), sum(wrong), sum(wrong[:20]))
        time.sleep(max(0.0, 15.0 - took_s))


def _depth(environment: dict[str, str], phase: Callable[[], object]) -> float:
    """Mean jobs per backfill cycle of a phase."""
    subprocess.run(["sdiag", "--reset"], env=environment, capture_output=True, check=True)
    phase()
    out = subprocess.run(["sdiag"], env=environment, text=True, capture_output=True, check=True).stdout
    match = re.search(r"Depth Mean:\s*(\d+)", out)
    return float(match[1]) if match else 0.0


def _submit(jobs: int, environment: dict[str, str]) -> None:
    """Two jobs hold every node; the others want one or two nodes."""
    script = "#!/bin/sh\nsleep 7200\n"
    for i in range(jobs + 2):
        nodes = 8 if i < 2 else 1 + i % 2
        argv = ["sbatch", f"--nodes={nodes}", "--gpus-per-node=4", f"--time={60 * (1 + i % 7)}", "--output=/dev/null"]
        subprocess.run(argv, input=script, env=environment, text=True, capture_output=True, check=True)


if __name__ == "__main__":
    main()
