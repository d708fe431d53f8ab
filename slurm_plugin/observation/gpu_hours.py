"""GPUs and GPU-hours of jobs as all commands, the page and the metrics tell them. Pure.

A job has its GPUs from start to end, also while it is suspended, since nobody else can have them; sreport counts them
so, too. A job on shards has the parts of GPUs that its shards are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the commands that read a published state go without the policies
    from sched_policy.model import Job
    from slurm_plugin.observation.progress import Run


def gpus_of(job: Job) -> int:
    """How many GPUs a job is on, which may be more than it asked for, or asks for while it waits."""
    return sum(share.gpus for share in job.allocation) or job.request.total


def held_gpus(job: Job) -> float:
    """The same, of a job on shards the parts of GPUs."""
    return gpus_of(job) * (job.part.memory if job.part else 1.0)


def gpu_hours(job: Job, runs: Iterable[Run], sizes: Mapping[int, int], now_s: float) -> float:
    """GPU-hours of all runs of a job that waits or runs.

    Of former runs only their reports tell how long they were, and `sizes`, by run, how many GPUs they asked for if not
    as many as now.
    """
    held, asked = held_gpus(job), job.request.total
    if not asked:
        return 0.0
    former = (run for run in runs if job.start_s is None or run.restart < job.restarts)
    former_gpu_s = sum(sizes.get(run.restart, asked) / asked * held * (run.end_s - run.start_s) for run in former)
    return (held * (0.0 if job.start_s is None else max(0.0, now_s - job.start_s)) + former_gpu_s) / 3600


def whole_s(total_steps: int | None, steps: Iterable[int], run_s: float) -> float | None:
    """Run time to its last step of a training that has taken `run_s` for its `steps`; None if they do not tell.

    By the furthest step, as the last run may have begun anew.
    """
    furthest = max(steps, default=0)
    return total_steps * run_s / furthest if total_steps and furthest else None


def saved_gpu_hours(gpus: float, run_s: float, whole_s: float | None, usual_s: float) -> float:
    """What a stopped training would still have used, if it had gone on to its last step, else for the usual time."""
    return gpus * max(0.0, (usual_s if whole_s is None else whole_s) - run_s) / 3600
