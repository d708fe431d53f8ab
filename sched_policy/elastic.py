"""Elastic jobs: smaller where GPUs are scarce, larger where they lie idle. Pure.

A waiting job takes another size for nothing. A running one has to save, go back to the queue and load again, so it is
left alone unless nobody waits, it has had its quantum, and the time that it saves is a multiple of what that costs.
Speed is taken to grow with the number of GPUs: the rule compares sizes of one job, not jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sched_policy.backfill import Shrink, Smaller
from sched_policy.model import GpuRequest, Job, JobState
from sched_policy.place.base import Indexed, Place
from sched_policy.plan import Ranking, Resize, Start
from sched_policy.preempt.displace import productive_since_s
from sched_policy.profile import AvailabilityProfile
from sched_policy.renewal import Renewal
from sched_policy.snapshot import Snapshot


class Grown(NamedTuple):
    """The plan's starts with larger ones in their places, the resizes, and when to look again."""

    starts: tuple[Start, ...]
    resizes: tuple[Resize, ...]
    replan_s: float


class Resizing(Struct, frozen=True):
    """When elastic jobs change their size.

    Attributes:
        restart_s: what a restart costs a job, in seconds of its time, while nothing has been measured of it.
        gain: a running job is resized only if that saves it this many times what its restart costs.
        quantum_s: a running job is left alone for this long after the first report of each run.
        most_at_once: running jobs resized per plan at most.
        renewal: when a job that runs smaller is sent back to the queue before its time limit ends it.

    """

    restart_s: float = 60.0
    gain: float = 3.0
    quantum_s: float = 600.0
    most_at_once: int = 8
    renewal: Renewal = Renewal()

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
        for job in _elastic_jobs(snapshot, ranking):
            at = starting.get(job.job_id)
            if at is None and (interrupted == self.most_at_once or not self._may_restart(job, snapshot.now_s)):
                continue
            held = profile.indexed(job.allocation if at is None else planned[at].placement)
            found = _largest(job, held, free, profile, place)
            if found is None or (at is None and not self._pays(job, found[0], snapshot.now_s)):
                continue
            request, there = found
            if at is None:  # until it has gone, what it holds is nobody else's
                held_on = dict(held)
                there = tuple((node, max(0, gpus - held_on.get(node, 0))) for node, gpus in there)
            else:
                _book(free, held, 1)
            _book(free, there, -1)
            reason = f"{request.total} GPUs in place of {job.request.total}: nobody waits for them"
            resizes.append(Resize(job.job_id, request, reason))
            if at is None:
                interrupted += 1
            else:
                planned[at] = Start(job.job_id, profile.named(there), reason)
        return Grown(tuple(planned), tuple(resizes), self._next_s(snapshot))

    def _may_restart(self, job: Job, now_s: float) -> bool:
        ready = job.state is JobState.RUNNING and not job.yielding and job.may_yield
        return ready and now_s >= productive_since_s(job) + self.quantum_s

    def _pays(self, job: Job, request: GpuRequest, now_s: float) -> bool:
        """Whether the time that is saved is `gain` times the restart, as long as the present run's took or longer."""
        saved_s = job.left_s(now_s) * (1.0 - job.request.total / request.total)
        took_s = 0.0 if job.first_report_s is None or job.start_s is None else job.first_report_s - job.start_s
        return saved_s > self.gain * max(self.restart_s, took_s)

    def _next_s(self, snapshot: Snapshot) -> float:
        """When the next running job has had its quantum."""
        jobs = (job for job in snapshot.running if job.elastic and job.may_yield)
        ends_s = (productive_since_s(job) + self.quantum_s for job in jobs)
        return min((end_s for end_s in ends_s if end_s > snapshot.now_s), default=float("inf"))


def _elastic_jobs(snapshot: Snapshot, ranking: Ranking) -> Iterator[Job]:
    """The elastic jobs that could be larger, best first."""
    for row in ranking.rows.tolist():
        job = snapshot.jobs[row]
        if job.elastic is not None and job.request.total < job.elastic.most and job.array_tasks == 1:
            yield job


def _largest(
    job: Job, held: Indexed, free: NDArray[np.int64], profile: AvailabilityProfile, place: Place
) -> tuple[GpuRequest, Indexed] | None:
    """The largest size above its present one that fits into what is free once its own GPUs are, and where."""
    if job.elastic is None:
        return None
    room = free.copy()
    _book(room, held, 1)
    room *= profile.usable(job.partition)
    for request in reversed(job.elastic.requests()):
        if request.total <= job.request.total:
            return None
        there = place.place(request, profile.room(room))
        if there is not None:
            return request, there
    return None


def _book(free: NDArray[np.int64], placement: Indexed, sign: int) -> None:
    for node, gpus in placement:
        free[node] += sign * gpus


def _planned_s(job: Job, request: GpuRequest) -> float:
    """How long a run at another size is booked for: its time limit, which stays, or what is expected, scaled."""
    return job.planned_s if job.time_limit_s is not None else job.planned_s * job.request.total / request.total
