"""What a trace must stand before it is replayed: it fits the cluster, and under `--strict` every row was used."""

from __future__ import annotations

from pathlib import Path

from simulation.traces.formats.base import first_reasons
from simulation.traces.trace import ClusterShape, Rejected, Trace, TraceError


def fit(trace: Trace, cluster: ClusterShape) -> Trace:
    """The trace without the jobs that ask for more GPUs than the cluster has; these join the rejected rows."""
    kept = [job for job in trace.jobs if job.gpus <= cluster.gpus]
    if len(kept) == len(trace.jobs):
        return trace
    too_large = (
        Rejected(
            job.line,
            f"gpus: job {job.job_id} asks for {job.gpus:,}, accepted are up to {cluster.gpus:,} "
            f"({cluster.nodes:,} nodes with {cluster.gpus_per_node:,} GPUs)",
        )
        for job in trace.jobs
        if job.gpus > cluster.gpus
    )
    rejected = sorted((*trace.rejected, *too_large), key=lambda row: row.line)
    return Trace.of(kept, rejected, trace.source_format)


def strict(trace: Trace, path: Path) -> Trace:
    """The trace itself. Raises `TraceError` naming the first rejected rows if there are any."""
    if trace.rejected:
        raise TraceError(f"{path}: {len(trace.rejected):,} rows cannot be used{first_reasons(trace.rejected)}")
    return trace
