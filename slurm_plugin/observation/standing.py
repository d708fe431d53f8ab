"""Whether Slurm would start a pending job if there were room, and with which jobs it may exchange places. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.wait_reason import MAY_BE_ROOM, ROOM, WaitReason
from slurm_plugin.observation.group_annotation import is_pinned

LEASE_PREFIX = "explsched_"
_LEASE_NAME = re.compile(rf"{LEASE_PREFIX}(\d+)")


def lease_name(job_id: int) -> str:
    """The name of Slurm's reservation for `job_id`."""
    return f"{LEASE_PREFIX}{job_id}"


def leased_job(name: str) -> int | None:
    """The job of a lease; None for a reservation that is not ours."""
    match = _LEASE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_in_anothers_lease(record: SlurmJob) -> bool:
    """Whether somebody has put the job into the lease of another one."""
    names = record.reservations if record.reservation else ()  # most jobs have none
    return any(leased_job(name) not in (None, record.job_id) for name in names)


SETTLE_S = 3.0
"""A requeued job may start this long after its new submission time. A node refuses a job whose credential is not newer
than the request to end its last run, and the job fails; both times are slurmctld's, in whole seconds. The request comes
before the new submission time, which may be a second ahead, so a start is safe from the second after that."""

REST_S = 600.0
"""A paused training is delayed by this time, repeatedly: without the daemon it may start after it at the latest."""


def waits_for_begin(record: SlurmJob, now_s: float) -> bool:
    """Whether the job's begin time is still to come; Slurm's reason says so only after Slurm has tested the job."""
    return record.state == "PENDING" and record.eligible_s is not None and record.eligible_s > now_s


def waits_for_requeue_delay(record: SlurmJob, now_s: float) -> bool:
    """Whether the job's begin time is Slurm's delay after a requeue, and not one that somebody has set since.

    Slurm adds the delay and a second to the time of the requeue, which is the new submission time or a second before.
    """
    if record.restarts == 0 or record.eligible_s is None or not waits_for_begin(record, now_s):
        return False
    return 0.0 <= record.eligible_s - record.submit_s - record.requeue_delay_s <= 1.0


def has_settled(record: SlurmJob, now_s: float) -> bool:
    """Whether every node would take a requeued job again."""
    return now_s >= record.submit_s + SETTLE_S


_DELAYED = MAY_BE_ROOM - {WaitReason.TIER} | {WaitReason.BEGIN}


def exceeds_limit(record: SlurmJob) -> bool:
    """Whether a pending job is kept from starting by a limit that it might keep at a smaller size."""
    return record.waits_for is WaitReason.SIZE_LIMIT


def limits_of(record: SlurmJob) -> tuple[str, str, str]:
    """Whose limits a job uses up together with its like: its user, account and QOS."""
    return record.user, record.account, record.qos


def waits_for_room(record: SlurmJob) -> bool:
    """Whether Slurm would start the job if its GPUs were free: only then others may be preempted for it.

    False with reason None, because Slurm has not tested the job yet, and for components of a heterogeneous job, of
    which one may have the right reason while another cannot start.
    """
    return record.het_job_id is None and record.waits_for in ROOM


def may_start(record: SlurmJob, now_s: float) -> bool:
    """Whether Slurm may start a pending job as soon as there is room: no other reason for waiting is known."""
    return record.waits_for in MAY_BE_ROOM and not waits_for_begin(record, now_s)


def may_be_next(record: SlurmJob, now_s: float) -> bool:
    """Whether Slurm may start a pending job as soon as there is room, and reservations let it."""
    return record.priority > 0 and (record.waits_for is WaitReason.RESERVED or may_start(record, now_s))


def may_be_first_of_tier(record: SlurmJob) -> bool:
    """Whether a pending job may come before all jobs of another partition, which Slurm compares by tiers first.

    The partition may be of a higher tier. Slurm says which job is next there, unless it has not tested it.
    """
    return record.waits_for in MAY_BE_ROOM - {WaitReason.PRIORITY}


def may_keep_lease(record: SlurmJob) -> bool:
    """Whether the job's lease may stay: it may be waiting for the lease to begin, or not have been tested since."""
    in_lease = record.reservation == lease_name(record.job_id)
    allowed = ROOM | {WaitReason.UNTESTED} | ({WaitReason.IN_RESERVATION} if in_lease else set())
    return record.het_job_id is None and record.waits_for in allowed


def may_be_planned(
    record: SlurmJob,
    now_s: float,
    *,
    allows_preemption: bool,
    only_leases: bool,
    returns_at_once: bool,
    own_begin_s: float | None = None,
) -> bool:
    """Whether a pending job belongs in the plan: Slurm may start it once there is room, as far as is known.

    Slurm's delay after a requeue is no obstacle if the daemon lifts it (`requeue_delay.returns_at_once`), for a job
    that allows preemption: so the GPUs of a job that returns in a few seconds are not given away, and its size is
    decided before it starts.

    Nor is a delay by the daemon, for which `own_begin_s` is known: the begin time that the job had before.

    `only_leases`: there are reservations, and all are leases. Then a reservation in a job's way is a lease, and the
    plan may give it to that job.
    """
    if record.het_job_id is not None:
        return False
    if waits_for_begin(record, now_s):
        is_lifted = returns_at_once if own_begin_s is None else own_begin_s <= now_s
        return allows_preemption and is_lifted and record.waits_for in _DELAYED
    if record.waits_for is WaitReason.NODES and is_pinned(record):
        return True  # the reason is a consequence of our pin
    if record.waits_for is WaitReason.TIER or (only_leases and record.waits_for is WaitReason.RESERVED):
        return True
    return may_keep_lease(record)


Scope = Literal["user", "account", "partition"]


class JobStanding(Struct, frozen=True):
    """A job's `scope`, `peers` and `native_priority`, as a policy's job has them."""

    scope: str = ""
    peers: str = ""
    native_priority: float = 0.0


def standing_of(record: SlurmJob, scope: Scope, base_factor: int) -> JobStanding:
    """The standing of a job; `base_factor` is its site factor without our order.

    In scope `partition` all jobs are peers without native priorities: the policy alone decides the order. A job for
    which Slurm shows no priority (held, or with a later begin time), whose priority an operator has set, whose
    --nice is larger than the rest of its priority, or which its array's limit lets not start now, has no peers.
    """
    if scope == "partition":
        return JobStanding()
    owner = record.user if scope == "user" else record.account
    if not record.natives or record.site_factor is None or record.is_cut_off(base_factor):
        return JobStanding(owner, f"job {record.job_id}", float(record.native_priority or 0))
    if record.is_throttled:
        return JobStanding(owner, f"job {record.job_id}", record.priority_with(base_factor))
    reservation = "" if leased_job(record.reservation) is not None else record.reservation
    alike = (record.account, record.partition, record.qos, reservation, str(record.nice))
    return JobStanding(owner, "\x1f".join(alike), record.priority_with(base_factor))


class FairShares:
    """The fair-share factor of each association (user and account), as sprio shows it for pending jobs.

    For an association without pending jobs it is unknown; preemption then stays within its scope.
    """

    def __init__(self, records: Iterable[SlurmJob]) -> None:
        waiting = (record for record in records if record.state == "PENDING" and record.fair_share is not None)
        self._by_association = {(record.user, record.account): record.fair_share for record in waiting}

    def of(self, record: SlurmJob) -> float | None:
        """The weighted factor of a pending or running job's association; None if unknown."""
        return self._by_association.get((record.user, record.account))


def lane(record: SlurmJob) -> str:
    """A key that is equal for jobs which, in Slurm's order, differ only in fair share, age and size."""
    return "\x1f".join((record.qos, record.reservation, str(record.nice)))


def last_wait_s(record: SlurmJob, now_s: float, own_begin_s: float | None = None) -> float:
    """How long a job has waited since it last came into the queue, until now or until it started.

    By slurmctld's own times, so that no report can change it. While a job may not start (held, begin time) it does not
    wait: time before its latest eligible time does not count. A delay by the daemon, for which `own_begin_s` is known
    (the begin time that the job had before), counts as waiting.
    """
    begin_s = record.eligible_s if own_begin_s is None else own_begin_s
    if begin_s is None:
        return 0.0
    until_s = now_s if record.state == "PENDING" or record.start_s is None else record.start_s
    return max(0.0, until_s - max(record.submit_s, begin_s))
