"""Traces of the Muri simulator (Zhao et al., "Multi-Resource Interleaving for Deep Learning Training", SIGCOMM 2022).

CSV; all times in milliseconds. Stage times are given per iteration: resource_time_0 is loading data (storage and CPU),
resource_time_1 computing on the GPU, resource_time_2 synchronising over the network.
"""

from __future__ import annotations

from pathlib import Path

from simulation.traces.formats.base import Format, trace_of
from simulation.traces.formats.cells import (
    LARGEST_ID,
    LONGEST_S,
    MOST_GPUS,
    MOST_ITERATIONS,
    SHORTEST_RUN_S,
    RowError,
    label,
    number,
    whole,
)
from simulation.traces.formats.table import Table, collect
from simulation.traces.trace import StageTimes, Trace, TraceJob

_STAGES = ("resource_time_0", "resource_time_1", "resource_time_2")
_REQUIRED = ("job_id", "num_gpu", "submit_time", "iterations", "iteration_time", *_STAGES)
_LONGEST_MS = LONGEST_S * 1000


def read(path: Path) -> Trace:
    """The jobs of a trace of the Muri simulator, in seconds as the file states them.

    `run_s` is iterations x iteration_time. The original multiplies iteration_time by 1.015 for every policy; that is
    one of its conventions, not part of the trace, and is not applied here. `declared_s` is the column `duration`, which
    may differ from `run_s` several times. Columns `batch_size` and `interval` are not used; `model_name`, `duration`
    and `priority` may be missing. Raises `TraceError` for a file of another kind.
    """
    return FORMAT.read(path)


def _parse(table: Table) -> Trace:
    job_id, gpus, submit, iterations, iteration, *stages = (table.position(name) for name in _REQUIRED)
    model, duration, priority = (table.index(name) for name in ("model_name", "duration", "priority"))

    def parse(line: int, fields: list[str]) -> TraceJob:
        count = number("iterations", fields[iterations], 1, MOST_ITERATIONS)
        run_s = count * number("iteration_time", fields[iteration], 1e-6, _LONGEST_MS) / 1000
        if not SHORTEST_RUN_S <= run_s <= LONGEST_S:
            raise RowError(
                f"iterations: x iteration_time is {run_s:g} s, accepted are {SHORTEST_RUN_S:g} to {LONGEST_S:,.0f} s"
            )
        return TraceJob(
            job_id=whole("job_id", fields[job_id], 0, LARGEST_ID),
            submit_s=number("submit_time", fields[submit], 0, _LONGEST_MS) / 1000,
            gpus=whole("num_gpu", fields[gpus], 1, MOST_GPUS),
            run_s=run_s,
            iterations=count,
            stages=StageTimes(
                *(number(name, fields[at], 0, _LONGEST_MS) / 1000 for name, at in zip(_STAGES, stages, strict=True))
            ),
            declared_s=None if duration is None else number("duration", fields[duration], 0, _LONGEST_MS) / 1000,
            model="" if model is None else label("model_name", fields[model]),
            priority=0 if priority is None else whole("priority", fields[priority], 0, 1),
            line=line,
        )

    return trace_of(*collect(table, parse), FORMAT.name)


FORMAT = Format("muri", _REQUIRED, _parse)
