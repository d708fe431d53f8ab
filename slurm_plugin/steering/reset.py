"""Everything of ours in Slurm, taken back: for an admin who takes explsched away, daemon or not. Pure.

What the owners of jobs asked for stays, and so does what others wrote. Two things cannot be taken back: what was ended
or requeued, and the size of an elastic job that was resized while it waited; the audit file tells which those are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from explsched.preemption_record import FORMER_PREFIX
from explsched.preemption_record import PREFIX as PREEMPTION_PREFIX
from slurm_plugin.client.changes import (
    AttachReservation,
    Change,
    DeleteReservation,
    SetAdminComment,
    SetSiteFactor,
    TargetJob,
)
from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.observation.standing import leased_job
from slurm_plugin.steering.groups.annotation import PREFIX as GROUP_PREFIX
from slurm_plugin.steering.groups.annotation import GroupAnnotation

_OURS = (GROUP_PREFIX, PREEMPTION_PREFIX, FORMER_PREFIX)


def taken_back(found: ClusterRecords, others_factors: Mapping[int, int]) -> tuple[Change, ...]:
    """The changes after which nothing of ours is left.

    `others_factors` are the parts of site factors that are not ours, by job id; a job that is not there has none.
    """
    return (
        *_site_factors(found.jobs, others_factors),
        *without_leases(found),
        *(change for job in found.jobs for change in _comment(job)),
    )


def _site_factors(jobs: Iterable[SlurmJob], others_factors: Mapping[int, int]) -> Iterator[SetSiteFactor]:
    for job in jobs:
        theirs = others_factors.get(job.job_id, 0)
        if job.state == "PENDING" and job.site_factor is not None and job.site_factor != theirs:
            yield SetSiteFactor(job.job_id, theirs)


def without_leases(found: ClusterRecords) -> Iterator[AttachReservation | DeleteReservation]:
    """Removes all leases. Jobs leave theirs first: Slurm keeps a reservation that a job is in."""
    for job in found.jobs:
        if leased_job(job.reservation) is not None:
            yield AttachReservation(job.job_id, "")
    for lease in found.reservations:
        if leased_job(lease.name) is not None:
            yield DeleteReservation(lease.name)


def _comment(job: SlurmJob) -> Iterator[TargetJob | SetAdminComment]:
    """Our words leave the AdminComment, and with them the node that a waiting job was pinned to."""
    words = job.admin_comment.split()
    theirs = [word for word in words if not word.startswith(_OURS)]
    if theirs == words:
        return
    note, pinned = " ".join(theirs), GroupAnnotation.of(job.admin_comment).node
    if job.state == "PENDING" and pinned and job.required_nodes == (pinned,):
        yield TargetJob(job.job_id, (), note)
    else:
        yield SetAdminComment(job.job_id, note)
