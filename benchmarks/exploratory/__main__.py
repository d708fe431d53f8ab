"""What a cluster learns per GPU-hour under each policy: `python -m benchmarks.exploratory --json`.

Hyper-parameter sweeps of recorded learning curves arrive at twice the rate the cluster can serve, and owners give up
jobs that lead nowhere (`workload`). Average utility is the normalised loss reduction of all
jobs, each from 0 to 1 (1: the best of its sweep), over all GPU-hours they held, restarts included. Beside it stand the
share of the possible reduction that was reached, by all jobs and by the best of each sweep, because stopping all of
them at once would be frugal, too, and the figures at the moment when the last job arrived, because learning early is
worth something.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import click
from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.exploratory.recorded import LearningCurves
from benchmarks.exploratory.workload import Workload, abandoned_share
from sched_policy import catalog
from sched_policy.policy import SchedulingPolicy
from simulation.cluster.engine import simulate
from simulation.cluster.settings import Settings
from simulation.results.outcome import Ending, JobRecord
from simulation.traces.learning import Learning
from simulation.traces.trace import ClusterShape, Trace

CURVES = Path(__file__).parent.parent / "curves" / "curves.npz"
CLUSTER = ClusterShape(nodes=8, gpus_per_node=8)
DEFAULTS = catalog.PolicyOptions(objective="total")
OURS, BASELINES = "explsched", ("fair", "slaq", "fifo")


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy on one trace: the `early` figures are those at the moment when the last job arrived."""

    utility: float
    reached: float
    best_reached: float
    early_utility: float
    early_reached: float
    stopped: float
    preemptions: float


def measure(policy: SchedulingPolicy, trace: Trace, cluster: ClusterShape) -> Figures:
    """Replay the trace under one policy. Times, restarts and checkpoints cost what `Settings` says by default."""
    whole = simulate(trace, cluster, policy, Settings()).jobs
    early = simulate(trace, cluster, policy, Settings(until_s=trace.jobs[-1].submit_s)).jobs
    possible = sum(_gain_when_left_alone(learning) for job in trace.jobs if (learning := job.learning))
    return Figures(
        utility=_utility(whole),
        reached=_gain(whole) / possible,
        best_reached=_best_reached(whole, trace),
        early_utility=_utility(early),
        early_reached=_gain(early) / possible,
        stopped=sum(record.ending is Ending.STOPPED for record in whole) / len(whole),
        preemptions=sum(record.preemptions for record in whole) / len(whole),
    )


def _gain(records: Sequence[JobRecord]) -> float:
    return sum(record.gain or 0.0 for record in records)


def _utility(records: Sequence[JobRecord]) -> float:
    """Normalised loss reduction per GPU-hour."""
    gpu_h = sum(record.gpus * record.held_s for record in records) / 3600
    return _gain(records) / gpu_h if gpu_h else 0.0


def _best_reached(records: Sequence[JobRecord], trace: Trace) -> float:
    """What the best job of a sweep reached over what it reaches when left alone, on average over the sweeps."""
    gain = {record.job_id: record.gain or 0.0 for record in records}
    reached: defaultdict[str, float] = defaultdict(float)
    possible: defaultdict[str, float] = defaultdict(float)
    for job in trace.jobs:
        if job.learning is not None:
            sweep = job.learning.exploration.sweep or f"job {job.job_id}"
            reached[sweep] = max(reached[sweep], gain[job.job_id])
            possible[sweep] = max(possible[sweep], _gain_when_left_alone(job.learning))
    return fmean(reached[sweep] / possible[sweep] if possible[sweep] else 1.0 for sweep in possible)


def _gain_when_left_alone(learning: Learning) -> float:
    """What the job reaches until it ends or its owner gives it up."""
    return learning.gain(math.inf if learning.abandoned_at_s is None else learning.abandoned_at_s)


@click.command()
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1, 100), help="Traces to draw.")
@click.option("--first-seed", default=1, show_default=True, type=int, help="Others judge settings chosen on these.")
@click.option("--jobs", default=240, show_default=True, type=click.IntRange(20), help="Jobs of each trace.")
@click.option("--overload", default=2.0, show_default=True, type=click.FloatRange(0.1), help="Work over capacity.")
@click.option("--policies", default=",".join((OURS, *BASELINES)), show_default=True, help="Names, with commas.")
@click.option("--stop-threshold", default=DEFAULTS.stop_threshold, show_default=True, type=click.FloatRange(0, 1))
@click.option("--stop-leader-threshold", default=DEFAULTS.stop_leader_threshold, show_default=True, type=float)
@click.option("--stop-least-share", default=DEFAULTS.stop_least_share, show_default=True, type=click.FloatRange(0, 1))
@click.option("--curves", default=CURVES, type=click.Path(path_type=Path), help="Recorded learning curves.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def main(
    seeds: int,
    first_seed: int,
    jobs: int,
    overload: float,
    policies: str,
    curves: Path,
    as_json: bool,  # noqa: FBT001
    **stopping: float,
) -> None:
    """Compare what is learned per GPU-hour."""
    options = replace(DEFAULTS, **stopping)
    recorded, names = LearningCurves.load(curves), policies.split(",")
    drawn = (Workload(jobs=jobs, overload=overload, seed=first_seed + i) for i in range(seeds))
    traces = [workload.generate(recorded, CLUSTER) for workload in drawn]
    found: dict[str, list[Figures]] = {name: [] for name in names}
    with Progress(disable=as_json) as progress:
        task = progress.add_task("simulations", total=len(traces) * len(names))
        for trace in traces:
            for name in names:
                found[name].append(measure(catalog.build(name, options), trace, CLUSTER))
                progress.advance(task)
    summary = {name: _means(figures) for name, figures in found.items()}
    if not as_json:
        Console().print(_table(found, f"{seeds} x {jobs} jobs, {len(recorded)} curves, {overload:g}x overload"))
    report = {
        "seeds": seeds,
        "first_seed": first_seed,
        "jobs": jobs,
        "curves": len(recorded),
        "abandoned_share": round(fmean(map(abandoned_share, traces)), 3),
        "options": stopping,
        "policies": summary,
        **_advantages({name: figures["utility"] for name, figures in summary.items()}),
    }
    click.echo(json.dumps(report))


def _means(figures: Sequence[Figures]) -> dict[str, float]:
    return {name: round(fmean(getattr(one, name) for one in figures), 4) for name in Figures.__slots__}


def _advantages(utility: dict[str, float]) -> dict[str, float]:
    """Ours against the mean of the baselines and against the best of them, as shares above."""
    baselines = [utility[name] for name in BASELINES if name in utility]
    if OURS not in utility or not baselines:
        return {}
    ours = utility[OURS]
    return {
        "against_mean": round(ours / fmean(baselines) - 1, 3),
        "against_best": round(ours / max(baselines) - 1, 3),
    }


def _table(found: dict[str, list[Figures]], title: str) -> Table:
    columns = ("utility", "reached", "by best", "early", "reached", "stopped", "moves/job")
    table = Table("policy", *columns, title=title)
    for name, figures in found.items():
        mean = _means(figures)
        spread = stdev([one.utility for one in figures]) if len(figures) > 1 else 0.0
        table.add_row(
            name,
            f"{mean['utility']:.3f} ±{spread:.3f}",
            f"{mean['reached']:.1%}",
            f"{mean['best_reached']:.1%}",
            f"{mean['early_utility']:.3f}",
            f"{mean['early_reached']:.1%}",
            f"{mean['stopped']:.1%}",
            f"{mean['preemptions']:.2f}",
        )
    return table


if __name__ == "__main__":
    main()
