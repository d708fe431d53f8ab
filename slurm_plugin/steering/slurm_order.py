"""In which order Slurm considers waiting jobs: as a plan wants it, and by the priorities that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from sched_policy.model import JobState
from sched_policy.plan import Plan
from sched_policy.queue_order import places, queue_order
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.observe import Observation
from slurm_plugin.steering.grouping import in_order
from slurm_plugin.steering.release import Releases


def wanted_order(plan: Plan, snapshot: Snapshot, releases: Releases) -> tuple[int, ...]:
    """Ids of the snapshot's jobs, best first, as Slurm should consider them: `queue_order`, released jobs first."""
    return queue_order(replace(plan, scores=in_order(plan, releases)), snapshot)


def on_places(ranked: Sequence[int], snapshot: Snapshot) -> tuple[int, ...]:
    """Ids of the pending jobs in the order in which Slurm will consider them: the wanted one, on the places of peers.

    `ranked` is the `wanted_order`.
    """
    row = {job.job_id: at for at, job in enumerate(snapshot.jobs)}
    wanted = [row[job_id] for job_id in ranked if job_id in row]
    waiting = [at for at in wanted if snapshot.jobs[at].state is JobState.PENDING]
    return tuple(snapshot.jobs[at].job_id for at in places(np.array(waiting, dtype=np.int64), snapshot).tolist())


def kept_paused(plan: Plan, seen: Observation) -> frozenset[int]:
    """Jobs whose start is delayed because their sweep keeps them paused. Those with a deadline might miss it."""
    opted_in = {job.job_id for job in seen.snapshot.jobs if job.allows_preemption}
    return frozenset(job_id for job_id in plan.rests & opted_in if seen.jobs[job_id].deadline_s is None)


def by_priority(seen: Observation, factors: Mapping[int, int]) -> tuple[int, ...]:
    """Ids of the pending jobs by the priorities that Slurm has for them once these site factors are written."""
    waiting = (seen.jobs[job.job_id] for job in seen.snapshot.jobs if job.state is JobState.PENDING)
    return tuple(job.job_id for job in sorted(waiting, key=lambda job: turn(job, factors)))


def turn(job: SlurmJob, factors: Mapping[int, int]) -> tuple[int, float, int]:
    """Sort key: the smaller, the earlier Slurm considers the pending job once these site factors are written."""
    is_written = job.job_id in factors and bool(job.natives)
    priority = job.priority_with(factors[job.job_id]) if is_written else job.priority
    return -priority, job.submit_s, job.job_id
