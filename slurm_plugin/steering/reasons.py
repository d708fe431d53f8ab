"""What Slurm's reason for a job's wait allows us to do for it. Pure.

Reasons are a whitelist: Slurm has a hundred of them, and new releases bring more. For a job that waits for anything but
room (a limit, a licence, maintenance, nodes that are down) GPUs would be freed or kept free in vain.
"""

from __future__ import annotations

from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.requeue_delay import waits_for_begin, waits_for_requeue_delay
from slurm_plugin.steering.lease_name import lease_name

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
