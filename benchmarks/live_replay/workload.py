"""What is submitted: the first jobs of a trace, with time compressed. Pure."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from simulation.traces.generate import WorkloadSpec
from simulation.traces.trace import ClusterShape, Trace, TraceJob

CLUSTER = ClusterShape(4, 8)
_MULTIPLES = WorkloadSpec(1, CLUSTER).limit_multiples


def compressed(trace: Trace, jobs: int, factor: float, seed: int) -> Trace:
    """The first `jobs` jobs with arrivals (from 0) and run times divided by `factor`, and with time limits.

    Slurm counts limits in whole minutes and compressed jobs last seconds, so one second of run time is declared as one
    minute: limits are 60 times as long as they would be, but say as much of a job as a user's would. A user asks for
    1.2 to 10 times the run time (the multiples of generated traces), rounded up to whole minutes.
    """
    draw = random.Random(seed)  # noqa: S311  no secret
    chosen = trace.jobs[:jobs]
    first_s = chosen[0].submit_s
    return Trace.of(
        replace(
            job,
            submit_s=(job.submit_s - first_s) / factor,
            run_s=job.run_s / factor,
            time_limit_s=60.0 * max(1, math.ceil(job.run_s / factor * draw.choice(_MULTIPLES))),
        )
        for job in chosen
    )


def sbatch_options(job: TraceJob) -> tuple[str, ...]:
    """How a user asks for the job's gang: on one node if it fits there, else on whole nodes."""
    nodes = -(-job.gpus // CLUSTER.gpus_per_node)
    if job.time_limit_s is None:
        raise ValueError(f"job {job.job_id} has no time limit")
    return (
        f"--nodes={nodes}",
        f"--gpus-per-node={-(-job.gpus // nodes)}",
        f"--time={round(job.time_limit_s / 60)}",
        f"--job-name=replay{job.job_id}",
    )
