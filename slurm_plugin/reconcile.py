"""From a plan to the smallest set of changes in Slurm. Pure: looks at records, returns `Change` values."""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sched_policy.plan import Plan, Reservation
from slurm_plugin.client.protocol import (
    AttachReservation,
    Change,
    CreateReservation,
    DeleteReservation,
    SetSiteFactor,
    SlurmJob,
    SlurmReservation,
    StartAtOnce,
)
from slurm_plugin.grouping import group_changes, in_order
from slurm_plugin.observe import Observation, waits_for_begin
from slurm_plugin.release import releases

LEASE_PREFIX = "explsched_"
_LEASE_NAME = re.compile(rf"{LEASE_PREFIX}(\d+)")
LEASE_MIN = 2
"""Length of a lease in minutes, whatever the job's: it only has to bridge the time around the planned start."""

LEAD_S = 60.0
"""A lease starts at least this far ahead: Slurm refuses a start in the past."""


@dataclass(frozen=True, slots=True)
class SteeringLimits:
    """What an admin allows: the span of site factors, and how far a promised start may drift unmoved."""

    site_factor_range: int
    slack_s: float


def lease_name(job_id: int) -> str:
    """The name of the reservation that promises `job_id` its start."""
    return f"{LEASE_PREFIX}{job_id}"


def leased_job(name: str) -> int | None:
    """The job a lease is for; None for a reservation that is not ours."""
    match = _LEASE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def changes(plan: Plan, seen: Observation, limits: SteeringLimits) -> tuple[Change, ...]:
    """Order, leases and groups. Preemptions and stops take several passes: see `slurm_plugin.preemption`."""
    released = releases(plan, seen)
    ordered = replace(plan, scores=in_order(plan, released))
    return (
        *order_changes(ordered, seen, limits),
        *lease_changes(plan, seen, limits),
        *delay_changes(seen),
        *group_changes(plan, released, seen),
    )


def delay_changes(seen: Observation) -> tuple[StartAtOnce, ...]:
    """Lift the two minutes that Slurm makes a requeued job wait, for jobs that consented to be requeued.

    A job that has run before and waits for its begin time waits for nothing else: its own --begin is long past.
    """
    consenting = (job for job in seen.snapshot.jobs if job.may_yield)
    records = (seen.jobs[job.job_id] for job in consenting)
    now_s = seen.snapshot.now_s
    return tuple(StartAtOnce(r.job_id) for r in records if r.restarts > 0 and waits_for_begin(r, now_s))


def order_changes(plan: Plan, seen: Observation, limits: SteeringLimits) -> tuple[SetSiteFactor, ...]:
    """New site factors for the jobs whose place in the queue is wrong; the others keep theirs."""
    waiting = [seen.jobs[s.job_id] for s in plan.scores if seen.jobs[s.job_id].state == "PENDING"]
    current = [job.site_factor for job in waiting]
    wanted = relabel(current, limits.site_factor_range // 2)
    return tuple(
        SetSiteFactor(job.job_id, factor)
        for job, old, factor in zip(waiting, current, wanted, strict=True)
        if old != factor
    )


def relabel(current: Sequence[int | None], half_range: int) -> list[int]:
    """Strictly falling labels within +-`half_range` for items in falling order, changing as few as possible.

    The longest falling subsequence of the present labels stays; the rest is spread evenly between its neighbours.
    Where a gap has become too narrow everything is spread anew. More items than labels share the lowest one.
    """
    kept = _longest_falling([c if c is not None and -half_range < c < half_range else None for c in current])
    anchors = [(-1, half_range), *((i, c) for i in kept if (c := current[i]) is not None), (len(current), -half_range)]
    labels = [0] * len(current)
    for (left, high), (right, low) in itertools.pairwise(anchors):
        if right < len(current):
            labels[right] = low
        count = right - left - 1
        if count and high - low <= count:
            return _spread(len(current), half_range, -half_range)
        for offset, label in enumerate(_spread(count, high, low), start=left + 1):
            labels[offset] = label
    return labels


def _spread(count: int, high: int, low: int) -> list[int]:
    """`count` labels strictly between two bounds, falling, at equal distances."""
    return [max(low + 1, high - math.ceil((high - low) * (i + 1) / (count + 1))) for i in range(count)]


def _longest_falling(values: Sequence[int | None]) -> list[int]:
    """Indices of a longest strictly falling subsequence (patience sorting, O(n log n)); None never belongs."""
    tails: list[int] = []  # tails[k]: negated last value of the best subsequence of length k + 1
    tail_index: list[int] = []
    previous: dict[int, int | None] = {}
    for i, value in enumerate(values):
        if value is None:
            continue
        length = bisect.bisect_left(tails, -value)
        previous[i] = tail_index[length - 1] if length else None
        tails[length : length + 1] = [-value]
        tail_index[length : length + 1] = [i]
    chain: list[int] = []
    at = tail_index[-1] if tail_index else None
    while at is not None:
        chain.append(at)
        at = previous[at]
    return chain[::-1]


def lease_changes(plan: Plan, seen: Observation, limits: SteeringLimits) -> tuple[Change, ...]:
    """Create, renew and remove leases, so that those that exist are those the plan wants.

    Slurm reserves whole nodes, so only promises of whole nodes become leases: a lease for a part of a node would keep
    others from the rest. For small jobs the order is enough, Slurm's own backfill holds their place.

    A lease is removed as soon as its job has started, ended or lost its promise (Slurm deletes none that a running job
    is in, so that job is taken out first). It is replaced only if its start moved by more than the slack or its nodes
    changed.
    """
    now_s = seen.snapshot.now_s
    wanted = {r.job_id: r for r in plan.reservations if _whole_nodes(r, seen) and _can_be_leased(seen.jobs, r.job_id)}
    result: list[Change] = []
    standing: set[int] = set()
    for lease in seen.reservations:
        job_id = leased_job(lease.name)
        if job_id is None:
            continue
        promise = wanted.get(job_id)
        if promise is not None and _still_right(lease, promise, now_s, limits.slack_s):
            standing.add(job_id)
            if seen.jobs[job_id].reservation != lease.name:
                result.append(AttachReservation(job_id, lease.name))
            continue
        job = seen.jobs.get(job_id)
        if job is not None and job.reservation == lease.name:
            result.append(AttachReservation(job_id, ""))
        result.append(DeleteReservation(lease.name))
    for job_id, promise in wanted.items():
        if job_id not in standing:
            result.extend(_create(promise, seen.jobs[job_id], now_s))
    leases = {lease.name for lease in seen.reservations} | {lease_name(job_id) for job_id in wanted}
    for job in seen.jobs.values():  # a lease that ran out leaves its name on the job
        orphaned = leased_job(job.reservation) is not None and job.reservation not in leases
        if orphaned and job.state == "PENDING":
            result.append(AttachReservation(job.job_id, ""))
    return tuple(result)


def _whole_nodes(promise: Reservation, seen: Observation) -> bool:
    sizes = {node.name: node.gpus for node in seen.snapshot.nodes}
    return all(share.gpus == sizes[share.node] for share in promise.placement)


def _can_be_leased(jobs: Mapping[int, SlurmJob], job_id: int) -> bool:
    """A job that waits, and that its owner has not put into a reservation himself."""
    job = jobs[job_id]
    return job.state == "PENDING" and (not job.reservation or leased_job(job.reservation) == job_id)


def _still_right(lease: SlurmReservation, promise: Reservation, now_s: float, slack_s: float) -> bool:
    same_nodes = set(lease.nodes) == {share.node for share in promise.placement}
    start_s = max(promise.start_s, now_s)
    near = lease.start_s - slack_s <= start_s <= max(lease.end_s, lease.start_s + slack_s)
    return same_nodes and near and now_s < lease.end_s


def _create(promise: Reservation, job: SlurmJob, now_s: float) -> tuple[Change, ...]:
    name = lease_name(job.job_id)
    nodes = tuple(sorted(share.node for share in promise.placement))
    start_s = math.ceil(max(promise.start_s, now_s + LEAD_S))
    return (
        CreateReservation(name, start_s, LEASE_MIN, nodes, (job.user,), job.partition),
        AttachReservation(job.job_id, name),
    )
