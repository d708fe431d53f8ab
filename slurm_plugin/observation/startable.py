"""Whether Slurm would start a waiting job if there were room, as far as its record tells. Pure.

Slurm's reasons are a whitelist here: there are a hundred of them, and new releases bring more. For a job that waits for
anything but room (a limit, a licence, maintenance, nodes that are down) GPUs would be freed or kept free in vain. A job
that was requeued waits two minutes more, by Slurm's own delay, which can be cut short.
"""

from __future__ import annotations

from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.leases import lease_name

SETTLE_S = 3.0
"""A requeued job may start so long after Slurm has dated it anew. A node refuses a job whose credential is not younger
than the request to end its last run, and that job counts as failed; both times are slurmctld's, in whole seconds. The
request comes before the new date, which may be a second ahead: so from the second after that on a start is safe."""

LONGEST_S = 1201.0
"""Slurm's delay is the life of a credential (AuthInfo=cred_expire: two minutes, unless the site has set it) and a
second. A job whose begin time is further from its requeue has been put off by somebody, and is left alone."""


def waits_for_begin(record: SlurmJob, now_s: float) -> bool:
    """Whether the job waits for its begin time. Slurm gives that as the reason only once it has looked at the job."""
    return record.state == "PENDING" and record.eligible_s is not None and record.eligible_s > now_s


def waits_for_requeue_delay(record: SlurmJob, now_s: float) -> bool:
    """Whether the job waits for nothing but Slurm's delay: it has run before, so its own --begin is long past."""
    waits = record.restarts > 0 and waits_for_begin(record, now_s)
    return waits and (record.eligible_s or 0.0) - record.submit_s <= LONGEST_S


def has_settled(record: SlurmJob, now_s: float) -> bool:
    """Whether every node would take a requeued job again."""
    return now_s >= record.submit_s + SETTLE_S


_ROOM = frozenset({"Resources", "Priority"})
_UNTESTED = frozenset({"None", ""})
"""Not tested since it was submitted or changed. Each of our own writes brings it about."""

_DELAYED = frozenset({*_ROOM, *_UNTESTED, "BeginTime"})
_TIERS = ("Nodes required for job are ", "Nodes_required_for_job_are_")
"""What Slurm says in place of Resources where partitions have tiers, or nodes are down."""

_RESERVED = ("ReqNodeNotAvail, Reserved for maintenance", "ReqNodeNotAvail, May be reserved for other job")
"""What Slurm says of a job that would run into a reservation; leases are reservations, too."""


def waits_for_room(record: SlurmJob) -> bool:
    """Whether Slurm says that the job would start if its GPUs were free: only then others may be interrupted for it.

    None does not say so: Slurm has not tested the job yet. Of the components of a heterogeneous job one may say so
    while another cannot start.
    """
    return record.state == "PENDING" and record.het_job_id is None and record.reason in _ROOM


def may_keep_lease(record: SlurmJob) -> bool:
    """Whether a lease that the job has may stay: in it the job may wait for its beginning, or not be tested again."""
    in_lease = record.reservation == lease_name(record.job_id)
    untested = record.reason in _UNTESTED or (in_lease and record.reason == "Reservation")
    return waits_for_room(record) or (record.state == "PENDING" and record.het_job_id is None and untested)


def may_be_planned(record: SlurmJob, now_s: float, *, consents: bool, only_leases: bool) -> bool:
    """Whether a waiting job has a place in the plan: Slurm may start it once there is room, as far as is known.

    Slurm's delay after a requeue is no obstacle where the daemon lifts it, for a job that consented to be requeued: so
    the GPUs of a job that comes back in some seconds are not given away, and its size is settled before it starts.

    `only_leases`: all reservations there are, and there are some, are leases. What a job would run into is one of
    those then, and the plan may give it to that job.
    """
    if record.het_job_id is not None:
        return False
    if waits_for_begin(record, now_s):
        return consents and waits_for_requeue_delay(record, now_s) and record.reason in _DELAYED
    if record.reason.startswith(_TIERS) or (only_leases and record.reason.startswith(_RESERVED)):
        return True
    return waits_for_room(record) or may_keep_lease(record)
