"""Our own trace formats, CSV: jobs, and trainings of sweeps with learning curves and hyper-parameters.

*Jobs*. Columns are named after the fields of `TraceJob`, units included. `job_id,submit_s,gpus,run_s` must be there.
Each of the others may be missing or empty and then takes the default of `TraceJob`. An unknown column is an error, so
that a misspelt one is not silently ignored.

*Sweeps*, as `sexplsched sweep export` writes them: a training a line. Columns `job_id,submit_s,gpus,run_s,sweep,curve`
must be there; `user`, `metric`, `direction` (min, max) and `params` may be missing or empty. `curve` has the reports,
`step:seconds:value` separated by blanks: seconds are run time since the start, all runs together. A curve that ends
before `run_s` is of a training that was stopped or diverged: what it would have reported is not known, and nothing is
reported in a simulation either. Reports after `run_s` never come. `params` is a JSON object of names to numbers, texts
and truth values.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

import msgspec

from explsched.atomic_file import output
from sched_policy.model import Direction, Exploration, Parameter
from simulation.traces.formats.table import (
    LARGEST_ID,
    LONGEST_S,
    MOST_GPUS,
    MOST_ITERATIONS,
    SHORTEST_RUN_S,
    Format,
    RowError,
    Table,
    collect,
    label,
    number,
    shown,
    stage_times,
    trace_of,
    whole,
)
from simulation.traces.trace import StageTimes, Trace, TraceError, TraceJob

if TYPE_CHECKING:  # it loads numpy, which traces without curves do not need
    from simulation.traces.learning import Learning


_REQUIRED = ("job_id", "submit_s", "gpus", "run_s")
_SIZES = ("least_gpus", "most_gpus")
_STAGES = ("stage_io_s", "stage_gpu_s", "stage_net_s")
COLUMNS = (
    *_REQUIRED,
    "iterations",
    *_STAGES,
    "declared_s",
    "time_limit_s",
    "model",
    "user",
    "queue",
    "priority",
    *_SIZES,
)
"""All columns, in the order in which they are written. The three stage times make `TraceJob.stages`."""


def read(path: Path) -> Trace:
    """The jobs of a trace in our own format. Raises `TraceError` for a file of another kind or an unknown column."""
    return FORMAT.read(path)


def write(trace: Trace, path: Path) -> None:
    """Write the jobs of a trace in our own format; reading them back gives equal jobs.

    The file appears only when it is complete. Rejected rows are not written. Raises `TraceError` if the file cannot be
    written.
    """
    try:
        with output(path) as file:
            _write(trace.jobs, file)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _write(jobs: Iterable[TraceJob], file: BinaryIO) -> None:
    stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
    dump(jobs, stream)
    stream.detach()


def dump(jobs: Iterable[TraceJob], stream: TextIO) -> None:
    """Write jobs as CSV with a header, in the order given. Raises `TraceError` for names that cannot be read back."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for job in jobs:
        try:
            writer.writerow(_cells(job))
        except RowError as error:
            raise TraceError(f"job {job.job_id}: {error}") from error


def _cells(job: TraceJob) -> tuple[object, ...]:
    stages = job.stages
    return (
        job.job_id,
        job.submit_s,
        job.gpus,
        job.run_s,
        job.iterations or "",
        *(("", "", "") if stages is None else (stages.io_s, stages.gpu_s, stages.net_s)),
        job.declared_s,
        job.time_limit_s,
        label("model", job.model),
        label("user", job.user),
        label("queue", job.queue),
        job.priority or "",
        job.least_gpus,
        job.most_gpus,
    )


def _parse(table: Table) -> Trace:
    known = {column.casefold() for column in COLUMNS}
    for column in table.header:
        if column.casefold() not in known:
            near = get_close_matches(column, COLUMNS, n=1) or [", ".join(COLUMNS)]
            raise TraceError(f"{table.where}: unknown column {shown(column)}, the nearest known is {near[0]}")
    job_id, submit_s, gpus, run_s, iterations, *rest = (table.cell(column) for column in COLUMNS)
    io_s, gpu_s, net_s, declared_s, time_limit_s, model, user, queue, priority, least_gpus, most_gpus = rest

    def parse(line: int, row: list[str]) -> TraceJob:
        least, most = _sizes(gpus(row), least_gpus(row).strip(), most_gpus(row).strip())
        return TraceJob(
            job_id=whole("job_id", job_id(row), 0, LARGEST_ID),
            submit_s=number("submit_s", submit_s(row), 0, LONGEST_S),
            gpus=whole("gpus", gpus(row), 1, MOST_GPUS),
            run_s=number("run_s", run_s(row), SHORTEST_RUN_S, LONGEST_S),
            iterations=_optional("iterations", iterations(row), 0, MOST_ITERATIONS) or 0.0,
            stages=_stages((io_s(row), gpu_s(row), net_s(row))),
            declared_s=_optional("declared_s", declared_s(row), 0, LONGEST_S),
            time_limit_s=_optional("time_limit_s", time_limit_s(row), SHORTEST_RUN_S, LONGEST_S),
            model=label("model", model(row)),
            user=label("user", user(row)),
            queue=label("queue", queue(row)),
            priority=whole("priority", priority(row).strip() or "0", 0, 1),
            line=line,
            least_gpus=least,
            most_gpus=most,
        )

    return trace_of(*collect(table, parse), FORMAT.name)


def _optional(column: str, text: str, least: float, most: float) -> float | None:
    return number(column, text, least, most) if text.strip() else None


def _sizes(gpus: str, least: str, most: str) -> tuple[int | None, int | None]:
    """The sizes between which an elastic job can run; both or none are given, and the job asks for one between."""
    if not least and not most:
        return None, None
    if not (least and most):
        raise RowError("least_gpus, most_gpus: found one of them, accepted: both or none")
    asked = whole("gpus", gpus, 1, MOST_GPUS)
    return whole("least_gpus", least, 1, asked), whole("most_gpus", most, asked, MOST_GPUS)


def _stages(texts: tuple[str, str, str]) -> StageTimes | None:
    texts = (texts[0].strip(), texts[1].strip(), texts[2].strip())
    if not any(texts):
        return None
    if not all(texts):
        missing = ", ".join(column for column, text in zip(_STAGES, texts, strict=True) if not text)
        raise RowError(f"{missing}: found nothing, accepted: all three stage times or none")
    return stage_times(_STAGES, texts)


FORMAT = Format("own", _REQUIRED, _parse)


SWEEP_REQUIRED = ("job_id", "submit_s", "gpus", "run_s", "sweep", "curve")
SWEEP_COLUMNS = (*SWEEP_REQUIRED, "user", "metric", "direction", "params")
_LARGEST = 1e300
_Reports = list[tuple[int, float, float]]


def _parse_sweep(table: Table) -> Trace:
    job_id, submit_s, gpus, run_s, sweep, curve, user, metric, direction, params = (
        table.cell(c) for c in SWEEP_COLUMNS
    )

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
    return trace_of(_with_bests(jobs), rejected, SWEEP.name)


def _direction(text: str) -> Direction:
    try:
        return Direction(text)
    except ValueError as error:
        raise RowError(f"direction: found {shown(text)}, accepted: min, max") from error


def _params(text: str) -> tuple[tuple[str, Parameter], ...]:
    try:
        found = msgspec.json.decode(text or "{}", type=dict[str, Parameter])
    except msgspec.MsgspecError as error:
        accepted = "a JSON object of numbers, texts and truth values"
        raise RowError(f"params: found {shown(text)}, accepted: {accepted} ({error})") from error
    return tuple(sorted(found.items()))


def _reports(text: str) -> _Reports:
    """(step, seconds, value) of each report, in order."""
    found = []
    for word in text.split():
        parts = word.split(":")
        if len(parts) != 3:
            raise RowError(f"curve: found {shown(word)}, accepted: step:seconds:value")
        step = whole("curve", parts[0], 0, LARGEST_ID)
        found.append((step, number("curve", parts[1], 0, LONGEST_S), number("curve", parts[2], -_LARGEST, _LARGEST)))
    if len(found) < 2 or found[-1][1] <= 0 or any(later[1] < earlier[1] for earlier, later in pairwise(found)):
        raise RowError("curve: accepted: at least two reports, whose seconds do not fall")
    return found


def _learning(reports: _Reports, run_s: float, exploration: Exploration) -> Learning:
    """The reports until `run_s`. Lower is better in a simulation, so values that should rise are negated."""
    import numpy as np

    from simulation.traces.learning import Learning

    made = [report for report in reports if report[1] <= run_s * (1 + 1e-9)]
    if not made:
        raise RowError(f"curve: its first report is after {reports[0][1]:g} s, accepted: up to run_s, {run_s:g} s")
    steps, times_s, values = zip(*made, strict=True)
    told = msgspec.structs.replace(exploration, direction=Direction.MIN)
    losses = np.array(values) if exploration.direction is Direction.MIN else -np.array(values)
    total_steps = round(max(steps) * run_s / times_s[-1]) if max(steps) and times_s[-1] else None
    return Learning(losses, np.array(times_s), np.array(steps), total_steps, float(losses.min()), told)


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


SWEEP = Format("sweep", SWEEP_REQUIRED, _parse_sweep)
