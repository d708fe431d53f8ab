"""GPUs that placements need when inference and training share them, beside exclusive placement.

On generated events, and with `--published DIR` on `instances-N.txt` of Dilu's repository (sigserverless/Dilu,
`scheduling/simulations/workload`), which nothing was tuned on.

After the large-scale simulation of Dilu (ASPLOS 2025): 3,200 instances on 1,000 nodes with 4 GPUs each, several seeds.
Prints for each placement, over the seeds, `ratio` (most GPUs in use over those of exclusive placement: mean, worst),
`mean_ratio` (the same of GPUs in use averaged over time), refused instances, moves of running instances per start, the
GiB moved, the share of starts that waited for moves, and CPU seconds per run. `bound` is what no
placement within Dilu's bounds can undercut. A run in which memory, requests or limits were exceeded raises. The first
seed is 100: `Complementary` and `ComplementaryMoves` were tuned on the seeds 0 to 5 and 1000 to 1029.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import mean

import click

from simulation.colocation.events import Action, InstanceTrace, generate, read_events
from simulation.colocation.instance import GpuLoads, InstanceKind, ShareBounds
from simulation.colocation.placements import SHARE_PLACEMENTS
from simulation.colocation.simulator import Colocation, colocate
from simulation.traces.trace import TraceError, require_all_rows

_GPU_MIB = 40 * 1024


def bound(trace: InstanceTrace, bounds: ShareBounds) -> int:
    """GPUs that are in use at some time under any placement, even one that could move what runs.

    The largest sum of requests, limits or memory, or number of entries of more than half of a GPU's memory, of which
    no two fit on one GPU (an LLM does not count here: it can be split).
    """
    most = 0.0
    request = limit = memory = 0.0
    apart = 0
    for event in trace.events:
        sign, instance = 1 if event.action is Action.START else -1, event.instance
        request += sign * instance.gpus * instance.request / bounds.request
        limit += sign * instance.gpus * instance.limit / bounds.limit
        memory += sign * sum(instance.memory_mib) / _GPU_MIB
        if instance.kind is not InstanceKind.LLM_INFERENCE:
            apart += sign * sum(2 * entry_mib > _GPU_MIB for entry_mib in instance.memory_mib)
        most = max(most, request, limit, memory, apart)
    return ceil(most - 1e-6)


@dataclass(frozen=True, slots=True)
class Run:
    """One placement on one seed's events."""

    found: Colocation
    cpu_s: float


@click.command()
@click.option("--instances", default=3200, show_default=True, type=click.IntRange(1, 1_000_000), help="Instances.")
@click.option("--nodes", default=1000, show_default=True, type=click.IntRange(1, 100_000), help="Nodes.")
@click.option("--gpus-per-node", default=4, show_default=True, type=click.IntRange(1, 64), help="GPUs per node.")
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many seeds.")
@click.option("--first-seed", default=100, show_default=True, type=click.IntRange(min=0), help="The first of them.")
@click.option(
    "--published",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with Dilu's own instances-100.txt, -800 and -3200.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    *,
    instances: int,
    nodes: int,
    gpus_per_node: int,
    seeds: int,
    first_seed: int,
    published: Path | None,
    as_json: bool,
) -> None:
    """Measure every placement on the same events."""
    try:
        traces = _published(published) if published else {}
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    runs: dict[str, list[Run]] = {name: [] for name in SHARE_PLACEMENTS}
    least: list[int] = []
    for seed in range(first_seed, first_seed + seeds):
        trace = generate(instances, seed)
        least.append(bound(trace, ShareBounds()))
        for name, done in runs.items():
            done.append(_run(name, trace, nodes, gpus_per_node))
    figures = {name: _figures(done, runs["exclusive"]) for name, done in runs.items()}
    bound_ratio = mean(gpus / alone.found.max_active_gpus for gpus, alone in zip(least, runs["exclusive"], strict=True))
    theirs = {size: _of_published(trace, nodes, gpus_per_node) for size, trace in traces.items()}
    if as_json:
        shape = {
            "instances": instances,
            "nodes": nodes,
            "gpus_per_node": gpus_per_node,
            "seeds": seeds,
            "first_seed": first_seed,
        }
        print(json.dumps({**shape, "placements": figures, "bound_ratio": bound_ratio, "published": theirs}))
        return
    for name, values in figures.items():
        print(f"{name:<14}" + " ".join(f"{key} {value:.4g}" for key, value in values.items()))
    print(f"{'bound':<14}ratio {bound_ratio:.4g}")
    for size, ratios in theirs.items():
        print(f"instances-{size}.txt  " + " ".join(f"{name} {value:.3f}" for name, value in ratios.items()))


def _published(directory: Path) -> Mapping[str, InstanceTrace]:
    """Number of instances -> Dilu's own events. Raises `TraceError` if a line cannot be used."""
    found = {}
    for size in ("100", "800", "3200"):
        path = directory / f"instances-{size}.txt"
        found[size] = read_events(path)
        require_all_rows(path, found[size].rejected)
    return found


def _of_published(trace: InstanceTrace, nodes: int, gpus_per_node: int) -> Mapping[str, float]:
    """Placement -> most GPUs in use over those of exclusive placement; also moves per start."""
    runs = {name: _run(name, trace, nodes, gpus_per_node) for name in SHARE_PLACEMENTS}
    alone = runs["exclusive"].found.max_active_gpus
    ratios = {name: round(run.found.max_active_gpus / alone, 4) for name, run in runs.items()}
    ratios |= {
        f"{name}_moves_per_start": round(run.found.moves / run.found.started, 4)
        for name, run in runs.items()
        if run.found.moves
    }
    return {**ratios, "bound": round(bound(trace, ShareBounds()) / alone, 4)}


def _run(name: str, trace: InstanceTrace, nodes: int, gpus_per_node: int) -> Run:
    loads = GpuLoads.uniform(nodes, gpus_per_node, _GPU_MIB)
    began_s = time.process_time()
    found = colocate(trace.events, SHARE_PLACEMENTS[name], loads)
    return Run(found, time.process_time() - began_s)


def _figures(done: Sequence[Run], exclusive: Sequence[Run]) -> Mapping[str, float]:
    pairs = list(zip(done, exclusive, strict=True))
    ratios = [run.found.max_active_gpus / alone.found.max_active_gpus for run, alone in pairs]
    over_time = [run.found.mean_active_gpus / alone.found.mean_active_gpus for run, alone in pairs]
    return {
        "gpus": mean(run.found.max_active_gpus for run in done),
        "ratio": mean(ratios),
        "worst_ratio": max(ratios),
        "mean_ratio": mean(over_time),
        "sm_fragmentation": mean(run.found.mean_sm_fragmentation for run in done),
        "memory_fragmentation": mean(run.found.mean_memory_fragmentation for run in done),
        "refused": sum(len(run.found.refused) for run in done),
        "moves_per_start": mean(run.found.moves / run.found.started for run in done),
        "moved_gib": mean(run.found.moved_mib / 1024 for run in done),
        "behind_moves": mean(run.found.behind_moves / run.found.started for run in done),
        "cpu_s": mean(run.cpu_s for run in done),
    }


if __name__ == "__main__":
    main()
