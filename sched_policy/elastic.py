"""Elastic jobs: smaller where GPUs are scarce, larger where they are idle. Pure.

Resizing a waiting job costs nothing. A running one has to save, return to the queue and load again, so it is resized
only if no job waits for the GPUs, its quantum has passed, and the time saved is a multiple of what the restart costs.
Speed is taken to be proportional to the number of GPUs: the rule compares sizes of one job, not jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from sched_policy.backfill import Shrink, Smaller
from sched_policy.model import GpuRequest, Job
from sched_policy.place import Place
from sched_policy.plan import Preemption, Ranking, Resize, Start
from sched_policy.profile import AvailabilityProfile
from sched_policy.snapshot import Snapshot


class Grown(NamedTuple):
    """The plan's starts, some of them larger now, the resizes, and when to plan again."""

    starts: tuple[Start, ...]
    resizes: tuple[Resize, ...]
    replan_s: float


class WalltimeRequeue(Struct, frozen=True):
    """When a job is requeued because its time limit would end it at a smaller size.

    Users choose the time limit for the full size, and Slurm counts it per run. A job that runs smaller takes longer:
    shortly before the limit it is asked to save and requeued, and its next run has the whole limit again. No longer
    once it has used the GPU-time of one limit at its full size, so a job that hangs ends, too.

    Attributes:
        lead_s: how long before the limit it is asked: time to notice, to save and to leave.
        quantum_s: only runs that will have worked for at least this long, and for `lead_s`: with a shorter limit a job
            would do little but restart.

    """

    lead_s: float = 180.0
    quantum_s: float = 600.0

    def preemptions(self, snapshot: Snapshot) -> tuple[Preemption, ...]:
        """The running jobs that have to save now."""
        why = "its time limit would end it at its smaller size: it saves, and its next run has the whole limit again"
        return tuple(Preemption(job.job_id, why) for job in snapshot.running if self._is_due(job, snapshot.now_s))

    def next_s(self, snapshot: Snapshot, starts: Iterable[Start]) -> float:
        """When the next job may have to save, of the running ones and those that this plan starts."""
        jobs = {job.job_id: job for job in snapshot.jobs if job.elastic is not None and job.is_preemptible}
        begun_s = {start.job_id: snapshot.now_s for start in starts}
        begun_s |= {job.job_id: job.start_s + job.suspended_s for job in snapshot.running if job.start_s is not None}
        limits_s = ((begun_s[i], job.time_limit_s) for i, job in jobs.items() if i in begun_s)
        return snapshot.next_s(start_s + limit_s - self.lead_s for start_s, limit_s in limits_s if limit_s is not None)

    def _is_due(self, job: Job, now_s: float) -> bool:
        if job.elastic is None or job.time_limit_s is None or not job.can_leave or self._due_s(job) > now_s:
            return False
        # Sizes of earlier runs are not known here: they count with the present size.
        has_had_its_share = job.executed_s(now_s) * job.request.total >= job.time_limit_s * job.elastic.most
        if job.request.total >= job.elastic.most or has_had_its_share:
            return False
        left_s = job.known_left_s(now_s)
        return left_s is None or left_s > job.end_s(now_s) - now_s

    def _due_s(self, job: Job) -> float:
        """When the job has to save; infinity if it has no limit, or one that leaves no time to work."""
        if job.start_s is None or job.time_limit_s is None:
            return float("inf")
        due_s = job.start_s + job.suspended_s + job.time_limit_s - self.lead_s
        worked_s = due_s - job.productive_since_s
        return due_s if worked_s >= max(self.quantum_s, self.lead_s) else float("inf")


class Resizing(Struct, frozen=True):
    """When elastic jobs change their size.

    Attributes:
        restart_s: cost of a restart in seconds of the job's run time, until its own has been measured.
        gain: a running job is resized only if that saves this many times the cost of the restart.
        quantum_s: a running job is not resized for this long after `Job.productive_since_s`.
        most_at_once: largest number of running jobs resized in one plan.
        walltime_requeue: when a job below its full size is requeued before its time limit ends it.

    """

    restart_s: float = 60.0
    gain: float = 3.0
    quantum_s: float = 600.0
    most_at_once: int = 8
    walltime_requeue: WalltimeRequeue = WalltimeRequeue()

    def shrink(self, now_s: float, place: Place) -> Shrink:
        """The rule by which a waiting job that does not fit starts smaller (`backfill.Shrink`).

        It does if, until it could start at its present size, it gets more done than a restart at that size will cost;
        but not at a size at which it is known to need more than its time limit.
        """

        def smaller(job: Job, profile: AvailabilityProfile) -> Smaller | None:
            if job.elastic is None or job.array_tasks > 1:
                return None
            asked = job.request.total
            for request in reversed(job.elastic.requests()):
                if request.total >= asked:
                    continue
                planned_s = _planned_s(job, request)
                if (job.known_left_s(now_s) or 0.0) * asked / request.total > planned_s:
                    return None
                here = profile.fits_now(request, planned_s, job.partition, place)
                if here is None:
                    continue
                found = profile.earliest(job.request, job.planned_s, job.partition, place)
                wait_s = float("inf") if found is None else found[0] - now_s
                if request.total * wait_s <= asked * self.restart_s:
                    return None
                reason = f"starts with {request.total} GPUs: {asked} are not free for another {wait_s:.0f} s"
                return Smaller(request, here, planned_s, reason)
            return None

        return smaller

    def grow(
        self,
        snapshot: Snapshot,
        ranking: Ranking,
        starts: Sequence[Start],
        profile: AvailabilityProfile,
        place: Place,
    ) -> Grown:
        """Give GPUs that no job waits for to elastic jobs, best first, to starting and to running ones.

        No job gets nodes that are absent before its planned end: once it has left, it would wait for their return.
        `profile` has the starts booked. While a preempted job leaves nothing is given away: the freed GPUs are for
        the job that it leaves for.
        """
        if any(job.asked_to_leave for job in snapshot.running):
            return Grown(tuple(starts), (), float("inf"))
        free = profile.free_now()
        starting = {start.job_id: i for i, start in enumerate(starts)}
        planned = list(starts)
        resizes: list[Resize] = []
        interrupted = 0
        for job in map(snapshot.jobs.__getitem__, ranking.rows.tolist()):
            if job.elastic is None or job.request.total >= job.elastic.most or job.array_tasks > 1:
                continue
            at = starting.get(job.job_id)
            is_left_alone = interrupted == self.most_at_once or not job.may_leave(snapshot.now_s, self.quantum_s)
            if at is None and is_left_alone:
                continue
            sizes = _larger(job) if at is not None else self._worth_a_restart(job, snapshot.now_s)
            held = job.allocation if at is None else planned[at].placement
            room = free.copy()
            room.release(held)
            fits = ((size, room.find(size, job.partition, place, _planned_s(job, size))) for size in sizes)
            found = next(((size, there) for size, there in fits if there is not None), None)
            if found is None:
                continue
            request, there = found
            reason = f"{request.total} GPUs in place of {job.request.total}: no job waits for them"
            resizes.append(Resize(job.job_id, request, reason))
            if at is None:  # it keeps its GPUs until it has left
                free.take_beyond(there, held)
                interrupted += 1
            else:
                free.release(held)
                free.take(there)
                planned[at] = Start(job.job_id, profile.named(there), reason)
        ends_s = (job.productive_since_s + self.quantum_s for job in snapshot.running if job.elastic and job.can_leave)
        return Grown(tuple(planned), tuple(resizes), snapshot.next_s(ends_s))

    def _worth_a_restart(self, job: Job, now_s: float) -> tuple[GpuRequest, ...]:
        """Larger sizes that save `gain` times a restart: `restart_s`, or its last start-up if that took longer."""
        took_s = 0.0 if job.first_report_s is None or job.start_s is None else job.first_report_s - job.start_s
        left_s, cost_s = job.left_s(now_s), self.gain * max(self.restart_s, took_s)
        return tuple(size for size in _larger(job) if left_s * (1.0 - job.request.total / size.total) > cost_s)


def _larger(job: Job) -> tuple[GpuRequest, ...]:
    """Sizes above its present one, the largest first."""
    sizes = () if job.elastic is None else reversed(job.elastic.requests())
    return tuple(size for size in sizes if size.total > job.request.total)


def _planned_s(job: Job, request: GpuRequest) -> float:
    """How long a run at another size is planned for: its time limit, else its expected time in inverse proportion."""
    return job.planned_s if job.time_limit_s is not None else job.planned_s * job.request.total / request.total
