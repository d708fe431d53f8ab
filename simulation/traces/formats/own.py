"""Our own trace format: CSV whose columns are named after the fields of `TraceJob`, units included.

Columns `job_id,submit_s,gpus,run_s` must be there. Each of the others may be missing or empty and then takes the
default of `TraceJob`. An unknown column is an error, so that a misspelt one is not silently ignored.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, TextIO

from explsched.atomic_file import replacing
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
    trace_of,
    whole,
)
from simulation.traces.trace import StageTimes, Trace, TraceError, TraceJob

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
        if path.exists() and not path.is_file():  # a pipe or terminal cannot be replaced
            with path.open("wb") as file:
                _write(trace.jobs, file)
            return
        with replacing(path) as file:
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
    return StageTimes(*(number(column, text, 0, LONGEST_S) for column, text in zip(_STAGES, texts, strict=True)))


FORMAT = Format("own", _REQUIRED, _parse)
