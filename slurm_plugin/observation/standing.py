"""Where Slurm itself puts a waiting job, and who may exchange places with it. Pure.

Only equals exchange places. A place that a job got in one partition, QOS or account would overtake others in the next
one; what a user takes off by --nice is his own wish; and a job in a reservation competes with others of it only.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sched_policy.model import Job
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.leases import leased_job

Scope = Literal["user", "account", "partition"]


class Standing(Struct, frozen=True):
    """A job's `scope`, `peers` and `native_priority`, as a policy's job has them."""

    scope: str = ""
    peers: str = ""
    native_priority: float = 0.0


def standing_of(record: SlurmJob, scope: Scope, others_factor: int) -> Standing:
    """The standing of a job; `others_factor` is the part of its site factor that is not ours.

    In scope `partition` all jobs are peers and none has a priority of its own: the policy's order is the order. A job
    of which Slurm tells no priority (held, or not yet to start) exchanges its place with nobody.
    """
    if scope == "partition":
        return Standing()
    owner = record.user if scope == "user" else record.account
    if not record.natives:
        return Standing(owner, f"job {record.job_id}", 0.0)
    reservation = "" if leased_job(record.reservation) is not None else record.reservation
    alike = (record.account, record.partition, record.qos, reservation, str(record.nice))
    return Standing(owner, "\x1f".join(alike), record.priority_with(others_factor))


def waited_s(job: Job, record: SlurmJob, now_s: float) -> float:
    """Time that a job has spent in the queue in all, as far as that is known.

    Until it may start at all (held, begin time) it does not wait, but a requeued job's past counts: Slurm tells only
    its latest begin.
    """
    since_s = job.submit_s
    if record.restarts == 0:
        since_s = max(since_s, now_s if record.eligible_s is None else record.eligible_s)
    until_s = now_s if job.start_s is None else job.start_s
    return max(0.0, until_s - since_s - job.earlier_s)
