"""Compare how soon sweeps have their best model, see the package."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path

import click
import numpy as np
from msgspec import Struct
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.best_model import rivals, simulated
from benchmarks.best_model.arms import Finishing, NeverIdle, Oracle, Partitioned
from benchmarks.best_model.drawn import PLANNED, DrawnSweep, Task, draw, grouped, load
from benchmarks.best_model.simulated import Reached
from benchmarks.best_model.small_cluster import Arm, SmallCluster, geometric_mean
from sched_policy import catalog
from sched_policy.snapshot import Floats

GPUS = 8
TRAININGS = 64
SIDE_BY_SIDE = {"taskset": (1, 3), "algoperf": (1, 4)}
CHOOSING = frozenset(
    {
        "taskset_imdb_patch128_LSTM128_avg_bs64",
        "taskset_imdb_patch128_LSTM128_embed128_bs64",
        "taskset_imdb_patch32_GRU64_avg_bs128",
        "algoperf_criteo1tb_embed_init_jax",
        "algoperf_criteo1tb_pytorch",
        "algoperf_imagenet_resnet_jax",
        "algoperf_imagenet_vit_jax",
        "algoperf_librispeech_conformer_layernorm_pytorch",
        "algoperf_ogbg_model_size_jax",
        "algoperf_wmt_glu_tanh_pytorch",
    }
)
"""Tasks on which the method was chosen. The others, and only they, say what it is worth."""

Runner = Callable[[Sequence[DrawnSweep]], list[Reached]]


def _catalogued(name: str, **options: str) -> Runner:
    policy = catalog.build(name, catalog.PolicyOptions(**options))  # type: ignore[arg-type]
    return lambda drawn: simulated.run(policy, drawn, GPUS)


def _own_gpus(drawn: Sequence[DrawnSweep]) -> list[Reached]:
    """ASHA, each sweep on GPUs of its own, an equal part of them all."""
    policy = catalog.build("explsched", catalog.PolicyOptions(objective="best", sweep_strategy="asha"))
    found = []
    for k, sweep in enumerate(drawn):
        own = GPUS // len(drawn) + (k < GPUS % len(drawn))
        found += simulated.run(policy, [sweep], own)
    return found


def _sketched(make: Callable[[Sequence[DrawnSweep]], Arm]) -> Runner:
    def run(drawn: Sequence[DrawnSweep]) -> list[Reached]:
        results = SmallCluster(drawn, GPUS, to_the_best_only=True).run(make(drawn))
        return [
            Reached(r.task, r.reached_s, r.reached_gpu_s, sweep.work_s, r.end_s)
            for r, sweep in zip(results, drawn, strict=True)
        ]

    return run


def _rival(python: Path, scheduler: str) -> Runner:
    """A scheduler of Syne Tune; it knows one sweep, so each sweep has GPUs of its own."""

    def run(drawn: Sequence[DrawnSweep]) -> list[Reached]:
        own = [GPUS // len(drawn) + (k < GPUS % len(drawn)) for k in range(len(drawn))]
        return [rivals.run(python, scheduler, sweep, gpus) for sweep, gpus in zip(drawn, own, strict=True)]

    return run


ARMS: dict[str, Runner] = {
    "slurm": _catalogued("fifo"),
    "asha": _own_gpus,
    "never idle": _sketched(lambda _drawn: Partitioned(NeverIdle())),
    "and finishing": _sketched(lambda _drawn: Partitioned(Finishing())),
    "oracle": _sketched(Oracle),
    "explsched": _catalogued("explsched", objective="best"),
}
"""Those with a row in the catalogue run in the project's simulator; the three sketches in the small one."""


class Figures(Struct, frozen=True):
    """One arm, as geometric means over sweeps; never reached counts twice what Slurm alone needs for all trainings."""

    sweeps: int
    reached: float
    hours_to_best: float
    time_against_asha: float
    gpu_hours_against_asha: float
    time_against_slurm: float
    worst_against_slurm: float
    all_gpu_hours_against_slurm: float
    regret_area: float | None


def figures(
    arm: Sequence[Reached], slurm: Sequence[Reached], asha: Sequence[Reached], whole_s: Sequence[float]
) -> Figures:
    """The figures of one arm; `whole_s` is how long Slurm alone needs for all trainings of each sweep's run."""

    def charged(found: Sequence[Reached]) -> tuple[Floats, Floats]:
        times = [r.reached_s if math.isfinite(r.reached_s) else 2 * w for r, w in zip(found, whole_s, strict=True)]
        gpu_s = [
            r.reached_gpu_s if math.isfinite(r.reached_gpu_s) else 2 * s.all_gpu_s
            for r, s in zip(found, slurm, strict=True)
        ]
        return np.array(times), np.array(gpu_s)

    (time, gpu), (asha_time, asha_gpu), (slurm_time, _) = charged(arm), charged(asha), charged(slurm)
    areas = [r.regret_area for r in arm]
    spent = np.array([r.all_gpu_s for r in arm]) / np.array([r.all_gpu_s for r in slurm])
    return Figures(
        sweeps=len(arm),
        reached=round(float(np.mean([math.isfinite(r.reached_s) for r in arm])), 3),
        hours_to_best=round(geometric_mean(time) / 3600, 3),
        time_against_asha=round(geometric_mean(time / asha_time), 3),
        gpu_hours_against_asha=round(geometric_mean(gpu / asha_gpu), 3),
        time_against_slurm=round(geometric_mean(time / slurm_time), 3),
        worst_against_slurm=round(float(np.max(time / slurm_time)), 2),
        all_gpu_hours_against_slurm=round(geometric_mean(spent), 3),
        regret_area=None if None in areas else round(geometric_mean([area or 0.0 for area in areas]), 5),
    )


@click.command()
@click.option("--curves", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="Of .npz.")
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1, 100), help="Draws per task.")
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(min=0))
@click.option(
    "--arms", default=",".join(ARMS), show_default=True, help="Names, with commas; slurm and asha always run."
)
@click.option("--setting", "settings", multiple=True, help="family:sweeps, as taskset:3. Default: all four.")
@click.option(
    "--tasks", default="all", type=click.Choice(["all", "choosing", "others"]), help="Those used for choosing."
)
@click.option(
    "--planned",
    default="own",
    show_default=True,
    type=click.Choice(list(PLANNED)),
    help="How long policies think that AlgoPerf's trainings would run: until their own last reports, "
    "also where they diverged, or as the longest of their task.",
)
@click.option(
    "--rivals",
    "rivals_python",
    metavar="PYTHON",
    type=click.Path(path_type=Path),
    help=f"A Python with Syne Tune ({rivals.INSTALL}): then --arms takes {', '.join(rivals.NAMES)}, too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def main(
    curves: Path,
    seeds: int,
    first_seed: int,
    arms: str,
    settings: tuple[str, ...],
    tasks: str,
    planned: str,
    rivals_python: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Hours and GPU-hours until a report is within 1 % of the best that any training of the sweep ever reports."""
    found = [
        task for task in _loaded(curves, planned) if tasks == "all" or (task.name in CHOOSING) == (tasks == "choosing")
    ]
    sets = _sets(found, settings, range(first_seed, first_seed + seeds))
    named = list(dict.fromkeys(["slurm", "asha", *arms.split(",")]))
    runners = dict(ARMS)
    if rivals_python is not None:
        runners |= {name: _rival(rivals_python, name) for name in rivals.NAMES}
    unknown = [name for name in named if name not in runners]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)} (known: {', '.join(runners)})", param_hint="--arms")
    report: dict[str, object] = {
        "seeds": seeds,
        "first_seed": first_seed,
        "planned": planned,
        "tasks": [task.name for task in found],
    }
    try:
        if rivals_python is not None:
            _check_rivals(rivals_python, named, sets)
        with Progress(disable=as_json) as progress:
            for setting, drawn in sets.items():
                bar = progress.add_task(setting, total=len(drawn) * len(named))
                table = _measured(drawn, {name: runners[name] for name in named}, partial(progress.advance, bar))
                report[setting] = {
                    name: {field: getattr(one, field) for field in Figures.__struct_fields__}
                    for name, one in table.items()
                }
                if against := _against_rivals(table):
                    report[f"{setting}: regret area of explsched against"] = against
                if not as_json:
                    Console(width=140).print(_table(table, f"{setting}: {len(drawn)} runs on {GPUS} GPUs"))
    except rivals.RivalsError as error:
        raise click.ClickException(str(error)) from error
    finally:
        if report.keys() & sets.keys():  # what was measured before an error is told, too
            click.echo(json.dumps(report))


def _sets(found: Sequence[Task], settings: Sequence[str], seeds: Iterable[int]) -> dict[str, list[list[DrawnSweep]]]:
    """By setting, all sets of sweeps that run side by side. Told on stderr are usual settings without enough tasks.

    Raises `click.UsageError` for a setting that is named and has too few, and if none has enough.
    """
    sets: dict[str, list[list[DrawnSweep]]] = {}
    lacking = []
    for setting in settings or [f"{family}:{side}" for family, sides in SIDE_BY_SIDE.items() for side in sides]:
        family, _, side = setting.partition(":")
        if side not in map(str, range(1, GPUS + 1)):
            accepted = f"accepted: family:sweeps, with 1 to {GPUS} sweeps side by side, as taskset:3"
            raise click.BadParameter(f"found {setting!r}, {accepted}", param_hint="--setting")
        own = [task for task in found if task.family == family]
        if len(own) < int(side):
            lacking.append(f"{setting} has {len(own)} tasks")
            continue
        sets[setting] = [
            [draw(task, TRAININGS, seed) for task in group] for seed in seeds for group in grouped(own, int(side), seed)
        ]
    if lacking and (settings or not sets):
        raise click.UsageError(f"{', '.join(lacking)}; found: {', '.join(task.name for task in found) or 'no tasks'}")
    for what in lacking:
        click.echo(f"left out: {what}", err=True)
    return sets


def _check_rivals(python: Path, named: Sequence[str], sets: Mapping[str, Sequence[Sequence[DrawnSweep]]]) -> None:
    """Raises `RivalsError` before anything is measured."""
    rivals.check(python)
    for name, drawn in product(rivals.BY_MODEL.intersection(named), chain.from_iterable(sets.values())):
        for sweep in drawn:
            rivals.configurations(name, sweep)


def _measured(
    sets: Sequence[Sequence[DrawnSweep]], runners: Mapping[str, Runner], advance: Callable[[], None]
) -> dict[str, Figures]:
    """The figures of each arm over all sets; `advance` is called after each run."""
    results: dict[str, list[Reached]] = {name: [] for name in runners}
    whole_s: list[float] = []
    for drawn in sets:
        for name, run in runners.items():
            results[name] += run(drawn)
            advance()
        whole_s += [max(r.end_s for r in results["slurm"][-len(drawn) :])] * len(drawn)
    return {name: figures(found, results["slurm"], results["asha"], whole_s) for name, found in results.items()}


def _loaded(curves: Path, planned: str) -> list[Task]:
    """The tasks with trainings; told on stderr is what was left out."""
    found = load(curves)
    for task in found:
        if task.empty:
            click.echo(f"{task.name}: trainings left out because they never reported: {task.empty}", err=True)
    return [PLANNED[planned](task) for task in found if task.curves]


def _against_rivals(found: dict[str, Figures]) -> dict[str, float]:
    """Quotients of the regret areas, of explsched by each of Syne Tune's; at most 1 is as good or better."""
    ours = found["explsched"].regret_area if "explsched" in found else None
    theirs = {name: area for name in rivals.NAMES if name in found and (area := found[name].regret_area)}
    return {} if ours is None else {name: round(ours / area, 3) for name, area in theirs.items()}


def _table(found: dict[str, Figures], title: str) -> Table:
    fields = Figures.__struct_fields__
    table = Table("arm", *(field.replace("_", " ") for field in fields), title=title)
    for name, one in found.items():
        values = (getattr(one, field) for field in fields)
        table.add_row(name, *("-" if value is None else f"{value:g}" for value in values))
    return table


if __name__ == "__main__":
    main()
