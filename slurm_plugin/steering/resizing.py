"""From the sizes a plan wants elastic jobs to have to changes of their requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from sched_policy.plan import Plan, Resize
from slurm_plugin.client.changes import Change, ChangeFailure, SetGres, SetNodeCount
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.observe import Observation


def resize_changes(plan: Plan, seen: Observation) -> tuple[SetNodeCount | SetGres, ...]:
    """New sizes for jobs that wait. A running one is preempted first, and gets its size when it waits."""
    return tuple(
        change
        for resize in plan.resizes
        if (record := seen.jobs[resize.job_id]).state == "PENDING"
        for change in _resized(record, resize)
    )


def restored(failures: Iterable[ChangeFailure], jobs: Mapping[int, SlurmJob]) -> tuple[Change, ...]:
    """The old counts of jobs whose new ones were refused: Slurm 22.05 applies a part of an update that it refuses.

    With the CPUs of one size and the nodes of another a job might never start.
    """
    refused = {failure.change.job_id for failure in failures if isinstance(failure.change, SetNodeCount)}
    records = (jobs[job_id] for job_id in sorted(refused & jobs.keys()))
    return tuple(SetNodeCount(job.job_id, job.nodes, job.tasks, job.cpus) for job in records)


def _resized(record: SlurmJob, resize: Resize) -> Iterator[SetNodeCount | SetGres]:
    request = resize.request
    if request.nodes != record.nodes:
        tasks, cpus = (max(1, count // record.nodes) * request.nodes for count in (record.tasks, record.cpus))
        yield SetNodeCount(record.job_id, request.nodes, tasks, cpus)
    if request.per_node is not None and request.per_node != record.gpus_per_node:
        yield SetGres(record.job_id, _with_gpus(record.gres_per_node, request.per_node))


def _with_gpus(gres: str, gpus: int) -> str:
    """The same resources with another number of GPUs, of the same type: `gpu:a100:2,nvme:1` -> `gpu:a100:4,nvme:1`."""
    parts = [re.sub(r"^(gpu(?::[A-Za-z_][^:]*)?)(?::\d+)?$", rf"\g<1>:{gpus}", part) for part in gres.split(",")]
    return ",".join(parts)
