"""Public learning curves, and sweeps drawn from them.

TaskSet's trainings were all planned alike, and one that diverged ended before. Of AlgoPerf's no plan is known: each is
taken to have been planned until its own last report (`own`), as if those that diverged had announced it, or as long as
the longest of its task (`longest`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from zlib import crc32

import numpy as np

from sched_policy.model import Parameter
from sched_policy.snapshot import Floats

TASKSET_LENGTH_S = 3600.0
"""TaskSet counts reports, not seconds: a whole training takes an hour, its reports are equally spaced."""

TOLERANCE = 0.01
"""The best is reached with a report within this share of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """One recorded training.

    Attributes:
        times_s: run time at each report, seconds of training alone, shape (R,).
        values: what it reported, oriented so that lower is better, shape (R,).
        planned_s: run time that was planned; more than the last report's where the training ended early.
        params: its hyper-parameters, empty where the source does not tell.

    """

    times_s: Floats
    values: Floats
    planned_s: float
    params: Mapping[str, Parameter]

    @property
    def run_s(self) -> float:
        """Run time until it ends."""
        return float(self.times_s[-1])


@dataclass(frozen=True, slots=True)
class Task:
    """All recorded trainings of one task. `empty` is how many more there are that never reported."""

    name: str
    curves: tuple[Curve, ...]
    empty: int = 0

    @property
    def family(self) -> str:
        """The source, the part of the name before the first underscore."""
        return self.name.split("_", 1)[0]


@dataclass(frozen=True)
class DrawnSweep:
    """The trainings that make up one sweep."""

    task: str
    curves: tuple[Curve, ...]

    @cached_property
    def best(self) -> float:
        """The best value that any of them ever reports; diverged trainings may report what is not a number."""
        return float(np.nanmin(np.concatenate([curve.values for curve in self.curves])))

    @cached_property
    def good_enough(self) -> float:
        """The worst value that counts as the best."""
        return self.best + TOLERANCE * abs(self.best)

    @cached_property
    def work_s(self) -> float:
        """GPU-seconds of all trainings, run to their ends without interruption."""
        return sum(curve.run_s for curve in self.curves)


def load(folder: Path) -> tuple[Task, ...]:
    """All tasks of a folder of `.npz` files, in the order of their names."""
    return tuple(_task(path) for path in sorted(folder.glob("*.npz")))


def longest_planned(task: Task) -> Task:
    """The task with all its trainings planned as long as the longest."""
    longest_s = max(curve.planned_s for curve in task.curves)
    return replace(task, curves=tuple(replace(curve, planned_s=longest_s) for curve in task.curves))


PLANNED: Mapping[str, Callable[[Task], Task]] = {"own": lambda task: task, "longest": longest_planned}


def draw(task: Task, trainings: int, seed: int) -> DrawnSweep:
    """So many of the task's trainings, none twice, in random order; the same ones for the same seed everywhere."""
    rng = np.random.default_rng([seed, crc32(task.name.encode())])
    chosen = rng.permutation(len(task.curves))[:trainings]
    return DrawnSweep(task.name, tuple(task.curves[i] for i in chosen.tolist()))


def grouped(tasks: Sequence[Task], size: int, seed: int) -> list[tuple[Task, ...]]:
    """Groups of `size` tasks whose sweeps run side by side; the seed turns the list so that partners change."""
    turned = [tasks[(i + seed) % len(tasks)] for i in range(len(tasks))]
    return [tuple(turned[i : i + size]) for i in range(0, len(turned) - size + 1, size)]


def regret_area(reports: Sequence[tuple[float, float]], sweep: DrawnSweep) -> float:
    """Mean normalised regret over the GPU-seconds that all trainings need without interruption, 0 to 1.

    Regret is how far the best report so far is from the best of all, as a share of what the median training reports
    first; 1 before the first report. It stays what it is after the last.
    """
    first = float(np.nanmedian([curve.values[0] for curve in sweep.curves]))
    scale = max(first - sweep.best, 1e-12 * max(1.0, abs(sweep.best)))
    area, at_gpu_s, regret = 0.0, 0.0, 1.0
    for gpu_s, value in (*reports, (math.inf, math.inf)):
        until = min(gpu_s, sweep.work_s)
        area += regret * max(0.0, until - at_gpu_s)
        at_gpu_s = max(at_gpu_s, until)
        regret = min(regret, max(0.0, (value - sweep.best) / scale))
    return area / sweep.work_s


def _task(path: Path) -> Task:
    with np.load(path, allow_pickle=False) as file:
        stored = {name: file[name] for name in file.files}
    ends = np.cumsum(stored["length"])
    sign = 1.0 if bool(stored["lower"]) else -1.0
    values, cost = stored["value"].astype(np.float64), stored["cost"].astype(np.float64)
    names = [str(name) for name in stored["param_names"]] if "params" in stored else []
    is_counted = path.stem.startswith("taskset")
    reports = int(stored["length"].max())
    curves = []
    for row, (end, length) in enumerate(zip(ends.tolist(), stored["length"].tolist(), strict=True)):
        if not length:
            continue
        part = slice(end - length, end)
        params = dict(zip(names, stored["params"][row].tolist(), strict=True)) if names else {}
        times_s = (np.arange(length) + 1.0) * (TASKSET_LENGTH_S / reports) if is_counted else cost[part]
        planned_s = TASKSET_LENGTH_S if is_counted else float(times_s[-1])
        curves.append(Curve(times_s, sign * values[part], planned_s, params))
    return Task(path.stem, tuple(curves), len(ends) - len(curves))
