"""In which order Slurm considers waiting jobs: as a plan wants it, and by the priorities that it has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from msgspec.structs import replace

from sched_policy.model import JobState
from sched_policy.plan import Plan
from sched_policy.queue_order import places, queue_order
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.standing import may_be_first_of_tier
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


class Turns:
    """In which order Slurm considers waiting jobs: by the tiers of their partitions, in one tier by their places.

    Any job of another partition may be first unless both jobs are sure to be considered by these. They are not if they
    are of different QOS and one may preempt the other: then Slurm considers that first.
    """

    def __init__(self, place: Mapping[int, int], cluster: ClusterRecords) -> None:
        """`place` has a job's place in the order of all priorities."""
        self._place = place
        self._tiers = cluster.tiers
        self._preempts_by_qos = cluster.preempts_by_qos
        self._known: dict[int, Sequence[int]] = {}

    def may_be_first(self, other: SlurmJob, job: SlurmJob) -> bool:
        """Whether Slurm may consider `other` before the job."""
        at, own_at = self._place.get(other.job_id, -1), self._place.get(job.job_id, 0)
        if other.partition == job.partition:
            return at < own_at
        theirs, own = self._tiers_beside(other, {job.qos}), self._tiers_of(job)
        return not theirs or not own or (-max(theirs), at) < (-min(own), own_at)

    def queue(self, jobs: Sequence[SlurmJob], own: Sequence[SlurmJob]) -> list[int]:
        """Ids of jobs, given by their places, as Slurm may consider them with `own`, which are of one partition."""
        partition, tiers, qos = own[0].partition, [self._tiers_of(job) for job in own], {job.qos for job in own}
        own_tier = min(tiers[0]) if all(tiers) else None

        def rank(job: SlurmJob) -> float:
            if job.partition == partition:
                return -(own_tier or 0)
            if own_tier is not None and (theirs := self._tiers_beside(job, qos)):
                return -max(theirs)
            return -math.inf if may_be_first_of_tier(job) else -(own_tier or 0)

        return [job.job_id for job in sorted(jobs, key=rank)]

    def _tiers_beside(self, job: SlurmJob, qos: AbstractSet[str]) -> Sequence[int]:
        """As `_tiers_of`; none, too, if its QOS may preempt one of these."""
        return () if self._preempts_by_qos and qos != {job.qos} else self._tiers_of(job)

    def _tiers_of(self, job: SlurmJob) -> Sequence[int]:
        """Those of its partitions; none where these are not known, or its place may not be the one that Slurm goes by.

        That is where Slurm shows no priority of it, or another one in each partition, and for jobs in reservations
        and components of heterogeneous jobs.
        """
        if job.job_id not in self._known:
            found = [self._tiers[name] for name in job.partitions if name in self._tiers]
            is_apart = bool(job.reservation) or job.het_job_id is not None or job.job_id not in self._place
            is_known = not is_apart and len(found) == len(job.partitions) and len(set(job.natives)) == 1
            self._known[job.job_id] = found if is_known else ()
        return self._known[job.job_id]
