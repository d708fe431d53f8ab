"""After the requeue: how long a beneficiary comes first, and whether slurmctld has forgotten a requeue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from sched_policy.model import JobState
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.wait_reason import LIMITS
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requirements import Asked
from slurm_plugin.steering.underway import Look, Underway

_SAVED_S = 60.0
"""slurmctld saves its state every few seconds, so a requeue acknowledged this long ago survives its crash. Requeued
jobs are watched for this long."""


class _Service(Struct, frozen=True):
    """When jobs were last requeued for a pending job, and how many of its tasks will still be pending afterwards.

    `leaving_s` is when the last of those jobs was still leaving; `record` is the pending job when they were requeued.
    """

    time_s: float
    leaving_s: float
    tasks_left: int
    record: SlurmJob

    def is_for(self, record: SlurmJob) -> bool:
        """Whether tasks still wait for room, and their owner has not changed them meanwhile, but to fewer GPUs."""
        if record.waits_for in LIMITS:
            return False
        before = self.record
        is_alike = (record.account, record.qos, record.nice) == (before.account, before.qos, before.nice)
        return record.array_tasks > self.tasks_left and is_alike and Asked.of(record).is_within(Asked.of(before))


class Requeued:
    """Jobs that were requeued and have left, and the pending jobs for which that was done."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[Underway, float, float | None]] = {}  # and when it left, time of its last report
        self._served: dict[int, _Service] = {}

    @property
    def served_s(self) -> Mapping[int, float]:
        """The pending jobs for which others have been requeued, and when last."""
        return {job_id: service.time_s for job_id, service in self._served.items()}

    def being_served(
        self, leaving: Iterable[Underway], records: Mapping[int, SlurmJob], now_s: float, for_s: float
    ) -> frozenset[int]:
        """Jobs for which others have been requeued, until `for_s` seconds after those have left.

        Cleaning up after a job (KillWait, epilog) may take longer than a scheduling cycle. A clean-up that does not
        end is not waited for: a minute after a job was seen to leave it counts as gone. A job array is included only
        until as many of its tasks have started as GPUs were freed for; the other tasks have no claim to be first. Nor
        has a job that was out of reach for a pass: what it asks for then is not what they have left for. Nor has one
        that a limit keeps waiting: it does not take the GPUs, and would only come before all others until it may.
        """
        awaited = {step.beneficiary for step in leaving}
        return frozenset(
            job_id
            for job_id, service in self._served.items()
            if job_id in awaited or now_s - service.leaving_s <= for_s
            if (record := records.get(job_id)) is None or service.is_for(record)
        )

    def serve(self, going: Mapping[int, Underway], look: Look) -> None:
        """Remember the jobs for which these are requeued, and which still wait."""
        freed: Counter[int] = Counter()
        for job_id, step in going.items():
            if step.beneficiary is not None and job_id in look.jobs and look.still_waits(step.beneficiary):
                freed[step.beneficiary] += look.jobs[job_id].request.total
        for job_id, gpus in freed.items():
            job = look.jobs[job_id]
            left = job.array_tasks - max(1, gpus // max(1, job.request.total))
            self._served[job_id] = _Service(look.now_s, look.now_s, left, look.slurm_jobs[job_id])

    def take_back(self, beneficiary: int | None, leaving: Iterable[Underway]) -> None:
        """A job has not been requeued for this one; others that are `leaving`, or have left, may have been."""
        gone = {step.beneficiary for step in leaving} | {step.beneficiary for step, *_ in self._left.values()}
        if beneficiary is not None and beneficiary not in gone:
            self._served.pop(beneficiary, None)

    def watch(self, job_id: int, step: Underway, look: Look) -> None:
        """Remember a job that was requeued and has left."""
        self._left[job_id] = step, look.now_s, _last_report_s(look.reported(job_id))

    def advance(self, look: Look, grace_s: float) -> Mapping[int, Underway]:
        """One pass; returns requeues to repeat, of jobs that Slurm shows as running though they had left.

        A slurmctld that is killed forgets a requeue which it has acknowledged but not saved. The node has ended the
        job's processes by then, so the job would do nothing until its time limit. A job that still reports was not
        ended: its reports are compared with each other, because its node's clock may differ from ours.
        """
        again: dict[int, Underway] = {}
        for job_id, (step, left_s, last_report_s) in tuple(self._left.items()):
            job, reported = look.jobs.get(job_id), look.reported(job_id)
            if job is None or not look.runs_on(job_id, step):
                self._left[job_id] = step, left_s, _last_report_s(reported)
                if job is None or look.now_s - left_s > _SAVED_S:
                    del self._left[job_id]
            elif not job.allows_preemption or reported.ended or _last_report_s(reported) != last_report_s:
                del self._left[job_id]
            elif look.now_s - left_s >= grace_s:
                del self._left[job_id]
                again[job_id] = replace(step, beneficiary=None)
        leaving = {one.beneficiary for n, (one, *_) in self._left.items() if look.jobs[n].state is JobState.COMPLETING}
        self._served = {
            job_id: replace(service, leaving_s=look.now_s) if job_id in leaving else service
            for job_id, service in self._served.items()
            if job_id in look.jobs and look.jobs[job_id].state is JobState.PENDING
        }
        return again


def _last_report_s(progress: JobProgress) -> float | None:
    return progress.reports[-1].time_s if progress.reports else None
