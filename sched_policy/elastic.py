"""Elastic jobs: smaller where GPUs are scarce, larger where they lie idle. Pure.

A waiting job takes another size for nothing. A running one has to save, go back to the queue and load again, so it is
left alone unless nobody waits, it has had its quantum, and the time that it saves is a multiple of what that costs.
Speed is taken to grow with the number of GPUs: the rule compares sizes of one job, not jobs.
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
    """The plan's starts with larger ones in their places, the resizes, and when to look again."""

    starts: tuple[Start, ...]
    resizes: tuple[Resize, ...]
    replan_s: float


class WalltimeRequeue(Struct, frozen=True):
    """When a job is sent back to the queue because its time limit comes near.

    A time limit is the user's, for the size that he had in mind, and Slurm counts it per run. A job that runs smaller
    takes longer: it is asked to save and goes back to the queue while there is time for that, and its next run has the
    whole limit. That ends when it has had the GPU-time that its limit means at its full size, so one that hangs ends,
    too.

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
        return snapshot.next_s(start_s + limit_s - self.lead_s for start_s, limit_s in limits_s if limit_s is not None)

    def _is_due(self, job: Job, now_s: float) -> bool:
        if job.elastic is None or job.time_limit_s is None or not job.can_leave or self._due_s(job) > now_s:
            return False
        # Has it used the GPU-time of a whole limit at its full size, as far as its present size tells?
        has_had_its_share = job.executed_s(now_s) * job.request.total >= job.time_limit_s * job.elastic.most
        if job.request.total >= job.elastic.most or has_had_its_share:
            return False
        left_s = job.known_left_s(now_s)
        return left_s is None or left_s > job.end_s(now_s) - now_s

    def _due_s(self, job: Job) -> float:
        """When the job has to save; infinity if it has no limit, or one that leaves no time to work."""
        if job.start_s is None or job.time_limit_s is None:
            return float("inf")
        due_s = job.start_s + job.time_limit_s - self.lead_s
        worked_s = due_s - job.productive_since_s
        return due_s if worked_s >= max(self.quantum_s, self.lead_s) else float("inf")


class Resizing(Struct, frozen=True):
    """When elastic jobs change their size.

    Attributes:
        restart_s: what a restart costs a job, in seconds of its time, while nothing has been measured of it.
        gain: a running job is resized only if that saves it this many times what its restart costs.
        quantum_s: a running job is left alone for this long since `Job.productive_since_s`.
        most_at_once: running jobs resized per plan at most.
        walltime_requeue: when a job that runs smaller is sent back to the queue before its time limit ends it.

    """

    restart_s: float = 60.0
    gain: float = 3.0
    quantum_s: float = 600.0
    most_at_once: int = 8
    walltime_requeue: WalltimeRequeue = WalltimeRequeue()

    def shrink(self, now_s: float, place: Place) -> Shrink:
        """The test whether a waiting job that does not fit should start smaller.

        It should if by the time at which it could start at its present size it has done more work than it will cost to
        restart it at that size; but not if it is known to need more than its time limit then.
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
        """Give GPUs that nobody waits for to elastic jobs, best first: to those that start, and to running ones.

        `profile` has the starts booked. While a job makes room nothing is given away: it will want its GPUs back.
        """
        if any(job.yielding for job in snapshot.running):
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
            found = free.find_instead(held, sizes, job.partition, place)
            if found is None:
                continue
            request, there = found
            if at is None:  # until it has gone, what it holds is nobody else's
                free.take_beyond(there, held)
            else:
                free.release(held)
                free.take(there)
            reason = f"{request.total} GPUs in place of {job.request.total}: no job waits for them"
            resizes.append(Resize(job.job_id, request, reason))
            if at is None:
                interrupted += 1
            else:
                planned[at] = Start(job.job_id, profile.named(there), reason)
        had_quantum_s = (j.productive_since_s + self.quantum_s for j in snapshot.running if j.elastic and j.may_yield)
        return Grown(tuple(planned), tuple(resizes), snapshot.next_s(had_quantum_s))

    def _worth_a_restart(self, job: Job, now_s: float) -> tuple[GpuRequest, ...]:
        """Larger sizes at which the time saved is `gain` times the restart, as long as the present run's or longer."""
        took_s = 0.0 if job.first_report_s is None or job.start_s is None else job.first_report_s - job.start_s
        left_s, cost_s = job.left_s(now_s), self.gain * max(self.restart_s, took_s)
        return tuple(size for size in _larger(job) if left_s * (1.0 - job.request.total / size.total) > cost_s)


def _larger(job: Job) -> tuple[GpuRequest, ...]:
    """Sizes above its present one, the largest first."""
    sizes = () if job.elastic is None else reversed(job.elastic.requests())
    return tuple(size for size in sizes if size.total > job.request.total)


def _planned_s(job: Job, request: GpuRequest) -> float:
    """How long a run at another size is booked for: its time limit, which stays, or what is expected, scaled."""
    return job.planned_s if job.time_limit_s is not None else job.planned_s * job.request.total / request.total
