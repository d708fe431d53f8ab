"""How much longer a job will run, from what is known about it."""

from __future__ import annotations

from sched_policy.model import Job


def remaining_s(job: Job, now_s: float) -> float:
    """Expected seconds of run time left; infinity when nothing tells.

    A job that reports its steps and their total is extrapolated from its own rate; any other is taken at its
    time limit, of which the current run is used up.
    """
    if job.total_steps and job.points and job.points[-1].step > 0:
        last = job.points[-1]
        per_step_gpu_s = last.gpu_s / last.step
        return max(0.0, job.total_steps - last.step) * per_step_gpu_s / max(job.request.total, 1)
    if job.time_limit_s is None:
        return float("inf")
    elapsed_s = 0.0 if job.start_s is None else now_s - job.start_s
    return max(0.0, job.time_limit_s - elapsed_s)
