"""Leases: short reservations that keep whole nodes for blocked jobs. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from sched_policy.plan import Plan, Reservation
from slurm_plugin.client.changes import (
    AttachReservation,
    Change,
    CreateReservation,
    DeleteReservation,
    ExtendReservation,
)
from slurm_plugin.client.records import ClusterRecords, SlurmJob, SlurmReservation
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.standing import (
    is_in_anothers_lease,
    lease_name,
    leased_job,
    may_be_next,
    may_keep_lease,
    waits_for_room,
)
from slurm_plugin.steering.slurm_order import turn

LEASE_MIN = 2
"""Length of a lease in minutes, whatever the job's: it only has to bridge the time around the planned start."""

RENEW_S = 60.0
"""A lease is extended when so little of it is left, so that it has begun, and its job still waits for its nodes."""

LEAD_S = 60.0
"""A lease starts at least this far ahead: Slurm refuses a start in the past."""

_USUAL_TIER = 1  # of a partition for which slurm.conf has no PriorityTier, or whose tier is not known


def lease_changes(
    plan: Plan, seen: Observation, slack_s: float, factors: Mapping[int, int] = MappingProxyType({})
) -> tuple[Change, ...]:
    """Create, renew and remove leases as the plan requires. `factors` are the pass's new site factors.

    Slurm reserves whole nodes, so only the plan's reservations of whole nodes become leases: a lease for a part of a
    node would keep others from the rest. For small jobs the order is enough, since Slurm's backfill plans their start.
    Only jobs whose reason in Slurm is that they wait for resources get one, for `lease_use.LONGEST_LEASE_S` in all. If
    Slurm respects a topology that is not known, gangs get none: it might not take their nodes.

    Slurm starts a job in a reservation before all others, on any node. So no job has a lease while another user's comes
    first (`_Queue`), nor gets one while its nodes are idle and the plan starts other jobs there. Slurm starts those
    some seconds later than planned, and none that would end within a lease: beside them it begins later by half of the
    slack.

    A lease is removed as soon as its job has started, ended or left the plan (Slurm deletes none that a running job
    is in, so that job is taken out first). It is replaced only if its start moved by more than the slack or its nodes
    changed, and it has stood for `lease_use.HOLD_S`; it is extended while its job, due by now, still waits for them.
    For as long after a lease is gone its job gets no other.

    Its owner may put other jobs into a lease, which Slurm then starts before all others, on any node: these are taken
    out, and the lease goes (`lease_use`).
    """
    now_s, queue = seen.snapshot.now_s, _Queue(seen, factors)
    wanted = {
        reservation.job_id: reservation
        for reservation in plan.reservations
        if (len(reservation.placement) == 1 or not seen.cluster.topology.fault) and _whole_nodes(reservation, seen)
        if _can_be_leased(seen, reservation.job_id) and not queue.is_behind_others(reservation.job_id)
    }
    there = {lease.name for lease in seen.cluster.reservations}
    intruders = (job for job in seen.jobs.values() if is_in_anothers_lease(job) and job.reservations & there)
    result: list[Change] = [AttachReservation(job.job_id, "") for job in intruders if job.state != "COMPLETING"]
    standing: dict[int, SlurmReservation] = {}
    for lease in seen.cluster.reservations:
        job_id = leased_job(lease.name)
        if job_id is None:
            continue
        reservation = wanted.get(job_id)
        stays = reservation is not None and _still_right(lease, reservation, now_s, slack_s)
        if stays or (_is_held(lease, job_id, seen) and not queue.is_behind_others(job_id)):
            standing[job_id] = lease
            if seen.jobs[job_id].reservation != lease.name:
                result.append(AttachReservation(job_id, lease.name))
            if lease.end_s - now_s < RENEW_S:
                result.append(ExtendReservation(lease.name, math.ceil(now_s + 60 * LEASE_MIN)))
            continue
        job = seen.jobs.get(job_id)
        if job is not None and lease.name in job.reservations:
            result.append(AttachReservation(job_id, ""))
        result.append(DeleteReservation(lease.name))
    for job_id, reservation in wanted.items():
        is_gone = job_id in seen.known.fresh_leases and lease_name(job_id) not in there
        is_too_soon = is_gone or job_id in seen.known.refused_leases
        if job_id not in standing and not is_too_soon and not _would_overtake(reservation, plan, seen):
            behind_s = slack_s / 2 if _starts_others(reservation, plan) else 0.0
            create = _create(reservation, seen.jobs[job_id], now_s, behind_s)
            if not any(_overlap(create, lease) for lease in standing.values()):  # Slurm would refuse it
                result += [create, AttachReservation(job_id, create.name)]
    leases = there | {change.name for change in result if isinstance(change, CreateReservation)}
    for job in seen.jobs.values():  # an expired lease leaves its name on the job
        orphaned = leased_job(job.reservation) is not None and job.reservation not in leases
        if orphaned and job.state == "PENDING":
            result.append(AttachReservation(job.job_id, ""))
    return tuple(result)


def _whole_nodes(reservation: Reservation, seen: Observation) -> bool:
    nodes = seen.snapshot.nodes
    return all(share.gpus == nodes.gpus[nodes.position[share.node]] for share in reservation.placement)


def _can_be_leased(seen: Observation, job_id: int) -> bool:
    """Whether the job waits for resources, and is in no reservation chosen by its owner."""
    job = seen.jobs[job_id]
    if job_id in seen.unmodelled or len(job.partitions) > 1:  # a lease is of one partition
        return False
    if job_id in seen.known.leased_in_vain or (job.reservation and leased_job(job.reservation) != job_id):
        return False
    has_one = any(lease.name == lease_name(job_id) for lease in seen.cluster.reservations)
    return waits_for_room(job) or (has_one and may_keep_lease(job))


class _Queue:
    """The pending jobs that Slurm may start, policies' and others, in its order once these site factors are written."""

    def __init__(self, seen: Observation, factors: Mapping[int, int]) -> None:
        self._seen = seen
        self._factors = factors
        self._maintenance = _Maintenance(seen)
        self._near_of: dict[str, Mapping[str, int]] = {}

    def is_behind_others(self, job_id: int) -> bool:
        """Whether another user's job comes before it that may start in its partitions, or in others with their nodes.

        Also one that needs another kind of node: the owner of a job may change at any time what kind that one needs.
        """
        own = self._seen.jobs[job_id]
        at = -self._tier(own.partition), turn(own, self._factors)
        return any(
            head.user != own.user and (-tier, turn(head, self._factors)) < at
            for name, tier in self._near(own.partition).items()
            for head in self._heads[name]
        )

    @cached_property
    def _waiting(self) -> list[SlurmJob]:
        now_s = self._seen.snapshot.now_s
        able = (job for job in self._seen.jobs.values() if may_be_next(job, now_s))
        waiting = (job for job in able if not self._maintenance.keeps_out(job))
        return sorted(waiting, key=lambda job: turn(job, self._factors))

    @cached_property
    def _heads(self) -> Mapping[str, Sequence[SlurmJob]]:
        return _heads(self._waiting)

    def _near(self, partition: str) -> Mapping[str, int]:
        """The partitions, or lists of them, in which jobs wait for its nodes, too, and the highest tier of these."""
        if partition not in self._near_of:
            usable = self._seen.snapshot.nodes.usable
            own = usable(partition)
            shared = {name: [p for p in name.split(",") if (own & usable(p)).any()] for name in self._heads}
            self._near_of[partition] = {name: max(map(self._tier, some)) for name, some in shared.items() if some}
        return self._near_of[partition]

    def _tier(self, partition: str) -> int:
        return self._seen.cluster.tiers.get(partition, _USUAL_TIER)


class _Maintenance:
    """From when on nodes are kept for maintenance. Other reservations may be of parts of their nodes."""

    def __init__(self, seen: Observation) -> None:
        self._now_s = seen.snapshot.now_s
        self._nodes = seen.snapshot.nodes
        self._from_s: defaultdict[str, float] = defaultdict(lambda: math.inf)
        self._of_partition: dict[str, list[float]] = {}
        for reservation in seen.cluster.reservations:
            if "MAINT" in reservation.flags and reservation.end_s > self._now_s:
                start_s = self._now_s if "TIME_FLOAT" in reservation.flags else reservation.start_s
                self._from_s |= {node: min(start_s, self._from_s[node]) for node in reservation.nodes}

    def keeps_out(self, job: SlurmJob) -> bool:
        """Whether too few nodes of its partitions are left for as long as the job may run, whatever else they do.

        Also of nodes that are down: they may be back in a moment.
        """
        if not self._from_s or job.reservation:
            return False
        if job.partition not in self._of_partition:
            own = (node.name for node in self._nodes if not node.partitions.isdisjoint(job.partitions))
            self._of_partition[job.partition] = sorted(self._from_s.get(name, math.inf) for name in own)
        from_s, shortest_s = self._of_partition[job.partition], job.least_limit_s or job.time_limit_s or math.inf
        return len(from_s) - bisect_left(from_s, self._now_s + shortest_s) < job.nodes


def _heads(jobs: Iterable[SlurmJob]) -> Mapping[str, Sequence[SlurmJob]]:
    """Of each partition, or list of them, the first of these jobs and the first of another user."""
    found: defaultdict[str, dict[str, SlurmJob]] = defaultdict(dict)
    for job in jobs:
        if len(found[job.partition]) < 2:
            found[job.partition].setdefault(job.user, job)
    return {partition: tuple(heads.values()) for partition, heads in found.items()}


def _would_overtake(reservation: Reservation, plan: Plan, seen: Observation) -> bool:
    """Whether the job could start on its nodes now, instead of others that the plan starts there."""
    nodes = {share.node for share in reservation.placement}
    held = (job.node_names for job in seen.jobs.values() if job.gpus or job.shards_per_node)
    return _starts_others(reservation, plan) and all(nodes.isdisjoint(names) for names in held)


def _starts_others(reservation: Reservation, plan: Plan) -> bool:
    """Whether the plan starts other jobs now on nodes that it keeps for this one."""
    nodes = {share.node for share in reservation.placement}
    return any(share.node in nodes for start in plan.starts for share in start.placement)


def _still_right(lease: SlurmReservation, reservation: Reservation, now_s: float, slack_s: float) -> bool:
    same_nodes = set(lease.nodes) == {share.node for share in reservation.placement}
    start_s = max(reservation.start_s, now_s)
    near = lease.start_s - slack_s <= start_s <= max(lease.end_s, lease.start_s + slack_s)
    return same_nodes and near and now_s < lease.end_s


def _is_held(lease: SlurmReservation, job_id: int, seen: Observation) -> bool:
    """Whether a lease that has not begun stays for now although the plan has changed."""
    is_ahead = lease.start_s > seen.snapshot.now_s
    return is_ahead and job_id in seen.known.fresh_leases and job_id in seen.jobs and _can_be_leased(seen, job_id)


def _create(reservation: Reservation, job: SlurmJob, now_s: float, behind_s: float) -> CreateReservation:
    nodes = tuple(sorted(share.node for share in reservation.placement))
    start_s = math.ceil(max(reservation.start_s + behind_s, now_s + LEAD_S))
    return CreateReservation(lease_name(job.job_id), start_s, LEASE_MIN, nodes, (job.user,), job.partition)


def _overlap(new: CreateReservation, lease: SlurmReservation) -> bool:
    in_time = new.start_s < lease.end_s and lease.start_s < new.start_s + 60 * new.duration_min
    return in_time and not set(new.nodes).isdisjoint(lease.nodes)


def without_leases(found: ClusterRecords) -> Iterator[AttachReservation | DeleteReservation]:
    """Remove all leases. Jobs are taken out first, because Slurm keeps a reservation that has a job."""
    for job in found.jobs:
        if any(leased_job(name) is not None for name in job.reservations):
            yield AttachReservation(job.job_id, "")
    for lease in found.reservations:
        if leased_job(lease.name) is not None:
            yield DeleteReservation(lease.name)
