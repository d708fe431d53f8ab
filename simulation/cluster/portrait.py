"""A job of a simulation as policies see it."""

from __future__ import annotations

import math

from msgspec import Struct

from sched_policy.model import Elastic, Exploration, GpuRequest, Job, JobState, NodeGpus, StageProfile
from simulation.traces.learning import Learning
from simulation.traces.trace import TraceJob

_CONSENT = Exploration(checkpoint_signal="USR1", may_stop=True)


class Standing(Struct, frozen=True):
    """How far a job has come.

    Attributes:
        done_s: work done, in seconds of running alone.
        queued_s: when it last joined the queue.
        start_s: when it got the GPUs it holds, None while it waits.
        loaded_s: when its present run began to make progress.
        loaded_done_s: work that was done then.
        earlier_s: time it held GPUs in earlier runs.
        expected_s: what policies are told about its run time in all, None for nothing.
        preemptions: how often it was sent back to the queue.
        held: its GPUs.
        yielding: whether it saves its checkpoint to make room.
        gpus: the GPUs it holds, or asks for while it waits.

    """

    done_s: float
    queued_s: float
    start_s: float | None
    loaded_s: float
    loaded_done_s: float
    earlier_s: float
    expected_s: float | None
    preemptions: int
    held: tuple[NodeGpus, ...]
    yielding: bool
    gpus: int


def portrait(job: TraceJob, standing: Standing, gpus_per_node: int) -> Job:
    """The job at this moment."""
    learning = job.learning
    return Job(
        job_id=job.job_id,
        request=_request(standing.gpus, gpus_per_node),
        submit_s=job.submit_s,
        user=job.user,
        state=JobState.PENDING if standing.start_s is None else JobState.RUNNING,
        start_s=standing.start_s,
        first_report_s=_first_report_s(learning, standing) if learning and standing.start_s is not None else None,
        queued_s=standing.queued_s,
        time_limit_s=job.time_limit_s,
        expected_s=standing.expected_s,
        earlier_s=standing.earlier_s,
        allocation=standing.held,
        exploration=learning.exploration if learning else _CONSENT,
        total_steps=learning.epochs if learning else None,
        points=learning.points_until(standing.done_s, job.gpus) if learning else (),
        restarts=standing.preemptions,
        profile=_profile(job),
        guaranteed=job.priority == 0,
        yielding=standing.yielding,
        elastic=_elastic(job, gpus_per_node),
    )


def _elastic(job: TraceJob, gpus_per_node: int) -> Elastic | None:
    """On one node if the job is submitted so, else by whole nodes."""
    if job.least_gpus is None or job.most_gpus is None:
        return None
    if job.gpus <= gpus_per_node:
        return Elastic(job.least_gpus, min(job.most_gpus, gpus_per_node))
    least, most = -(-job.least_gpus // gpus_per_node), job.most_gpus // gpus_per_node
    return Elastic(least * gpus_per_node, most * gpus_per_node, gpus_per_node) if least < most else None


def _profile(job: TraceJob) -> StageProfile | None:
    if job.stages is None:
        return None
    return StageProfile(job.iteration_s, job.stages.io_s, job.stages.gpu_s, job.stages.net_s)


def _first_report_s(learning: Learning, standing: Standing) -> float | None:
    """When the job first reported in its present run: at once if it is new, else after the epoch it had begun."""
    began_s, epoch_s = standing.loaded_done_s, learning.epoch_s
    after_s = (math.floor(began_s / epoch_s + 1e-6) + 1) * epoch_s - began_s if began_s > 0 else 0.0
    return standing.loaded_s + after_s if standing.done_s >= began_s + after_s else None


def _request(gpus: int, gpus_per_node: int) -> GpuRequest:
    """A gang as users ask for it: on one node if it fits there, else whole nodes and a rest wherever it finds room."""
    if gpus <= gpus_per_node:
        return GpuRequest.on_each(1, gpus)
    if gpus % gpus_per_node == 0:
        return GpuRequest.on_each(gpus // gpus_per_node, gpus_per_node)
    return GpuRequest(gpus, nodes=-(-gpus // gpus_per_node))
