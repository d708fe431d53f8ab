"""When to write: changes that must wait for a gap between backfill cycles, or until priorities are recomputed.

A cycle that lasts longer than bf_yield_interval yields its locks now and then. It reads each job's priority when it
begins and writes it back when it comes to the job, so a site factor that was written in between has no effect, and
writing it again during the cycle would not help. A reservation that is made or changed while the locks are free ends
the cycle, with or without bf_continue: with a change every 15 s backfill saw a third fewer jobs (Slurm 22.05).

Shorter cycles hold the locks throughout, and nothing has to wait. After a long one Slurm pauses for bf_interval; then
it begins the next cycle as soon as anything changes, so a later write may fall into a cycle that it triggers itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

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

_LEASE_CHANGES = CreateReservation | DeleteReservation | ExtendReservation | AttachReservation

_OTHER_REQUESTS = 15
"""A pass reads with 8 requests; some more are for leases and preemptions."""


class Backoff(Struct, frozen=True):
    """The time until slurmctld's load is read again, and whether a pass may be made now."""

    interval_s: float
    may_pass: bool
    is_busy: bool


def is_busy(load: ControllerLoad, limits: BackpressureSection) -> bool:
    """Whether slurmctld is too busy for a pass."""
    return load.server_threads >= limits.server_threads or load.last_cycle_s > limits.cycle_s


def backoff(load: ControllerLoad, last_interval_s: float, usual_s: float, limits: BackpressureSection) -> Backoff:
    """Delay the pass while slurmctld is busy, twice as long each time, up to the maximum interval.

    Then the pass is made anyway: its cost is bounded, and on a busy cluster steering would otherwise stop for good.
    """
    if not is_busy(load, limits):
        return Backoff(usual_s, may_pass=True, is_busy=False)
    widest_s = max(usual_s, limits.max_interval_s)
    return Backoff(min(widest_s, 2 * last_interval_s), may_pass=last_interval_s >= widest_s, is_busy=True)


def most_written(limit: RateLimit | None, interval_s: float, most: int) -> int:
    """How many site factors a pass may write without hitting slurmctld's rate limit.

    Beyond the limit each request waits for a second or more, and a pass would exceed its timeout.
    """
    return most if limit is None else max(1, min(most, limit.requests(interval_s) - _OTHER_REQUESTS))


MOST_PUT_OFF = 4
"""The number of passes in a row that may end without a gap; then waiting changes are written anyway."""

_LOOK_EVERY_S = 1.0

_MARGIN_S = 1.0
"""The writes of a pass take some tenths of a second, during which no cycle must begin."""


class CycleTimes(Struct, frozen=True):
    """When a cycle yields its locks (bf_yield_interval), and the pause after a cycle (bf_interval)."""

    yields_after_s: float
    rests_s: float


class BackfillState(Enum):
    """What Slurm's backfill does, if its cycles yield their locks."""

    RESTS = "a cycle has just ended, or cycles are short"
    IS_DUE = "a cycle may begin at any moment"
    IDLES = "none has begun for longer than the pause, so nothing is new"
    WORKS = "a cycle is under way"


_OFTEN_S = 2.0
"""An idle backfill checks each second whether anything is new."""


class Gap(Struct, frozen=True):
    """What may be changed now. `began_s` is the start of the last cycle by Slurm's clock, 0 if unknown."""

    began_s: float
    backfill: BackfillState = BackfillState.RESTS

    @property
    def is_open(self) -> bool:
        """Whether all changes made now stay in force."""
        return self.backfill is BackfillState.RESTS

    def timely(self, changes: Sequence[Change], jobs: Mapping[int, SlurmJob]) -> tuple[Change, ...]:
        """The changes to make now, in order; the others wait for an open gap.

        A new site factor does not wait if another change frees or needs GPUs, or if the job is newer than the cycle,
        which then does not overwrite its priority. If backfill is idle, only one site factor is set: Slurm begins a
        cycle as soon as anything is new, and would begin it in the middle of many writes.
        """
        if self.is_open:
            return tuple(changes)
        is_urgent = any(not isinstance(change, SetSiteFactor | _LEASE_CHANGES) for change in changes)
        prompt = next((change for change in changes if isinstance(change, SetSiteFactor)), None)
        return tuple(
            change
            for change in changes
            if self._suits(change, jobs, is_urgent=is_urgent)
            or (self.backfill is BackfillState.IDLES and change is prompt)
        )

    def _suits(self, change: Change, jobs: Mapping[int, SlurmJob], *, is_urgent: bool) -> bool:
        works = self.backfill is BackfillState.WORKS
        if isinstance(change, SetSiteFactor):
            job = jobs[change.job_id]
            is_new = change.site_factor != job.site_factor
            came_later = works and max(job.submit_s, job.eligible_s or 0.0) > self.began_s
            return is_new and (is_urgent or came_later)
        return not (works and isinstance(change, _LEASE_CHANGES))


class BackfillGap:
    """Determines whether a cycle is running, has just ended, or is due."""

    def __init__(self, load: Callable[[], ControllerLoad], clock: Callable[[], float] = time.time) -> None:
        """`load` returns the current load of slurmctld."""
        self._load = load
        self._clock = clock
        self._at_work_s = self._over_s = (0.0, 0.0)
        self._worked_s = 0.0
        self._passes_without = 0
        self._looked_s = -math.inf

    @property
    def is_awaited(self) -> bool:
        """Whether the last pass has postponed changes."""
        return self._passes_without > 0

    def of_pass(self, times: CycleTimes) -> Gap:
        """What a pass may change; everything if changes have been postponed too often."""
        gap = self._look(times)
        return Gap(gap.began_s) if self._passes_without >= MOST_PUT_OFF else gap

    def note(self, waiting: int) -> None:
        """Record the number of changes that the pass has postponed."""
        self._passes_without = self._passes_without + 1 if waiting else 0

    def has_opened(self, times: CycleTimes) -> bool:
        """Whether postponed changes may be made now. Asks Slurm at most once a second."""
        if not self.is_awaited or self._clock() - self._looked_s < _LOOK_EVERY_S:
            return False
        return self._look(times).backfill in (BackfillState.RESTS, BackfillState.IDLES)

    def _look(self, times: CycleTimes) -> Gap:
        asked_s, load, self._looked_s = self._clock(), self._load(), self._clock()
        began_s = load.backfill_began_s  # by slurmctld's clock, so all that follows must be
        now_s = self._looked_s - load.ahead_s(asked_s, self._looked_s)
        self._worked_s = load.backfill_last_cycle_s or self._worked_s  # 0 after its statistics were reset
        if load.backfills:
            self._at_work_s = began_s, now_s
        yields = self._worked_s >= times.yields_after_s
        if load.backfills and (yields or 0.0 < began_s < now_s - times.yields_after_s - _MARGIN_S):
            return Gap(began_s, BackfillState.WORKS)
        if not yields:
            return Gap(began_s)
        if self._over_s[0] != began_s:
            self._over_s = began_s, now_s
        seen_s = self._at_work_s[1] if self._at_work_s[0] == began_s else 0.0
        begins_s = max(began_s + load.backfill_last_cycle_s, seen_s) + times.rests_s  # at the earliest
        if now_s + _MARGIN_S <= begins_s:
            return Gap(began_s)
        return Gap(
            began_s, BackfillState.IDLES if now_s > self._over_s[1] + times.rests_s + _OFTEN_S else BackfillState.IS_DUE
        )


class Recalculations:
    """When Slurm recomputes the priorities of all jobs (PriorityCalcPeriod), detected by many changing at once.

    Fair share may then put other jobs first: GPUs freed by a preemption just before would be given out just after, in
    an order that the pass did not know. So such preemptions wait until after the recalculation.
    """

    def __init__(self) -> None:
        self._waited: dict[int, SlurmJob] = {}
        self._looked_s = -math.inf
        self._latest_s: tuple[float, float] | None = None

    def note(self, jobs: Iterable[SlurmJob], now_s: float) -> None:
        """Compare with the last pass. Fair share, and most native priorities at once, change at no other time."""
        waiting = {job.job_id: job for job in jobs if job.state == "PENDING" and job.natives}
        both = [(job, self._waited[job_id]) for job_id, job in waiting.items() if job_id in self._waited]
        alike = [(job, before) for job, before in both if job.site_factor == before.site_factor]
        others = sum(job.natives != before.natives for job, before in alike)
        if 2 * others > len(alike) or any(job.fair_share != before.fair_share for job, before in both):
            self._latest_s = self._looked_s, now_s
        self._waited, self._looked_s = waiting, now_s

    def clear_from_s(self, now_s: float, period_s: float, cycle_s: float) -> float:
        """From when on freed GPUs are given out in the present order, within `cycle_s`; usually `now_s`.

        There is no delay if the time of the next recalculation is unknown, or if the period is too short for one.
        """
        if self._latest_s is None:
            return now_s
        first_s, last_s = self._latest_s
        if 2 * (last_s - first_s + cycle_s) > period_s:
            return now_s
        ahead_s = max(1, math.ceil((now_s - last_s) / period_s)) * period_s
        return last_s + ahead_s if first_s + ahead_s <= now_s + cycle_s else now_s
