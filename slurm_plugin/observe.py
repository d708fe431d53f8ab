"""Builds the policy's `Snapshot` from what Slurm and the progress spool tell."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from sched_policy.model import (
    GpuRequest,
    Job,
    JobState,
    Node,
    NodeGpus,
)
from sched_policy.snapshot import Snapshot
from slurm_plugin import job_options
from slurm_plugin.client.protocol import ClusterRecords, SlurmJob, SlurmNode, SlurmReservation
from slurm_plugin.log import event
from slurm_plugin.progress import JobProgress, ProgressSpool

_LOG = logging.getLogger("explsched.observe")
_STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,  # a suspended job keeps its GPUs
    "COMPLETING": JobState.COMPLETING,
    "CONFIGURING": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
}
_CANNOT_START = ("JobHeld", "Dependency", "JobArrayTaskLimit", "Invalid", "BadConstraints", "Assoc", "QOS")


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the cluster: the policy's view, and the records it was made from (by job id)."""

    snapshot: Snapshot
    jobs: Mapping[int, SlurmJob]
    reservations: tuple[SlurmReservation, ...]
    progress: Mapping[int, JobProgress]
    option_faults: Mapping[int, str]


def observe(
    seen: ClusterRecords,
    spool: ProgressSpool,
    now_s: float,
    partitions: Iterable[str] = (),
    yielding: Container[int] = (),
) -> Observation:
    """Make a policy's view of what Slurm has told, with the progress that jobs have reported until now.

    `yielding` are jobs that have been asked to make room. `partitions` limits which jobs are seen as ours to order;
    empty means all. Jobs of other partitions stay in the snapshot while they hold GPUs, because those GPUs are taken.
    """
    wanted = frozenset(partitions)
    records = {job.job_id: job for job in seen.jobs if job.state in _STATES}
    progress = spool.read({job.job_id: job.uid for job in records.values()}, now_s)
    faults: dict[int, str] = {}
    jobs = []
    for record in records.values():
        ours = not wanted or record.partition in wanted
        if ours or record.state != "PENDING":
            job = _job(record, progress.get(record.job_id, JobProgress()), _options(record, faults), now_s)
            jobs.append(replace(job, yielding=True) if record.job_id in yielding else job)
    snapshot = Snapshot.of(now_s, map(_node, seen.nodes), jobs)
    return Observation(snapshot, records, seen.reservations, progress, faults)


def _node(node: SlurmNode) -> Node:
    return Node(node.name, node.gpus, node.partitions, node.schedulable)


def _options(record: SlurmJob, faults: dict[int, str]) -> job_options.JobOptions | None:
    try:
        return job_options.parse(record.comment)
    except job_options.JobOptionError as error:
        faults[record.job_id] = str(error)
        event(_LOG, logging.WARNING, "job options ignored", job=record.job_id, why=str(error))
        return None


def waits_for_begin(record: SlurmJob, now_s: float) -> bool:
    """Whether the job waits for its begin time. Slurm gives that as the reason only once it has looked at the job."""
    return record.state == "PENDING" and record.eligible_s is not None and record.eligible_s > now_s


def _job(record: SlurmJob, progress: JobProgress, options: job_options.JobOptions | None, now_s: float) -> Job:
    state = _STATES[record.state]
    earlier = [run for run in progress.runs if state is JobState.PENDING or run.restart < record.restarts]
    exploration = options.exploration if options else None
    return Job(
        job_id=record.job_id,
        request=GpuRequest(record.gpus, record.nodes, record.gpus_per_node),
        submit_s=record.submit_s,
        name=record.name,
        user=record.user,
        partition=record.partition,
        state=state,
        eligible=not record.reason.startswith(_CANNOT_START) and not waits_for_begin(record, now_s),
        start_s=None if state is JobState.PENDING else record.start_s,
        first_report_s=next((r.time_s for r in progress.reports if r.restart == record.restarts), None),
        queued_s=earlier[-1].end_s if earlier else None,
        time_limit_s=record.time_limit_s,
        allocation=tuple(NodeGpus(node, share) for node, share in record.gpu_nodes),
        earlier_s=sum(run.end_s - run.start_s for run in earlier),
        exploration=exploration,
        total_steps=progress.total_steps,
        points=() if exploration is None else progress.points(exploration.metric, max(record.gpus, 1)),
        restarts=record.restarts,
        array_tasks=record.array_tasks,
        guaranteed=options is None or options.guaranteed,
    )
