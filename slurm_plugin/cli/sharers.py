"""Who shares a GPU with whom, in words: for `status` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sched_policy.model import Job
from slurm_plugin.group_log import device_name
from slurm_plugin.group_mark import Mark
from slurm_plugin.grouping import LiveGroup, live_groups
from slurm_plugin.observe import Observation


def device(seen: Observation, job_id: int) -> str:
    """The GPUs that the job holds, as in `n1:0`; empty where Slurm has not been asked or does not tell."""
    return device_name(seen.jobs[job_id].gpu_indices)


def beside(seen: Observation, job_id: int) -> tuple[int, ...]:
    """The other jobs on the job's GPUs."""
    held = {(node, index) for node, indices in seen.jobs[job_id].gpu_indices for index in indices}
    return tuple(
        job.job_id
        for job in seen.jobs.values()
        if job.job_id != job_id
        and not held.isdisjoint((node, index) for node, indices in job.gpu_indices for index in indices)
    )


def group_of(seen: Observation, job_id: int) -> LiveGroup | None:
    """The planned group that the job belongs to."""
    return next((group for group in live_groups(seen.jobs.values()) if job_id in group.job_ids), None)


def state(group: LiveGroup) -> str:
    """How far the group is."""
    if not group.is_complete:
        return "dissolves: one of its jobs has ended"
    if group.verified is False:
        return "apart: Slurm chose different GPUs"
    if group.waiting:
        return "waits for GPUs" if not group.running else f"waits for {_list(group.waiting)}"
    return "verified" if group.verified else "starts"


def summary(seen: Observation, job_id: int) -> str:
    """One phrase for a table; empty for a job that shares nothing."""
    others = beside(seen, job_id)
    group = group_of(seen, job_id)
    if group is not None:
        with_whom = _list(other for other in group.job_ids if other != job_id)
        return f"group {group.number}{f' with {with_whom}' if with_whom else ''}: {state(group)}"
    return f"shares its GPU with {_list(others)}" if others else ""


def sentences(seen: Observation, job: Job) -> Iterator[str]:
    """What there is to explain."""
    others, held = beside(seen, job.job_id), device(seen, job.job_id)
    mark = Mark.of(seen.jobs[job.job_id].admin_comment)
    group = group_of(seen, job.job_id)
    if held:
        yield f"It holds GPU {held}{f', together with {_list(others)}' if others else ''}."
    elif job.may_share and seen.jobs[job.job_id].shards_per_node:
        yield "It asks for a part of a GPU, so others may run beside it."
    if group is not None:
        yield f"It is one of the {group.size} jobs of group {group.number} ({_list(group.job_ids)}): {state(group)}."
    if mark.pause_s > seen.snapshot.now_s:
        yield "It did not start where it was meant to: it is left to Slurm for some minutes."
    elif mark.node and seen.jobs[job.job_id].state == "PENDING":
        yield f"It is pinned to node {mark.node}, where it fits now; it is let go if it does not start at once."


def _list(job_ids: Iterable[int]) -> str:
    return ", ".join(map(str, job_ids))
