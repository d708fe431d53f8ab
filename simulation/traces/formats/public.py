"""Traces that others have published: those of the Muri simulator, and Microsoft's Philly trace."""

from __future__ import annotations

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
    date_time_s,
    label,
    number,
    stage_times,
    trace_of,
    whole,
)
from simulation.traces.trace import Trace, TraceJob

_MURI_STAGES = ("resource_time_0", "resource_time_1", "resource_time_2")
_MURI_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "iteration_time", *_MURI_STAGES)
_LONGEST_MS = LONGEST_S * 1000


def _parse_muri(table: Table) -> Trace:
    job_id, gpus, submit, iterations, iteration, *stages = (table.position(name) for name in _MURI_COLUMNS)
    model, duration, priority = (table.index(name) for name in ("model_name", "duration", "priority"))

    def parse(line: int, fields: list[str]) -> TraceJob:
        count = number("iterations", fields[iterations], 1, MOST_ITERATIONS)
        run_s = count * number("iteration_time", fields[iteration], 1e-6, _LONGEST_MS) / 1000
        if not SHORTEST_RUN_S <= run_s <= LONGEST_S:
            raise RowError(
                f"iterations: x iteration_time is {run_s:g} s, accepted: {SHORTEST_RUN_S:g} to {LONGEST_S:,.0f} s"
            )
        return TraceJob(
            job_id=whole("job_id", fields[job_id], 0, LARGEST_ID),
            submit_s=number("submit_time", fields[submit], 0, _LONGEST_MS) / 1000,
            gpus=whole("num_gpu", fields[gpus], 1, MOST_GPUS),
            run_s=run_s,
            iterations=count,
            stages=stage_times(_MURI_STAGES, [fields[at] for at in stages], 1000),
            declared_s=None if duration is None else number("duration", fields[duration], 0, _LONGEST_MS) / 1000,
            model="" if model is None else label("model_name", fields[model]),
            priority=0 if priority is None else whole("priority", fields[priority], 0, 1),
            line=line,
        )

    return trace_of(*collect(table, parse), "muri")


MURI = Format("muri", _MURI_COLUMNS, _parse_muri)
"""Traces of the Muri simulator (Zhao et al., SIGCOMM 2022): CSV, all times in milliseconds.

Stage times are given per iteration: resource_time_0 is loading data (storage and CPU), resource_time_1 computing on the
GPU, resource_time_2 synchronising over the network. `run_s` is iterations x iteration_time. The original multiplies
iteration_time by 1.015 for every policy; that is one of its conventions, not part of the trace: it is not applied here.
`declared_s` is the column `duration`, which may differ from `run_s` several times. Columns `batch_size` and `interval`
are not used; `model_name`, `duration` and `priority` may be missing.
"""


_PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")


def _parse_philly(table: Table) -> Trace:
    submitted, duration, gpus, cluster = (table.position(name) for name in _PHILLY_COLUMNS)

    def parse(line: int, fields: list[str]) -> tuple[int, float, int, float, str]:
        return (
            line,
            date_time_s("timestamp", fields[submitted]),
            whole("num_gpus", fields[gpus], 1, MOST_GPUS),
            number("duration", fields[duration], SHORTEST_RUN_S, LONGEST_S),
            label("cluster", fields[cluster]),
        )

    rows, rejected = collect(table, parse)
    first_s = min((row[1] for row in rows), default=0.0)
    jobs = (
        TraceJob(line, time_s - first_s, count, run_s, queue=queue, line=line)
        for line, time_s, count, run_s, queue in rows
    )
    return trace_of(jobs, rejected, "philly")


PHILLY = Format("philly", _PHILLY_COLUMNS, _parse_philly)
"""The Philly trace of Microsoft as simulators pass it around: one CSV row per job, in any order.

Source of the data: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX
ATC 2019, github.com/msr-fiddle/philly-traces. Columns: timestamp (YYYY-MM-DD HH:MM:SS, no zone), duration (seconds),
num_gpus, cluster (virtual cluster); gpu_time is not used. `submit_s` counts from the earliest job. The file has no job
ids: `job_id` is the line. `queue` is the virtual cluster.
"""
