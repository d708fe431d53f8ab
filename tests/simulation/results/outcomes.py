"""Small outcomes made by hand."""

from __future__ import annotations

from typing import Any

from simulation.results.outcome import JobRecord, TraceOutcome, Usage
from simulation.traces.trace import ClusterShape


def record(job_id: int, submit_s: float, start_s: float, end_s: float, gpus: int = 1, **fields: Any) -> JobRecord:
    """A job that ran alone from start to end without overheads."""
    ran = {"run_s": end_s - start_s, "held_s": end_s - start_s}
    return JobRecord(job_id, submit_s, start_s, end_s, gpus, **{**ran, **fields})


def outcome(*jobs: JobRecord, usage: tuple[Usage, ...] = (), nodes: int = 2, gpus: int = 2) -> TraceOutcome:
    return TraceOutcome("srsf", ClusterShape(nodes, gpus), jobs, usage, events=2 * len(jobs))


def worked_example(policy: str = "srsf") -> TraceOutcome:
    """Two nodes of two GPUs: job 1 on one node, job 3 beside it on the other, and job 2 on both when they have left."""
    jobs = (record(1, 0, 0, 100, 2), record(2, 0, 100, 200, 4), record(3, 50, 50, 100, 1))
    usage = (Usage(0, 2, 2, 1, 1), Usage(50, 3, 0, 2, 1), Usage(100, 4, 0, 1, 0), Usage(200, 0, 4, 0, 0))
    return TraceOutcome(policy, ClusterShape(2, 2), jobs, usage, events=5)
