"""Backfill over one availability profile.

FIFO-greedy, EASY (Lifka 1995), conservative (Feitelson & Weil 1998) and everything between differ by one
number, `reservation_depth`: how many blocked jobs get a reservation, which later jobs must not delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from sched_policy.model import GpuRequest, Job
from sched_policy.place import Indexed, Place
from sched_policy.plan import Reservation, Resize, Start
from sched_policy.profile import AvailabilityProfile

ALL = 1_000_000_000
"""`reservation_depth` of conservative backfill: every blocked job gets a reservation."""


class Booked(NamedTuple):
    """Starts, reservations and resizes of the waiting jobs."""

    starts: tuple[Start, ...]
    reservations: tuple[Reservation, ...]
    resizes: tuple[Resize, ...]


class Smaller(NamedTuple):
    """A smaller size at which a job fits now: the nodes, for how long they are booked, and the reason."""

    request: GpuRequest
    placement: Indexed
    planned_s: float
    reason: str


Shrink = Callable[[Job, AvailabilityProfile], Smaller | None]
"""Whether a job that does not fit should start smaller."""


class Backfill(Struct, frozen=True):
    """`reservation_depth` 0 is greedy, 1 EASY, N hybrid, `ALL` conservative.

    `queue_depth` limits how many waiting jobs are considered, `window_s` how far ahead reservations may start.
    """

    reservation_depth: int = 1
    queue_depth: int = ALL
    window_s: float = float("inf")

    def schedule(
        self,
        profile: AvailabilityProfile,
        now_s: float,
        queue: Sequence[Job],
        place: Place,
        admits: Callable[[Job, int], bool] | None = None,
        shrink: Shrink | None = None,
    ) -> Booked:
        """Go through the waiting jobs, best first, and book their starts and reservations in `profile`.

        `admits` says whether a blocked job may get a reservation, given how many GPUs are reserved for others at that
        time; None: any may. The first blocked job that is overdue gets one whatever the depth. A job array
        starts as many tasks as fit and gets no reservation: it would hold for all its tasks at once. `shrink` is asked
        about each job that does not fit; None: all keep their sizes.
        """
        starts: list[Start] = []
        reservations: list[Reservation] = []
        resizes: list[Resize] = []
        for job in queue[: self.queue_depth]:
            waiting, planned_s = job.array_tasks - job.throttled_tasks, job.planned_s
            while waiting and (here := profile.fits_now(job.request, planned_s, job.partition, place)) is not None:
                profile.start(here, now_s + planned_s)
                starts.append(
                    Start(job.job_id, profile.named(here), "its GPUs are free now, and no reservation is delayed")
                )
                waiting -= 1
            if waiting and shrink and (smaller := shrink(job, profile)) is not None:
                profile.start(smaller.placement, now_s + smaller.planned_s)
                starts.append(Start(job.job_id, profile.named(smaller.placement), smaller.reason))
                resizes.append(Resize(job.job_id, smaller.request, smaller.reason))
                continue
            may_reserve = len(reservations) < self.reservation_depth or (job.is_overdue and not reservations)
            if waiting != 1 or job.array_tasks > 1 or not may_reserve:
                continue
            found = profile.earliest(job.request, planned_s, job.partition, place)
            if found is None or found[0] > now_s + self.window_s:
                continue
            if admits is not None and not job.is_overdue and not admits(job, profile.booked(found[0])):
                continue
            start_s, there = found
            end_s = start_s + planned_s
            profile.reserve(start_s, end_s, there)
            reason = f"blocked; the earliest gap for it opens in {start_s - now_s:.0f} s"
            reservations.append(Reservation(job.job_id, profile.named(there), start_s, end_s, reason))
        return Booked(tuple(starts), tuple(reservations), tuple(resizes))
