"""How long one `Policy.plan` takes on a large cluster: `python -m benchmarks.policy_pass --json`.

1,000 nodes x 8 GPUs, 2,000 running and 10,000 waiting jobs; a third of each reports a learning curve, half are
opportunistic. The growth exponent compares with a tenth of the waiting jobs on the same cluster: log10 of the ratio of
both times.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Iterator

import click
import numpy as np
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from sched_policy import catalog
from sched_policy.model import Exploration, GpuRequest, Job, JobState, Node, NodeGpus, ProgressPoint, StageProfile
from sched_policy.snapshot import Nodes, Snapshot

NOW_S = 1_000_000.0
NODES, GPUS_PER_NODE = 1000, 8
SIZES = np.array([1, 2, 4, 8, 16, 32])
SHARES = np.array([0.55, 0.1, 0.15, 0.14, 0.04, 0.02])
RUNNING_SHARES = np.array([0.34, 0.12, 0.2, 0.34])  # 4.1 GPUs on average: 2,000 jobs fill 8,000 GPUs
REPORTS = 50
PROFILES = [StageProfile(0.1 * (1 + i), 0.04 * (i % 7), 0.03 * (1 + i % 5), 0.02 * (i % 3)) for i in range(24)]


def snapshot(pending: int, running: int, seed: int = 1, nodes: int = NODES) -> Snapshot:
    """A full cluster: the running jobs fill nodes from the first on; the waiting ones have time limits of hours."""
    random = np.random.default_rng(seed)
    table = Nodes(Node(f"n{i:04d}", GPUS_PER_NODE, frozenset({"main"})) for i in range(nodes))
    return Snapshot.of(NOW_S, table, [*_running(random, running, nodes), *_pending(random, running + 1, pending)])


def _running(random: np.random.Generator, count: int, nodes: int) -> Iterator[Job]:
    free = np.full(nodes, GPUS_PER_NODE)
    for job_id in range(1, count + 1):
        gpus = min(int(random.choice(SIZES[:4], p=RUNNING_SHARES)), int(free.max()))
        if not gpus:
            return
        node = int(np.flatnonzero(free >= gpus)[0])
        first = GPUS_PER_NODE - int(free[node])
        free[node] -= gpus
        ran_s = float(random.uniform(60, 20_000))
        yield _job(
            random,
            job_id,
            gpus,
            state=JobState.RUNNING,
            start_s=NOW_S - ran_s,
            first_report_s=NOW_S - ran_s,
            allocation=(NodeGpus(f"n{node:04d}", gpus, tuple(range(first, first + gpus))),),
        )


def _pending(random: np.random.Generator, first_id: int, count: int) -> Iterator[Job]:
    for job_id in range(first_id, first_id + count):
        yield _job(random, job_id, int(random.choice(SIZES, p=SHARES)))


def _job(random: np.random.Generator, job_id: int, gpus: int, **fields: object) -> Job:
    request = GpuRequest.on_each(1, gpus) if gpus <= GPUS_PER_NODE else GpuRequest.on_each(gpus // 8, 8)
    exploration = Exploration(checkpoint_signal="USR1", may_stop=True)
    points: tuple[ProgressPoint, ...] = ()
    if job_id % 3 == 0:
        exploration = Exploration(f"sweep{job_id % 50}", checkpoint_signal="USR1", may_stop=True)
        points = _curve(random, gpus)
    return Job(
        job_id=job_id,
        request=request,
        submit_s=NOW_S - float(random.uniform(0, 100_000)),
        partition="main",
        time_limit_s=float(random.integers(2, 96) * 1800),
        exploration=exploration,
        total_steps=100 if points else None,
        points=points,
        profile=PROFILES[int(random.integers(len(PROFILES)))],
        guaranteed=bool(random.integers(2)),
        **fields,  # type: ignore[arg-type]
    )


def _curve(random: np.random.Generator, gpus: int) -> tuple[ProgressPoint, ...]:
    end, rate = random.uniform(0, 1), random.uniform(0.2, 2)
    xs = gpus * 60.0 * np.arange(1, REPORTS + 1)
    ys = end + (1 - end) * (1 + xs / 600) ** -rate + random.normal(0, 0.005, REPORTS)
    return tuple(ProgressPoint(i + 1, float(x), float(y)) for i, (x, y) in enumerate(zip(xs, ys, strict=True)))


def as_new(seen: Snapshot) -> Snapshot:
    """The same snapshot with reports nobody has seen: policies remember what they fitted to the ones they know."""
    jobs = [replace(job, points=(*job.points,)) for job in seen.jobs]
    return Snapshot.of(seen.now_s, seen.nodes, jobs)


def median_plan_s(name: str, seen: Snapshot, repeats: int) -> float:
    """Median wall-clock time of a plan, each as after a restart: every curve has to be fitted."""
    policy = catalog.build(name)
    times = []
    for _ in range(repeats):
        fresh = as_new(seen)
        gc.collect()
        began = time.perf_counter()
        policy.plan(fresh)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@click.command()
@click.option(
    "--policies", default=",".join(catalog.POLICIES.names()), show_default=True, help="Names, separated by commas."
)
@click.option("--pending", default=10_000, show_default=True, type=click.IntRange(10), help="Waiting jobs.")
@click.option("--running", default=2000, show_default=True, type=click.IntRange(0), help="Running jobs.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Plans per median.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def main(policies: str, pending: int, running: int, repeats: int, as_json: bool) -> None:  # noqa: FBT001
    """Time one plan of every policy."""
    large, small = snapshot(pending, running), snapshot(pending // 10, running)
    table = Table("policy", "plan s", "exponent", title=f"{pending} waiting, {running} running jobs")
    figures = {}
    for name in policies.split(","):
        plan_s = median_plan_s(name, large, repeats)
        exponent = math.log10(plan_s / median_plan_s(name, small, repeats))
        figures[name] = {"plan_s": round(plan_s, 4), "exponent": round(exponent, 3)}
        table.add_row(name, f"{plan_s:.3f}", f"{exponent:.2f}")
    if not as_json:
        Console().print(table)
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
