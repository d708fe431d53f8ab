"""Scaling rules against recorded and synthetic requests: SLO misses over replica-seconds.

`--traces DIR` has azure_llm_2023_conv.csv (Azure/AzurePublicDataset) and mooncake_conversation.jsonl
(kvcache-ai/Mooncake). Every rule runs at its defaults, and with its `utilization` swept; see `gateway_cases` for what
is replayed. The bar: for each run of another rule, some run of `slurm` has at most half of its misses at no more
replica-seconds (`holds` of `points`); and slurm's default against the other rule's default. The gateway is compared as
it is, rule and queue, with Dilu and Knative as they are, whose queues are first in, first out; and then rule with rule,
all on the gateway's queue (`..., our queue`). `slurm, fifo` is our rule without the queue. `--oracle` adds what knowing
the requests in advance would give; see `gateway_oracle`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import numpy as np

from benchmarks.gateway_cases import SLO_S, SLOS_S, Case, cases
from benchmarks.gateway_oracle import PRICES, fewest_misses, plans
from simulation.cli.parallel import bars, run_all
from simulation.requests.engine import RequestOutcome
from simulation.requests.replay import Point, RequestMetrics, RequestReplay, draw, measure

OURS = "slurm"
HINDSIGHT = "hindsight"
_THEIRS = ("dilu", "knative")
_OUR_QUEUE = ", our queue"
_FIFO = ", fifo"
_OTHERS = (*_THEIRS, *(rule + _OUR_QUEUE for rule in _THEIRS))
_SWEEP = {
    OURS: (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.6),
    "dilu": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1),
    "knative": (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1),
}
_ATTRIBUTION = (
    'Azure LLM inference trace 2023 (conversation): "Azure Public Dataset", (c) Microsoft Corporation, '
    "https://github.com/Azure/AzurePublicDataset, licensed under CC BY 4.0 "
    "(https://creativecommons.org/licenses/by/4.0/). Unchanged by us. Cite: P. Patel et al., Splitwise, ISCA 2024.",
    "Mooncake conversation trace: kvcache-ai/Mooncake, Apache License 2.0. Cite: R. Qin et al., Mooncake, FAST 2025.",
)


@dataclass(frozen=True, slots=True)
class Task:
    """A rule in a case, at its defaults and with every value of its sweep; `arm` is its name with that of its queue."""

    case: Case
    arm: str

    @property
    def rule(self) -> str:
        """The rule of the arm."""
        return self.arm.removesuffix(_OUR_QUEUE).removesuffix(_FIFO)

    @property
    def replay(self) -> RequestReplay:
        """What is replayed, with the queue of the arm."""
        found = self.case.replay
        if self.arm in _THEIRS or self.arm.endswith(_FIFO):
            return replace(found, settings=replace(found.settings, queue_target_s=0.0))
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """One run: `target` is the swept value, None for the default; `misses` is by SLO, in the order of `SLOS_S`."""

    target: float | None
    metrics: RequestMetrics
    misses: tuple[int, ...]


def sweep(task: Task, progress: Callable[[int, int], None]) -> list[Run]:
    """All runs of a task."""
    replay = task.replay
    if task.rule == HINDSIGHT:
        found = plans(replay)
        progress(1, 1)
        return [_run(replay, price, outcome) for price, outcome in zip(PRICES, found, strict=True)]
    runs = []
    targets = (None, *_SWEEP[task.rule])
    for done, target in enumerate(targets):
        outcome = replay.under(task.rule, {} if target is None else {"utilization": target})
        runs.append(_run(replay, target, outcome))
        progress(done + 1, len(targets))
    return runs


def _run(replay: RequestReplay, target: float | None, outcome: RequestOutcome) -> Run:
    counted = np.asarray(replay.arrival_s) >= replay.settings.warmup_s
    wait_s = np.asarray(outcome.wait_s)[counted]
    misses = tuple(int((wait_s > slo_s).sum()) for slo_s in SLOS_S)
    return Run(target, measure(outcome, replay.settings), misses)


@click.command()
@click.option("--traces", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-j", "--jobs", "workers", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
@click.option("--main-only", is_flag=True, help="Leave out what only shows how far the result carries.")
@click.option("--case", "only", multiple=True, help="Only cases of this name; may be repeated.")
@click.option("--oracle", is_flag=True, help="Add plans made in hindsight, and a lower bound at dilu's default cost.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Picture of the main cases.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    traces: Path,
    workers: int | None,
    main_only: bool,  # noqa: FBT001  click passes by name
    only: tuple[str, ...],
    oracle: bool,  # noqa: FBT001
    plot: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Measure the scaling rules on traces of requests."""
    chosen = [case for case in cases(traces) if case.is_main or not main_only]
    chosen = [case for case in chosen if not only or case.name in only]
    arms = (OURS, *_OTHERS, OURS + _FIFO, *([HINDSIGHT] if oracle else []))
    tasks = [Task(case, arm) for case in chosen for arm in arms]
    labels = [f"{task.case.trace} {task.case.name} {task.arm}" for task in tasks]
    with bars(labels) as report:
        done = run_all(sweep, tasks, workers or len(os.sched_getaffinity(0)), report)
    curves: dict[str, dict[str, list[Run]]] = {_label(case): {} for case in chosen}
    for task, runs in zip(tasks, done, strict=True):
        curves[_label(task.case)][task.arm] = runs
    if plot is not None:
        panels = {
            case.trace: {rule: _points(runs) for rule, runs in curves[_label(case)].items()}
            for case in chosen
            if case.is_main
        }
        draw(panels, plot)
    if as_json:
        results = [
            _result(case, curves[_label(case)]) | (_oracle(case, curves[_label(case)]) if oracle else {})
            for case in chosen
        ]
        head = json.dumps({"slo_s": SLO_S, "slos_s": SLOS_S, "attribution": _ATTRIBUTION})
        lines = ",\n".join(json.dumps(result) for result in results)
        print(f'{head[:-1]}, "cases": [\n{lines}\n]}}')
        return
    for case in chosen:
        print(_line(case, curves[_label(case)]))
        if oracle:
            print(json.dumps(_oracle(case, curves[_label(case)])))


def _label(case: Case) -> str:
    return f"{case.trace} {case.name}"


def _points(runs: Sequence[Run]) -> list[Point]:
    return [Point(run.target, run.metrics) for run in runs]


def _result(case: Case, curves: Mapping[str, Sequence[Run]]) -> dict[str, object]:
    settings = case.replay.settings
    return {
        "trace": case.trace,
        "case": case.name,
        "main": case.is_main,
        "requests": curves[OURS][0].metrics.requests,
        "concurrency": settings.concurrency,
        "start_s": settings.start.median_s,
        "start_sigma": settings.start.sigma,
        "initial": settings.initial_replicas,
        "capacity_rps": round(case.replay.capacity.requests_per_s, 4),
        "defaults": {arm: asdict(curves[arm][0].metrics) for arm in (OURS, *_OTHERS, OURS + _FIFO)},
        "default_against": {arm: _against(curves[OURS][:1], curves[arm][0], SLO_S) for arm in _OTHERS},
        "curve_against": {
            f"slo_{slo_s:g}_s": {arm: _along(curves[OURS], curves[arm], slo_s) for arm in _OTHERS} for slo_s in SLOS_S
        },
        "runs": {rule: [_point(run) for run in runs] for rule, runs in curves.items()},
    }


def _oracle(case: Case, curves: Mapping[str, Sequence[Run]]) -> dict[str, object]:
    """What plans made in hindsight reach at the costs of the other rules, and the bound at the least default cost."""
    cost = min(curves[rule][0].metrics.replica_seconds for rule in _THEIRS)
    against = {
        rule: [
            [row["utilization"], row["replica_seconds"], row["misses"], row["fewest"], row["holds"]]
            for row in (_against(curves[HINDSIGHT], run, SLO_S) for run in curves[rule])
        ]
        for rule in _OTHERS
    }
    bound = {"replica_seconds": round(cost), "misses_at_least": round(fewest_misses(case.replay, cost), 2)}
    return {"hindsight_against": against, "clairvoyant_bound": bound}


def _point(run: Run) -> list[object]:
    """Swept value, replica-seconds, and misses by SLO."""
    return [run.target, round(run.metrics.replica_seconds), *run.misses]


def _against(ours: Sequence[Run], theirs: Run, slo_s: float) -> dict[str, object]:
    """The fewest misses of ours at no more replica-seconds than one run of another rule."""
    at = SLOS_S.index(slo_s)
    within = [run for run in ours if run.metrics.replica_seconds <= theirs.metrics.replica_seconds]
    misses = min((run.misses[at] for run in within), default=None)
    return {
        "utilization": theirs.target,
        "replica_seconds": round(theirs.metrics.replica_seconds),
        "misses": theirs.misses[at],
        "fewest": misses,
        "holds": misses is not None and 2 * misses <= theirs.misses[at],
    }


def _along(ours: Sequence[Run], theirs: Sequence[Run], slo_s: float) -> dict[str, object]:
    rows = [_against(ours, run, slo_s) for run in theirs if run.target is not None]
    return {"points": len(rows), "holds": sum(bool(row["holds"]) for row in rows), "rows": rows}


def _line(case: Case, curves: Mapping[str, Sequence[Run]]) -> str:
    found = "  ".join(
        f"{rule} {runs[0].metrics.slo_misses:>5} at {runs[0].metrics.replica_seconds:>6.0f}"
        for rule, runs in curves.items()
        if rule != HINDSIGHT
    )
    along = "  ".join(f"{rule} {held}/{points}" for rule, (held, points) in _held(curves).items())
    return f"{case.trace:<17}{case.name:<16}{found}   half along the curve: {along}"


def _held(curves: Mapping[str, Sequence[Run]]) -> dict[str, tuple[int, int]]:
    rows = {rule: [_against(curves[OURS], run, SLO_S) for run in curves[rule][1:]] for rule in _OTHERS}
    return {rule: (sum(bool(row["holds"]) for row in found), len(found)) for rule, found in rows.items()}


if __name__ == "__main__":
    main()
