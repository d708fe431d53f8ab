"""Backfill over one availability profile.

FIFO-greedy, EASY (Lifka 1995), conservative (Feitelson & Weil 1998) and everything between differ by one
number, `reservation_depth`: how many blocked jobs are promised a start that later jobs must not delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sched_policy.model import Job, Reservation, Start
from sched_policy.place.consolidate import Consolidate
from sched_policy.profile import AvailabilityProfile

ALL = 1_000_000_000
"""`reservation_depth` of conservative backfill: every blocked job gets a reservation."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """`reservation_depth` 0 is greedy, 1 EASY, N hybrid, `ALL` conservative.

    `queue_depth` limits how many waiting jobs are looked at.
    """

    reservation_depth: int = 1
    queue_depth: int = ALL

    def schedule(
        self,
        profile: AvailabilityProfile,
        now_s: float,
        queue: Sequence[Job],
        place: Consolidate,
        admits: Callable[[Job, int], bool],
    ) -> tuple[tuple[Start, ...], tuple[Reservation, ...]]:
        """Walk the waiting jobs, best first; book what they get into `profile`.

        `admits` says whether a blocked job may be promised a start, given how many GPUs are promised to others at
        that time. A job array starts as many tasks as fit and
        gets no reservation: it would hold for all its tasks at once.
        """
        starts: list[Start] = []
        reservations: list[Reservation] = []
        for job in queue[: self.queue_depth]:
            duration_s = float("inf") if job.time_limit_s is None else job.time_limit_s
            waiting = job.array_tasks
            while waiting:
                here = profile.fits_now(job.request, duration_s, job.partition, place)
                if here is None:
                    break
                profile.take(now_s, now_s + duration_s, here)
                starts.append(Start(job.job_id, profile.named(here), "fits now and delays no promised start"))
                waiting -= 1
            if waiting != 1 or job.array_tasks > 1:
                continue
            if len(reservations) >= self.reservation_depth:
                continue
            found = profile.earliest(job.request, duration_s, job.partition, place)
            if found is None:
                continue
            start_s, there = found
            if not admits(job, profile.booked(start_s)):
                continue
            end_s = start_s + duration_s
            profile.take(start_s, end_s, there)
            reason = f"blocked; the earliest gap for its {job.request.total} GPUs opens in {start_s - now_s:.0f} s"
            reservations.append(Reservation(job.job_id, profile.named(there), start_s, end_s, reason))
        return tuple(starts), tuple(reservations)
