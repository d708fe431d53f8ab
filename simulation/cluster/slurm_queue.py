"""What Slurm's own two schedulers start, given the order that the policy gave the queue last. Pure functions.

slurmctld runs the main scheduler at most once in `batch_sched_delay` after something has changed, and every
`sched_interval`; it takes the queue in order of priority, and once a job does not fit, all others of the partition wait
for backfill. Backfill runs every `bf_interval`, and promises a start to every job that does not fit. Both know
time limits only, and choose the nodes themselves. Jobs that the policy has not ordered yet come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sched_policy.backfill import ALL, Backfill
from sched_policy.model import Job, JobState
from sched_policy.place import Consolidate
from sched_policy.plan import Start
from sched_policy.profile import AvailabilityProfile
from sched_policy.snapshot import Snapshot

AS_SLURM = Backfill(ALL, queue_depth=500, window_s=86_400.0)
"""Slurm's own: conservative, with bf_max_job_test and bf_window as they are by default."""

_PLACE = Consolidate()


def main_starts(order: Sequence[int], snapshot: Snapshot) -> Iterator[Start]:
    """Starts by the main scheduler: what fits, up to the first job of each partition that does not."""
    profile = AvailabilityProfile(snapshot)
    blocked: set[str] = set()
    for job in _queue(order, snapshot):
        if job.partition in blocked:
            continue
        here = profile.fits_now(job.request, job.planned_s, job.partition, _PLACE)
        if here is None:
            blocked.add(job.partition)
            continue
        profile.start(here, snapshot.now_s + job.planned_s)
        yield Start(job.job_id, profile.named(here), "at the head of the queue, and it fits")


def backfill_starts(order: Sequence[int], snapshot: Snapshot) -> Sequence[Start]:
    """Starts by backfill: what fits without delaying a job with higher priority."""
    profile = AvailabilityProfile(snapshot)
    return AS_SLURM.schedule(profile, snapshot.now_s, _queue(order, snapshot), _PLACE, _admit_all).starts


def _queue(order: Sequence[int], snapshot: Snapshot) -> list[Job]:
    """The waiting jobs: those of the order first, then the others in order of submission."""
    place = {job_id: number for number, job_id in enumerate(order)}
    waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
    return sorted(waiting, key=lambda job: (place.get(job.job_id, len(place)), job.submit_s, job.job_id))


def _admit_all(_job: Job, _promised_gpus: int) -> bool:
    return True
