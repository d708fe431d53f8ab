"""How many tasks of an array its own limit (`sbatch -a 0-7%2`) keeps waiting. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.wait_reason import WaitReason
from slurm_plugin.observation.standing import may_start


def throttled(records: Sequence[SlurmJob], now_s: float) -> tuple[SlurmJob, ...]:
    """The jobs, with the tasks that may not start before others of their arrays have ended.

    Slurm gives the reason JobArrayTaskLimit only once no further task may start: until then an array of which one task
    may start looks as one of which all may. Tasks that wait beside their array's record, as requeued ones do, count
    for the same limit; those of higher priority come first, as for Slurm, and those that may not start yet last.
    """
    limits = {job.array_job_id: job.array_limit for job in records if job.array_limit}
    if not limits:
        return tuple(records)
    waiting: defaultdict[int, list[SlurmJob]] = defaultdict(list)
    running: Counter[int] = Counter()
    for job in records:
        if job.array_job_id is None or job.array_job_id not in limits:
            continue
        if job.state == "PENDING":
            waiting[job.array_job_id].append(job)
        elif job.state != "COMPLETING":
            running[job.array_job_id] += 1
    found: dict[int, int] = {}
    for array, jobs in waiting.items():
        room = max(0, limits[array] - running[array])
        for job in sorted(jobs, key=lambda job: (not _is_able(job, now_s), -job.priority, job.submit_s, job.job_id)):
            found[job.job_id] = max(0, job.array_tasks - room)
            room = max(0, room - job.array_tasks)
    return tuple(replace(job, throttled_tasks=found[job.job_id]) if found.get(job.job_id) else job for job in records)


def _is_able(job: SlurmJob, now_s: float) -> bool:
    """Whether only room keeps the job waiting, on GPUs or in its array."""
    return may_start(job, now_s) or job.waits_for is WaitReason.ARRAY_LIMIT
