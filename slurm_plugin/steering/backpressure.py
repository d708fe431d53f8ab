"""What is better changed between two cycles of Slurm's backfill, and what not just before it computes all priorities.

A cycle that lasts longer than bf_yield_interval lets go of its locks now and then. It takes each job's priority when it
begins and writes it back when it comes to the job, so a site factor that was written meanwhile is not in force, and
writing it again meanwhile would help no more. And a reservation that is made or changed while the locks are free ends
the cycle, bf_continue or not: with a change every quarter of a minute backfill saw a third fewer jobs (Slurm 22.05).

Cycles that are shorter hold the locks throughout, and nothing has to wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from slurm_plugin.client.capabilities import RateLimit
from slurm_plugin.client.changes import (
    AttachReservation,
    Change,
    CreateReservation,
    DeleteReservation,
    ExtendReservation,
    SetSiteFactor,
)
from slurm_plugin.client.records import ControllerLoad, SlurmJob
from slurm_plugin.config import BackpressureSection

_OTHER_REQUESTS = 15
"""A pass reads with 7 requests; some more are for leases and preemptions."""


class Backoff(Struct, frozen=True):
    """The time until the next look at slurmctld's load, and whether a pass may be made now."""

    interval_s: float
    may_pass: bool
    is_busy: bool


def is_busy(load: ControllerLoad, limits: BackpressureSection) -> bool:
    """Whether slurmctld should be left alone for a while."""
    return load.server_threads >= limits.server_threads or load.last_cycle_s > limits.cycle_s


def backoff(load: ControllerLoad, last_interval_s: float, usual_s: float, limits: BackpressureSection) -> Backoff:
    """Put the pass off while slurmctld is busy, twice as long each time; at the widest interval pass all the same.

    Steering that stopped for good on a busy cluster would be no steering, and what a pass costs is bounded.
    """
    if not is_busy(load, limits):
        return Backoff(usual_s, may_pass=True, is_busy=False)
    widest_s = max(usual_s, limits.max_interval_s)
    return Backoff(min(widest_s, 2 * last_interval_s), may_pass=last_interval_s >= widest_s, is_busy=True)


def most_written(limit: RateLimit | None, interval_s: float, most: int) -> int:
    """How many site factors a pass may write, so that slurmctld never tells us to wait.

    It lets the rest wait in their process for a second and more each, and a pass would last longer than its timeout.
    """
    return most if limit is None else max(1, min(most, limit.requests(interval_s) - _OTHER_REQUESTS))


LONGEST_WAIT_S = 5.0
"""A pass waits for a gap no longer than this."""

MOST_PUT_OFF = 4
"""So many passes in a row may end without a gap; then what waits for one is changed all the same."""

_LOOK_EVERY_S = 1.0


def better_in_gap(change: Change, jobs: Mapping[int, SlurmJob]) -> bool:
    """Whether the change is one to a lease, or writes again the site factor that the job has."""
    if isinstance(change, SetSiteFactor):
        return change.site_factor == jobs[change.job_id].site_factor
    return isinstance(change, CreateReservation | DeleteReservation | ExtendReservation | AttachReservation)


def split(changes: Iterable[Change], jobs: Mapping[int, SlurmJob]) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """The changes for now and those for the gap, each in order."""
    listed = tuple(changes)
    in_gap = tuple(change for change in listed if better_in_gap(change, jobs))
    return tuple(change for change in listed if not better_in_gap(change, jobs)), in_gap


class BackfillGap:
    """Waits for the end of a cycle, a bounded time."""

    def __init__(self, load: Callable[[], ControllerLoad], pause: Callable[[float], None] = time.sleep) -> None:
        """`load` tells what slurmctld does now."""
        self._load = load
        self._pause = pause
        self._put_off = 0

    def is_open(self, yields_after_s: float) -> bool:
        """Whether changes may be made now, after some waiting. Cycles longer than `yields_after_s` let go of locks."""
        waited_s = 0.0
        while True:
            load = self._load()
            if not load.backfills or load.backfill_last_cycle_s < yields_after_s or self._put_off >= MOST_PUT_OFF:
                self._put_off = 0
                return True
            if waited_s >= LONGEST_WAIT_S:
                self._put_off += 1
                return False
            self._pause(_LOOK_EVERY_S)
            waited_s += _LOOK_EVERY_S


class Recalculations:
    """When Slurm computes the priorities of all jobs anew (PriorityCalcPeriod), learnt from what changes all at once.

    Fair share may then put others first: GPUs for which somebody has made room just before would be given out just
    after it, in an order that nobody has seen. So room is rather made a little later.
    """

    def __init__(self) -> None:
        self._waited: dict[int, SlurmJob] = {}
        self._looked_s = -math.inf
        self._latest_s: tuple[float, float] | None = None

    def note(self, jobs: Iterable[SlurmJob], now_s: float) -> None:
        """Compare with the last look. The fair share of a job changes at no other time, nor do most natives at once."""
        waiting = {job.job_id: job for job in jobs if job.state == "PENDING" and job.natives}
        both = [(job, self._waited[job_id]) for job_id, job in waiting.items() if job_id in self._waited]
        alike = [(job, before) for job, before in both if job.site_factor == before.site_factor]
        others = sum(job.natives != before.natives for job, before in alike)
        if 2 * others > len(alike) or any(job.fair_share != before.fair_share for job, before in both):
            self._latest_s = self._looked_s, now_s
        self._waited, self._looked_s = waiting, now_s

    def clear_from_s(self, now_s: float, period_s: float, cycle_s: float) -> float:
        """From when on what comes free is given out in the present order, `cycle_s` later at most; mostly `now_s`.

        Nothing is put off where the moment is not known, or so little that there would hardly be another time.
        """
        if self._latest_s is None:
            return now_s
        first_s, last_s = self._latest_s
        if 2 * (last_s - first_s + cycle_s) > period_s:
            return now_s
        ahead_s = max(1, math.ceil((now_s - last_s) / period_s)) * period_s
        return last_s + ahead_s if first_s + ahead_s <= now_s + cycle_s else now_s
