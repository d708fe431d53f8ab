"""Whether the priorities that the daemon writes are in force while Slurm's backfill lets go of its locks.

A private cluster of its own with many waiting whole-node jobs of three lengths, cycles of seconds that yield, and the
daemon's own passes. Prints for each pass what was written and how many jobs were not in force before it, and the mean
depth and working time of backfill cycles (sdiag) for Slurm alone and under the daemon: cycles yield where they work
longer than the interval. EXPLSCHED_SLURM_PREFIX chooses the Slurm.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from msgspec import Struct, to_builtins

from slurm_plugin import devcluster
from slurm_plugin.client.cli import CliClient
from slurm_plugin.config import BackfillSection, Config, OrderSection, ProgressSection
from slurm_plugin.devcluster import machine
from slurm_plugin.steering.controller import Controller

SETTINGS = (
    "bf_continue,bf_interval=5,bf_max_time=60,bf_max_job_test=20000,bf_resolution=10,"
    "bf_yield_sleep=500000,max_rpc_cnt=0"
)


INTERVAL_S = 15.0
SOONEST_S = 0.25 * INTERVAL_S
_NEWS_S = 3.0


class PassFigures(Struct, frozen=True):
    """One pass: what it wrote, and what it found. `out_of_force` had a priority that nobody had written."""

    took_s: float
    written: int
    out_of_force: int
    worst_head: int


class Backfill(Struct, frozen=True):
    """Means of one phase: jobs that a backfill cycle looked at, and how long it worked, sleep left out."""

    depth: float
    cycle_s: float


class Figures(Struct, frozen=True):
    """All of it; `slurm` is the release it ran on."""

    slurm: str
    jobs: int
    yield_interval_s: float
    alone: Backfill
    with_daemon: Backfill
    passes: tuple[PassFigures, ...]


@click.command()
@click.option("--jobs", default=5000, show_default=True, type=click.IntRange(10, 20000), help="Waiting jobs.")
@click.option("--seconds", default=120.0, show_default=True, type=click.FloatRange(10), help="Length of each phase.")
@click.option(
    "--yield-us", default=20000, show_default=True, type=click.IntRange(1), help="bf_yield_interval, microseconds."
)
@click.option("--policy", default="srsf", show_default=True, help="Policy of the daemon.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(jobs: int, seconds: float, yield_us: int, policy: str, as_json: bool) -> None:  # noqa: FBT001  click passes by name
    """Measure how much of what is written is in force."""
    with tempfile.TemporaryDirectory(prefix="expl") as scratch:
        Path(scratch).chmod(0o755)
        extra = (
            ("MaxJobCount", str(2 * jobs + 100)),
            ("SchedulerParameters", f"{SETTINGS},bf_yield_interval={yield_us}"),
            ("PriorityWeightAge", "100000"),
        )
        spec = devcluster.ClusterSpec(nodes=16, gpus_per_node=4, shards_per_node=0, extra=extra)
        cluster = devcluster.up(spec, Path(scratch) / "c")
        try:
            measured = _measure(cluster, Path(scratch), jobs, seconds, policy)
        finally:
            devcluster.down(Path(scratch) / "c")
    figures = Figures(str(machine.slurm_version()), jobs, yield_us / 1e6, *measured)
    if as_json:
        print(json.dumps(to_builtins(figures)))
        return
    print(f"Slurm {figures.slurm}")
    for name, phase in (("alone", figures.alone), ("under the daemon", figures.with_daemon)):
        print(f"backfill {name}: {phase.depth:.0f} jobs, {phase.cycle_s:.3f} s of work a cycle")
    for number, one in enumerate(figures.passes, start=1):
        print(
            f"pass {number:>3}: {one.took_s:5.2f} s, {one.written:>4} changes, {one.out_of_force:>4} jobs not in force"
        )


def _measure(
    cluster: devcluster.Cluster, scratch: Path, jobs: int, seconds: float, policy: str
) -> tuple[Backfill, Backfill, tuple[PassFigures, ...]]:
    environment = {**os.environ, **cluster.env()}
    _submit(jobs, environment)
    alone = _backfill(environment, lambda: time.sleep(seconds))
    config = Config(
        policy=policy,
        progress=ProgressSection(spool=scratch),
        order=OrderSection(site_factor_file=scratch / "site_factors.json"),
        backfill=BackfillSection(reservation_depth=1),
    )
    client = CliClient(environment=cluster.env())
    controller = Controller(client, config)
    passes: list[PassFigures] = []
    with_daemon = _backfill(environment, lambda: passes.extend(_passes(controller, seconds)))
    return alone, with_daemon, tuple(passes)


def _passes(controller: Controller, seconds: float) -> Iterator[PassFigures]:
    """Passes as the daemon makes them: every `INTERVAL_S`, or as soon as postponed changes may be made."""
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
        while time.monotonic() < began_s + INTERVAL_S:
            time.sleep(0.25)
            if time.monotonic() > began_s + SOONEST_S and controller.is_awaited(time.time()):
                break


def _backfill(environment: dict[str, str], phase: Callable[[], object]) -> Backfill:
    """What sdiag tells of the cycles of a phase, which begins when one is over: nothing is known before."""
    is_over = threading.Event()
    news = threading.Thread(target=_news, args=(environment, is_over))
    news.start()
    try:
        while "middle of backfilling" in _told(environment):  # its depth would be counted from now on
            time.sleep(1.0)
        subprocess.run(["sdiag", "--reset"], env=environment, capture_output=True, check=True)
        while not _cycle_number(environment, "Total cycles"):
            time.sleep(1.0)
        phase()
        depth, cycle_us = (_cycle_number(environment, key) for key in ("Depth Mean", "Mean cycle"))
    finally:
        is_over.set()
        news.join()
    return Backfill(depth, cycle_us / 1e6)


def _news(environment: dict[str, str], is_over: threading.Event) -> None:
    """Something new on the cluster now and then, as everywhere: without any Slurm begins no cycle."""
    for number in itertools.count():
        if is_over.wait(_NEWS_S):
            return
        argv = ["scontrol", "update", "JobId=1", f"Comment={number}"]
        subprocess.run(argv, env=environment, capture_output=True, check=True)


def _cycle_number(environment: dict[str, str], key: str) -> float:
    """One of sdiag's numbers about backfill, 0 where it is not there."""
    found = re.search(rf"{key}:\s*(\d+)", _told(environment).partition("Backfilling stats")[2])
    return float(found[1]) if found else 0.0


def _told(environment: dict[str, str]) -> str:
    return subprocess.run(["sdiag"], env=environment, text=True, capture_output=True, check=True).stdout


def _submit(jobs: int, environment: dict[str, str]) -> None:
    """Two jobs hold every node; the others want one or two nodes."""
    script = "#!/bin/sh\nsleep 7200\n"
    for i in range(jobs + 2):
        nodes = 8 if i < 2 else 1 + i % 2
        argv = ["sbatch", f"--nodes={nodes}", "--gpus-per-node=4", f"--time={60 * (1 + i % 7)}", "--output=/dev/null"]
        subprocess.run(argv, input=script, env=environment, text=True, capture_output=True, check=True)


if __name__ == "__main__":
    main()
