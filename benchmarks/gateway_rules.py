"""Scaling rules against recorded requests: the share over TTFT and TPOT objectives, over replica-seconds.

`--traces DIR` has any of the files that `gateway_cases` names. Our rule runs with its defaults, and with `utilization`
swept; the gateway is compared as it is: rule, queue and choice of replicas. Every other rule runs with its defaults and
with options drawn from all it has (`PEERS`), `--draws` times each, first in, first out and at the replica with fewest
requests, and again with the gateway's queue and choice (`..., our queue`). Knative's options contain what KServe sets
(concurrency) and, without panic and with a long delay, what the horizontal pod autoscaler of Kubernetes does.

The bar: at the cost of our defaults, at most half of the share of the best peer, whatever its options, that costs no
more. `ratio` is ours over theirs; below `_FEW` requests neither is told from none.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import click

from benchmarks.gateway_cases import CASES
from explsched.errors import ExplschedError
from simulation.cli.parallel import bars, run_all
from simulation.requests.replay import Point, RequestMetrics, RequestReplay, draw

OURS = "slurm"
OUR_QUEUE = ", our queue"
FIFO = ", fifo"
UTILIZATIONS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.6)
_USE = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)
PEERS: Mapping[str, Mapping[str, Sequence[object]]] = {
    "knative": {
        "metric": ("concurrency", "concurrency", "rps"),
        "utilization": _USE,
        "stable_window": (15, 30, 60, 120, 300),
        "panic_share": (0.05, 0.1, 0.3),
        "panic_threshold": (1.2, 1.5, 2.0, 3.0, 10.0),
        "max_up": (1.5, 2.0, 10.0, 1000.0),
        "max_down": (1.2, 2.0, 10.0),
        "scale_down_delay_s": (0, 30, 60, 120, 300, 600),
    },
    "target": {
        "utilization": _USE,
        "look_back": (1, 10, 30, 60),
        "up_delay_s": (0, 10, 30),
        "down_delay_s": (0, 60, 120, 300, 600),
        "up_factor": (0.5, 1.0, 2.0),
        "down_factor": (0.3, 0.6, 1.0),
    },
    "dilu": {
        "utilization": _USE,
        "window": (20, 40, 80),
        "out_of_window": (5, 10, 20),
        "in_of_window": (10, 15, 20),
    },
}
_FEW = 5
"""Requests over their objectives: below, chance decides."""

_ATTRIBUTION = (
    'Azure LLM inference traces 2023: "Azure Public Dataset", (c) Microsoft Corporation, '
    "https://github.com/Azure/AzurePublicDataset, licensed under CC BY 4.0 "
    "(https://creativecommons.org/licenses/by/4.0/). Unchanged by us. Cite: P. Patel et al., Splitwise, ISCA 2024.",
    "Mooncake traces: kvcache-ai/Mooncake, Apache License 2.0. Cite: R. Qin et al., Mooncake, FAST 2025.",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One run. `arm` is the rule's name with that of its queue, if that is not its own."""

    trace: Path
    case: str
    arm: str
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it."""

    arm: str
    options: Mapping[str, object]
    metrics: RequestMetrics


@cache
def _replay(trace: Path, case: str) -> RequestReplay:
    return CASES[case].replay(trace)


def run(task: Task, progress: Callable[[int, int], None]) -> Run:
    """Replay a trace under a rule."""
    rule = task.arm.removesuffix(OUR_QUEUE).removesuffix(FIFO)
    replay = _replay(task.trace, task.case)
    if task.arm in PEERS or task.arm.endswith(FIFO):
        replay = replace(replay, settings=replace(replay.settings, queue_target_s=0.0, prompt_tokens_per_s=0.0))
    return Run(task.arm, task.options, replay.measured(rule, task.options, progress))


def peer_options(rule: str, draws: int) -> list[Mapping[str, object]]:
    """The defaults, and so many sets of options, drawn with a fixed seed."""
    random_ = random.Random(rule)  # noqa: S311  no secret
    drawn = [{name: random_.choice(values) for name, values in PEERS[rule].items()} for _ in range(draws)]
    return [{}, *drawn]


def tasks(trace: Path, case: str, draws: int) -> list[Task]:
    """All runs of a case."""
    found = [Task(trace, case, OURS, {})]
    found += [Task(trace, case, OURS, {"utilization": share}) for share in UTILIZATIONS]
    found += [Task(trace, case, OURS + FIFO, {})]
    for rule in PEERS:
        for options in peer_options(rule, draws):
            found += [Task(trace, case, rule, options), Task(trace, case, rule + OUR_QUEUE, options)]
    return found


def best(runs: Iterable[Run], replica_seconds: float) -> Run | None:
    """The run with the fewest requests over their objectives that costs no more; None if none costs so little."""
    within = [one for one in runs if one.metrics.replica_seconds <= replica_seconds]
    return min(within, key=lambda one: (one.metrics.slo_misses, one.metrics.replica_seconds), default=None)


def against(ours: Run, peers: Sequence[Run]) -> dict[str, object]:
    """One run of ours beside the best peer at its cost."""
    other = best(peers, ours.metrics.replica_seconds)
    found: dict[str, object] = {
        "utilization": ours.options.get("utilization"),
        "replica_seconds": round(ours.metrics.replica_seconds),
        "over": ours.metrics.slo_misses,
        "share": ours.metrics.slo_miss_share,
    }
    if other is None:
        return found
    misses, theirs = (max(one.metrics.slo_misses, _FEW) for one in (ours, other))
    return {
        **found,
        "peer": other.arm,
        "peer_options": other.options,
        "peer_replica_seconds": round(other.metrics.replica_seconds),
        "peer_over": other.metrics.slo_misses,
        "ratio": round(misses / theirs, 3),
    }


@click.command()
@click.option("--traces", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-j", "--jobs", "workers", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
@click.option("--case", "only", multiple=True, type=click.Choice(list(CASES)), help="Only these.  [default: all]")
@click.option("--draws", default=100, show_default=True, type=click.IntRange(1), help="Sets of options of each peer.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Picture, a panel per trace.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    traces: Path,
    workers: int | None,
    only: tuple[str, ...],
    draws: int,
    plot: Path | None,
    as_json: bool,  # noqa: FBT001  click passes by name
) -> None:
    """Measure the scaling rules on traces of requests."""
    chosen = traces_of(traces, only)
    todo = [task for name, trace in chosen.items() for task in tasks(trace, name, draws)]
    workers = workers or len(os.sched_getaffinity(0))
    try:
        with bars(["runs"]) as report:
            done = run_all(run, todo, workers, lambda at, *_: report(0, at + 1, len(todo)))
    except ExplschedError as error:
        raise click.ClickException(str(error)) from error
    found = {name: [one for task, one in zip(todo, done, strict=True) if task.case == name] for name in chosen}
    if plot is not None:
        draw({name: _curves(runs) for name, runs in found.items()}, plot)
    results = [_result(name, runs) for name, runs in found.items()]
    if as_json:
        print(json.dumps({"draws": draws, "cases": results, "attribution": _ATTRIBUTION}))
        return
    for result in results:
        print(_line(result))


def traces_of(traces: Path, only: Sequence[str]) -> dict[str, Path]:
    """The trace of each case. Told on stderr is whose files are not there; of those that are named it is an error."""
    paths = {name: case.path(traces) for name, case in CASES.items() if not only or name in only}
    lacking = [
        f"{name}: no {' or '.join(CASES[name].files)} in {traces}" for name, path in paths.items() if path is None
    ]
    if lacking and only:
        raise click.UsageError("; ".join(lacking))
    for why in lacking:
        click.echo(f"left out: {why}", err=True)
    return {name: path for name, path in paths.items() if path is not None}


def _result(name: str, runs: Sequence[Run]) -> dict[str, object]:
    ours = [one for one in runs if one.arm == OURS]
    with_queue = [one for one in runs if one.arm.endswith(OUR_QUEUE)]
    alone = [one for one in runs if one.arm in PEERS]
    [fifo] = [one for one in runs if one.arm == OURS + FIFO]
    return {
        "trace": name,
        "judges": CASES[name].judges,
        "requests": ours[0].metrics.requests,
        "default": against(ours[0], alone),
        "default_same_queue": against(ours[0], with_queue),
        "default_fifo": against(fifo, alone),
        "curve": [against(one, alone) for one in ours[1:]],
        "curve_same_queue": [against(one, with_queue) for one in ours[1:]],
        "defaults": {one.arm: asdict(one.metrics) for one in runs if not one.options},
        "runs": [[one.arm, round(one.metrics.replica_seconds), one.metrics.slo_misses] for one in runs],
    }


def _line(result: Mapping[str, object]) -> str:
    return "  ".join(f"{key} {result[key]}" for key in ("trace", "default", "default_same_queue", "default_fifo"))


def _curves(runs: Sequence[Run]) -> dict[str, list[Point]]:
    """Ours along its sweep; of a peer what nothing else of it beats at its cost."""
    curves: dict[str, list[Point]] = {}
    for arm in (OURS, *PEERS):
        mine = sorted((one for one in runs if one.arm == arm), key=lambda one: one.metrics.replica_seconds)
        points: list[Point] = []
        fewest = float("inf")
        for one in mine:
            if arm == OURS or one.metrics.slo_misses < fewest:
                fewest = one.metrics.slo_misses
                points.append(Point(one.metrics.replica_seconds if one.options else None, one.metrics))
        curves[arm] = points
    return curves


if __name__ == "__main__":
    main()
