"""Which waiting jobs a cycle of Slurm's backfill would start: in its own order, or once running jobs have left."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Sequence

from msgspec import Struct

from sched_policy.backfill import Backfill
from sched_policy.model import Job, JobState
from sched_policy.place import Consolidate
from sched_policy.profile import AvailabilityProfile
from sched_policy.snapshot import Nodes, Snapshot
from slurm_plugin.observation.observe import Observation

RESERVED = 20
"""Number of blocked jobs whose planned starts must not be delayed by backfilled ones."""

REPLAYED = 500
"""Number of pending jobs for which a backfill cycle is replayed: Slurm's default for `bf_max_job_test`."""


class OwnPlaces(Struct, frozen=True):
    """What a pass has seen: the first pending `jobs`, in the order of Slurm's own priorities, and who ran where.

    `nodes` know the names by which these jobs' partitions say what they need (`requirements.NodeSet`).
    """

    jobs: tuple[Job, ...] = ()
    running: frozenset[int] = frozenset()
    nodes: Nodes = Nodes(())


def on_own_places(snapshot: Snapshot) -> OwnPlaces:
    """The pending jobs of a pass, for `started_on_own_places` in the next one."""
    waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING and job.eligible and job.native_priority]
    first = heapq.nsmallest(REPLAYED, waiting, lambda job: (-job.native_priority, job.submit_s, job.job_id))
    return OwnPlaces(tuple(first), frozenset(job.job_id for job in snapshot.running), snapshot.nodes)


def started_on_own_places(seen: Observation, waited: OwnPlaces) -> frozenset[int]:
    """Which of the jobs that `waited` in the last pass Slurm would have started by now in its own order.

    Replays the backfill cycle: the GPUs of the jobs that have started since then are given out again in that order. Of
    an array as many tasks must start as have started.
    """
    snapshot, ids = seen.snapshot, {job.job_id for job in waited.jobs}
    began = {
        job.job_id: job.job_id if job.job_id in ids else seen.jobs[job.job_id].array_job_id
        for job in snapshot.running
        if job.job_id not in waited.running
    }
    left = [job for job in snapshot.running if began.get(job.job_id) not in ids]
    profile = AvailabilityProfile(Snapshot.of(snapshot.now_s, waited.nodes, left, absences=snapshot.absences))
    there = {job.job_id for job in snapshot.jobs}
    queue = [job for job in waited.jobs if job.job_id in there]
    booked = Backfill(RESERVED).schedule(profile, snapshot.now_s, queue, Consolidate())
    tasks = Counter(began.values())
    started = Counter(start.job_id for start in booked.starts)
    return frozenset(job_id for job_id, count in started.items() if count >= tasks[job_id])


def started_once_gone(snapshot: Snapshot, order: Sequence[int], going: Container[int]) -> frozenset[int]:
    """Which pending jobs Slurm would start if the running jobs `going` were gone.

    `order` are the first pending ones, at most `REPLAYED`, as Slurm would consider them.

    Backfill plans the starts of blocked jobs, so freed GPUs may have to be kept for a larger job ahead. Only the first
    `RESERVED` blocked jobs are planned here: each takes milliseconds on a large cluster, and few of the others want
    the same GPUs.
    """
    jobs = {job.job_id: job for job in snapshot.jobs}
    left = [job for job in snapshot.running if job.job_id not in going]
    profile = AvailabilityProfile(Snapshot.of(snapshot.now_s, snapshot.nodes, left, absences=snapshot.absences))
    queue = [jobs[job_id] for job_id in order if jobs[job_id].eligible]
    booked = Backfill(RESERVED).schedule(profile, snapshot.now_s, queue, Consolidate())
    return frozenset(start.job_id for start in booked.starts)
