"""Elastic jobs that got fewer GPUs than they could use, and would be ended by their time limit for it. Pure.

A time limit is the user's, for the size that he had in mind, and Slurm counts it per run. A job that runs smaller
takes longer: it is asked to save and goes back to the queue while there is time for that, and its next run has the
whole limit. That ends when it has had the GPU-time that its limit means at its full size, so one that hangs ends, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sched_policy.model import Job, JobState
from sched_policy.plan import Preemption, Start
from sched_policy.preempt.displace import productive_since_s
from sched_policy.snapshot import Snapshot


class Renewal(Struct, frozen=True):
    """When a job is sent back to the queue because its time limit comes near.

    Attributes:
        lead_s: so long before the limit: time to notice, to save and to leave.
        quantum_s: only a run that has worked for so long, and for `lead_s`. A limit too short for that would bring
            restarts and nothing else.

    """

    lead_s: float = 180.0
    quantum_s: float = 600.0

    def preemptions(self, snapshot: Snapshot) -> tuple[Preemption, ...]:
        """The jobs that have to save now."""
        why = "its time limit would end it at its smaller size: it saves, and its next run has the whole limit again"
        return tuple(Preemption(job.job_id, why) for job in snapshot.running if self._is_due(job, snapshot.now_s))

    def next_s(self, snapshot: Snapshot, starts: Iterable[Start]) -> float:
        """When the next job may have to save, of those that run and those that this plan starts."""
        jobs = {job.job_id: job for job in snapshot.jobs if job.elastic is not None and job.may_yield}
        begun_s = {start.job_id: snapshot.now_s for start in starts}
        begun_s |= {job.job_id: job.start_s for job in snapshot.running if job.start_s is not None}
        limits_s = ((begun_s[i], job.time_limit_s) for i, job in jobs.items() if i in begun_s)
        due_s = (start_s + limit_s - self.lead_s for start_s, limit_s in limits_s if limit_s is not None)
        return min((time_s for time_s in due_s if time_s > snapshot.now_s), default=float("inf"))

    def _is_due(self, job: Job, now_s: float) -> bool:
        if not _could_be_larger(job) or not self._due_s(job) <= now_s or _has_had_its_share(job, now_s):
            return False
        left_s = job.known_left_s(now_s)
        return left_s is None or left_s > job.end_s(now_s) - now_s

    def _due_s(self, job: Job) -> float:
        """When the job has to save; infinity if it has no limit, or one that leaves no time to work."""
        if job.start_s is None or job.time_limit_s is None:
            return float("inf")
        due_s = job.start_s + job.time_limit_s - self.lead_s
        worked_s = due_s - productive_since_s(job)
        return due_s if worked_s >= max(self.quantum_s, self.lead_s) else float("inf")


def _could_be_larger(job: Job) -> bool:
    """Whether it runs with fewer GPUs than it could use, and may be preempted."""
    smaller = job.elastic is not None and job.request.total < job.elastic.most
    return smaller and job.state is JobState.RUNNING and job.may_yield and not job.yielding


def _has_had_its_share(job: Job, now_s: float) -> bool:
    """Whether it has used the GPU-time of a whole limit at its full size, as far as its present size tells."""
    if job.elastic is None or job.time_limit_s is None:
        return False
    return job.executed_s(now_s) * job.request.total >= job.time_limit_s * job.elastic.most
