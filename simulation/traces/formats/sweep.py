"""Sweeps with learning curves and hyper-parameters, as `sexplsched sweep export` writes them: CSV, a training a line.

Columns `job_id,submit_s,gpus,run_s,sweep,curve` must be there; `user`, `metric`, `direction` (min, max) and `params`
may be missing or empty. `curve` has the reports, `step:seconds:value` separated by blanks: seconds are run time since
the start, all runs together. A curve that ends before `run_s` is of a training that was stopped or diverged: what it
would have reported is not known, and nothing is reported in a simulation either. `params` is a JSON object of names
to numbers, texts and truth values.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from sched_policy.model import Direction, Exploration, Parameter
from simulation.traces.formats.table import (
    LARGEST_ID,
    LONGEST_S,
    MOST_GPUS,
    SHORTEST_RUN_S,
    Format,
    RowError,
    Table,
    collect,
    label,
    number,
    shown,
    trace_of,
    whole,
)
from simulation.traces.trace import Trace, TraceJob

if TYPE_CHECKING:  # it loads numpy, which traces without curves do not need
    from simulation.traces.learning import Learning

REQUIRED = ("job_id", "submit_s", "gpus", "run_s", "sweep", "curve")
COLUMNS = (*REQUIRED, "user", "metric", "direction", "params")
_LARGEST = 1e300
_MOST_EPOCHS = 100_000
_Reports = list[tuple[float, float]]


def _parse(table: Table) -> Trace:
    job_id, submit_s, gpus, run_s, sweep, curve, user, metric, direction, params = (table.cell(c) for c in COLUMNS)

    def parse(line: int, row: list[str]) -> TraceJob:
        whole_s = number("run_s", run_s(row), SHORTEST_RUN_S, LONGEST_S)
        exploration = Exploration(
            sweep=label("sweep", sweep(row)),
            metric=label("metric", metric(row) or "loss"),
            direction=_direction(direction(row) or "min"),
            checkpoint_signal="USR1",
            may_stop=True,
            params=_params(params(row)),
        )
        return TraceJob(
            job_id=whole("job_id", job_id(row), 0, LARGEST_ID),
            submit_s=number("submit_s", submit_s(row), 0, LONGEST_S),
            gpus=whole("gpus", gpus(row), 1, MOST_GPUS),
            run_s=whole_s,
            user=label("user", user(row)),
            line=line,
            learning=_learning(_reports(curve(row)), whole_s, exploration),
        )

    jobs, rejected = collect(table, parse)
    return trace_of(_with_bests(jobs), rejected, FORMAT.name)


def _direction(text: str) -> Direction:
    try:
        return Direction(text)
    except ValueError as error:
        raise RowError(f"direction: found {shown(text)}, accepted: min, max") from error


def _params(text: str) -> tuple[tuple[str, Parameter], ...]:
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise RowError(f"params: found {shown(text)}, accepted: a JSON object ({error})") from error
    if not isinstance(found, dict) or not all(isinstance(v, int | float | str) for v in found.values()):
        raise RowError(f"params: found {shown(text)}, accepted: a JSON object of numbers, texts and truth values")
    return tuple(sorted((name, float(v) if type(v) is int else v) for name, v in found.items()))


def _reports(text: str) -> _Reports:
    """(seconds, value) of each report, in order."""
    found = []
    for word in text.split():
        parts = word.split(":")
        if len(parts) != 3:
            raise RowError(f"curve: found {shown(word)}, accepted: step:seconds:value")
        whole("curve", parts[0], 0, LARGEST_ID)
        found.append((number("curve", parts[1], 0, LONGEST_S), number("curve", parts[2], -_LARGEST, _LARGEST)))
    if len(found) < 2 or found[-1][0] <= 0 or any(later[0] < earlier[0] for earlier, later in pairwise(found)):
        raise RowError("curve: accepted: at least two reports, whose seconds do not fall")
    return found


def _learning(reports: _Reports, run_s: float, exploration: Exploration) -> Learning:
    """The curve at even intervals, as many as there were reports: each has the newest value by then.

    Lower is better in a simulation, so values that should rise are negated.
    """
    import numpy as np

    from simulation.traces.learning import Learning

    times_s = np.array([time_s for time_s, _ in reports])
    sign = 1.0 if exploration.direction is Direction.MIN else -1.0
    values = sign * np.array([value for _, value in reports])
    last_s = min(float(times_s[-1]), run_s)
    interval_s = last_s / int((times_s > 0).sum())
    epochs = min(_MOST_EPOCHS, max(1, round(run_s / interval_s)))
    epoch_s = run_s / epochs
    at_s = np.arange(math.floor(last_s / epoch_s * (1 + 1e-9)) + 1) * epoch_s
    newest = np.maximum(np.searchsorted(times_s, at_s * (1 + 1e-9), side="right") - 1, 0)
    told = Exploration(
        exploration.sweep, exploration.metric, Direction.MIN, "USR1", may_stop=True, params=exploration.params
    )
    return Learning(values[newest], epochs, epoch_s, float(values[newest].min()), told)


def _with_bests(jobs: list[TraceJob]) -> list[TraceJob]:
    """Each training with the best that any of its owner's sweep reached."""
    best: dict[tuple[str, str | None], float] = {}
    for job in jobs:
        if job.learning is not None:
            key = job.user, job.learning.exploration.sweep
            best[key] = min(best.get(key, math.inf), job.learning.best_of_sweep)
    return [
        replace(
            job,
            learning=None
            if job.learning is None
            else replace(job.learning, best_of_sweep=best[job.user, job.learning.exploration.sweep]),
        )
        for job in jobs
    ]


FORMAT = Format("sweep", REQUIRED, _parse)
