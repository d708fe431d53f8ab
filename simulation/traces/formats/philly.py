"""The Philly trace of Microsoft as it is passed around among simulators: one CSV row per job.

Source of the data: Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads", USENIX
ATC 2019, github.com/msr-fiddle/philly-traces. Columns: timestamp (YYYY-MM-DD HH:MM:SS, no zone), duration (seconds),
num_gpus, gpu_time (duration x num_gpus), cluster (virtual cluster).
"""

from __future__ import annotations

from pathlib import Path

from simulation.traces.formats.base import Format, trace_of
from simulation.traces.formats.cells import LONGEST_S, MOST_GPUS, SHORTEST_RUN_S, date_time_s, label, number, whole
from simulation.traces.formats.table import Table, collect
from simulation.traces.trace import Trace, TraceJob

_REQUIRED = ("timestamp", "duration", "num_gpus", "cluster")


def read(path: Path) -> Trace:
    """The jobs of a Philly trace, in any order of rows.

    `submit_s` counts from the earliest job. The file has no job ids: `job_id` is the line. `queue` is the virtual
    cluster. Column `gpu_time` is not used. Raises `TraceError` for a file of another kind.
    """
    return FORMAT.read(path)


def _parse(table: Table) -> Trace:
    submitted, duration, gpus, cluster = (table.position(name) for name in _REQUIRED)

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
    return trace_of(jobs, rejected, FORMAT.name)


FORMAT = Format("philly", _REQUIRED, _parse)
