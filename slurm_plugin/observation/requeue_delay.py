"""The two minutes that Slurm makes a requeued job wait, and when they can be cut short. Pure."""

from __future__ import annotations

from slurm_plugin.client.records import SlurmJob

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
