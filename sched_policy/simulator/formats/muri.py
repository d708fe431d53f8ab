"""The CSV traces of Muri's simulator."""

from __future__ import annotations

import csv
from pathlib import Path

from sched_policy.simulator.trace import StageTimes, Trace, TraceJob


def read(path: Path) -> Trace:
    """The jobs of a Muri trace, times in seconds."""
    with path.open(newline="", encoding="utf-8") as lines:
        return Trace.of(_job(row) for row in csv.DictReader(lines))


def _job(row: dict[str, str]) -> TraceJob:
    iterations = float(row["iterations"])
    return TraceJob(
        job_id=int(row["job_id"]),
        submit_s=float(row["submit_time"]) / 1000,
        gpus=int(row["num_gpu"]),
        run_s=iterations * float(row["iteration_time"]) / 1000,
        iterations=iterations,
        stages=StageTimes(*(float(row[f"resource_time_{i}"]) / 1000 for i in range(3))),
        declared_s=float(row["duration"]) / 1000,
        model=row["model_name"],
        priority=int(row["priority"]),
    )
