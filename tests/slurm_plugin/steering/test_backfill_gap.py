"""Leases and factors that are written again wait for a gap between backfill cycles, requeues for new priorities."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from sched_policy.plan import Plan, Preemption, Score
from slurm_plugin.client.changes import (
    AttachReservation,
    Change,
    CreateReservation,
    RequeueJob,
    SetSiteFactor,
    SignalJob,
)
from slurm_plugin.client.records import ControllerLoad
from slurm_plugin.steering.backpressure import (
    MOST_PUT_OFF,
    BackfillGap,
    BackfillState,
    CycleTimes,
    Gap,
    Recalculations,
)
from tests.slurm_kit import FakeSlurm, record
from tests.slurm_plugin.steering.test_controller import NOW_S, asking, controller

TIMES = CycleTimes(yields_after_s=2.0, rests_s=30.0)
BUSY = ControllerLoad(1, 0.0, 5.0, 0, backfills=True, backfill_began_s=NOW_S - 10)
SHORT = replace(BUSY, backfill_last_cycle_s=1.0, backfill_began_s=NOW_S - 1)
JUST_ENDED = replace(BUSY, backfills=False)
LONG_OVER = replace(JUST_ENDED, backfill_began_s=NOW_S - 100)


class Loads:
    """What slurmctld tells, one after the other, the last for ever; and a clock."""

    def __init__(self, *loads: ControllerLoad, now_s: float = NOW_S) -> None:
        self.loads = list(loads)
        self.now_s = now_s
        self.asked = 0

    def load(self) -> ControllerLoad:
        self.asked += 1
        return self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]


def gap(loads: Loads) -> BackfillGap:
    return BackfillGap(loads.load, lambda: loads.now_s)


def made_of(loads: Loads, _load: object) -> BackfillGap:
    """A gap that sees these loads, whatever the daemon would have it see."""
    return gap(loads)


@pytest.mark.parametrize(
    ("load", "backfill"),
    [
        (SHORT, BackfillState.RESTS),
        (replace(SHORT, backfills=False), BackfillState.RESTS),
        (BUSY, BackfillState.WORKS),
        (
            replace(BUSY, backfill_last_cycle_s=0.0),
            BackfillState.WORKS,
        ),  # statistics were reset, but it has worked long
        (JUST_ENDED, BackfillState.RESTS),
        (LONG_OVER, BackfillState.IS_DUE),
    ],
)
def test_what_slurm_tells_of_a_cycle_that_lets_go_of_its_locks(load: ControllerLoad, backfill: BackfillState) -> None:
    assert gap(Loads(load)).of_pass(TIMES).backfill is backfill


def test_backfill_idles_where_no_cycle_has_begun_for_longer_than_it_rests() -> None:
    loads = Loads(LONG_OVER)
    waits = gap(loads)
    waits.note(1)
    found = []
    for _ in range(3):
        found.append((waits.of_pass(TIMES).backfill, waits.has_opened(TIMES)))
        loads.now_s += 20.0
    assert found == [(BackfillState.IS_DUE, False), (BackfillState.IS_DUE, False), (BackfillState.IDLES, False)]
    assert waits.has_opened(TIMES)


def test_a_cycle_that_was_seen_to_end_is_followed_by_a_rest_from_then_on() -> None:
    """How long it slept is not told: only who has seen it at work knows that it ended late."""
    late = {"backfill_began_s": NOW_S - 60}
    assert gap(Loads(replace(JUST_ENDED, **late))).of_pass(TIMES).backfill is BackfillState.IS_DUE
    loads = Loads(replace(BUSY, **late), replace(JUST_ENDED, **late))
    waits = gap(loads)
    assert waits.of_pass(TIMES).backfill is BackfillState.WORKS
    loads.now_s += 1
    assert waits.of_pass(TIMES).is_open
    loads.now_s += 28
    assert waits.of_pass(TIMES).is_open
    loads.now_s += 1
    assert waits.of_pass(TIMES).backfill is BackfillState.IS_DUE


@pytest.mark.parametrize("ahead_s", [-600.0, 600.0])
@pytest.mark.parametrize(("load", "backfill"), [(JUST_ENDED, BackfillState.RESTS), (LONG_OVER, BackfillState.IS_DUE)])
def test_cycles_are_timed_by_slurms_clock(load: ControllerLoad, backfill: BackfillState, ahead_s: float) -> None:
    loads = Loads(replace(load, time_s=NOW_S), now_s=NOW_S + ahead_s)
    assert gap(loads).of_pass(TIMES).backfill is backfill


def test_statistics_that_are_reset_do_not_make_cycles_short() -> None:
    waits = gap(Loads(JUST_ENDED, replace(LONG_OVER, backfill_last_cycle_s=0.0)))
    assert waits.of_pass(TIMES).is_open
    assert waits.of_pass(TIMES).backfill is BackfillState.IS_DUE


def test_a_gap_is_awaited_only_after_something_was_put_off_and_asked_for_once_a_second() -> None:
    loads = Loads(BUSY)
    waits = gap(loads)
    waits.note(0)
    assert not waits.has_opened(TIMES)
    assert loads.asked == 0
    waits.note(3)
    assert not waits.has_opened(TIMES)
    loads.loads = [JUST_ENDED]
    assert not waits.has_opened(TIMES)
    loads.now_s += 1
    assert waits.has_opened(TIMES)
    assert loads.asked == 2


def test_a_cycle_without_end_puts_changes_off_a_bounded_number_of_times() -> None:
    waits = gap(Loads(BUSY))
    opened = []
    for _ in range(MOST_PUT_OFF + 2):
        opened.append(waits.of_pass(TIMES).is_open)
        waits.note(0 if opened[-1] else 1)
    assert opened == [*[False] * MOST_PUT_OFF, True, False]


AGAIN, NEW, LATER = SetSiteFactor(1, 300), SetSiteFactor(2, 300), SetSiteFactor(3, 300)
CREATE = CreateReservation("explsched_1", 0.0, 2, ("n1",), ("ada",), "main")
ATTACH = AttachReservation(1, "explsched_1")


@pytest.mark.parametrize(
    ("now", "for_now"),
    [
        (Gap(5.0), (AGAIN, CREATE, NEW, LATER, ATTACH)),
        (Gap(5.0, BackfillState.WORKS), (LATER,)),
        (Gap(5.0, BackfillState.IS_DUE), (CREATE, ATTACH)),
        (Gap(5.0, BackfillState.IDLES), (AGAIN, CREATE, ATTACH)),  # the first one calls the cycle forth
    ],
)
def test_what_waits_for_the_gap(now: Gap, for_now: tuple[Change, ...]) -> None:
    """Of a job that was submitted since its cycle began backfill does not know: it cannot put its priority back."""
    jobs = {1: record(1, site_factor=300), 2: record(2, site_factor=0), 3: record(3, site_factor=0, submit_s=6.0)}
    jobs = {job_id: replace(job, submit_s=6.0 if job_id == 3 else 1.0) for job_id, job in jobs.items()}
    assert now.timely((AGAIN, CREATE, NEW, LATER, ATTACH), jobs) == for_now


def test_new_factors_do_not_wait_where_somebody_makes_room() -> None:
    jobs = {1: record(1, site_factor=300), 2: record(2, site_factor=0)}
    at_work = Gap(NOW_S, BackfillState.WORKS)
    assert at_work.timely((AGAIN, NEW, RequeueJob(3)), jobs) == (NEW, RequeueJob(3))


def test_a_new_order_waits_for_the_gap_and_is_awaited_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = tuple(Score(job_id, -job_id, "") for job_id in (1, 2))
    for loads, passes in ((Loads(BUSY, JUST_ENDED), 1), (Loads(BUSY), MOST_PUT_OFF)):
        slurm = FakeSlurm((asking(1, natives=(50,), site_factor=0, priority=50), asking(2)))
        slurm.known = {job_id: replace(job, submit_s=0.0, eligible_s=0.0) for job_id, job in slurm.known.items()}
        monkeypatch.setattr("slurm_plugin.steering.controller.BackfillGap", partial(made_of, loads))
        daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores))
        for _ in range(passes):
            assert daemon.reconcile(NOW_S).changes == ()
            assert daemon.waits_for_gap
            assert slurm.carried_out == []
            loads.now_s += 1
        assert daemon.is_awaited(NOW_S) == (passes == 1)
        daemon.reconcile(NOW_S)
        assert not daemon.waits_for_gap
        assert {change.job_id for change in slurm.carried_out if isinstance(change, SetSiteFactor)} == {1, 2}


def test_a_pass_writes_again_what_is_not_in_force_only_in_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backfill has put an older priority back: squeue shows the site factor, and another priority."""
    scores = tuple(Score(job_id, -job_id, "") for job_id in (1, 2))
    slurm = FakeSlurm((asking(1, natives=(50,), site_factor=0, priority=50), asking(2)))
    daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores))
    first = daemon.decide(NOW_S).changes
    factor = next(c.site_factor for c in first if isinstance(c, SetSiteFactor) and c.job_id == 1)
    right = [asking(1, natives=(50,), site_factor=factor, priority=50 + factor)]
    stale = [replace(right[0], priority=50)]
    loads = Loads(BUSY)
    monkeypatch.setattr("slurm_plugin.steering.controller.BackfillGap", partial(made_of, loads))
    daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores[:1]))
    slurm.known = {job.job_id: job for job in right}
    daemon.reconcile(NOW_S)
    assert slurm.applied == []
    slurm.known = {job.job_id: job for job in stale}
    daemon.reconcile(NOW_S)
    assert slurm.applied == []  # a cycle is at work
    loads.loads = [JUST_ENDED]
    daemon.reconcile(NOW_S)
    assert slurm.applied == [(SetSiteFactor(1, factor),)]


PERIOD_S, CYCLE_S = 300.0, 30.0


def looked(*looks: tuple[float, tuple[int, ...], int | None]) -> Recalculations:
    """After looks at three jobs: (moment, their natives, their fair share)."""
    found = Recalculations()
    for now_s, natives, fair_share in looks:
        jobs = (record(job_id, natives=(native,), fair_share=fair_share) for job_id, native in enumerate(natives, 1))
        found.note(jobs, now_s)
    return found


def test_the_moment_of_new_priorities_is_learnt_from_most_that_change_at_once() -> None:
    found = looked((0, (5, 5, 5), None), (15, (5, 5, 5), None), (30, (8, 8, 8), None), (45, (9, 8, 8), None))
    clear = [found.clear_from_s(now_s, PERIOD_S, CYCLE_S) for now_s in (45, 284, 285, 300, 330, 331, 585)]
    assert clear == [45, 284, 330, 330, 330, 331, 630]


def test_a_changed_fair_share_tells_it_as_well() -> None:
    found = looked((0, (5, 5, 5), 100), (15, (6, 5, 5), 101))
    assert found.clear_from_s(290, PERIOD_S, CYCLE_S) == 315


def test_a_moment_that_is_not_known_well_puts_nothing_off() -> None:
    for found in (looked(), looked((0, (5, 5, 5), 7)), looked((0, (5, 5, 5), 7), (140, (8, 8, 8), 8))):
        assert found.clear_from_s(300, PERIOD_S, CYCLE_S) == 300
    assert looked((0, (5, 5, 5), 7), (15, (8, 8, 8), 8)).clear_from_s(60, 60.0, CYCLE_S) == 60


def test_a_victim_stays_until_slurm_has_computed_priorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A victim that has saved, for a job that others might pass when fair share is computed within the next cycle."""
    victim = record(5, state="RUNNING", start_s=100.0, node_names=("n1",), gpu_nodes=(("n1", 4),), requeues=True)
    victim = replace(victim, comment="explsched:checkpoint=USR1")
    waiting = record(7, reason="Resources", natives=(50,), fair_share=1)
    slurm = FakeSlurm((victim, waiting), settings={"PriorityCalcPeriod": "00:05:00"})
    loop = controller(slurm, tmp_path, monkeypatch, Plan(preemptions=(Preemption(5, "why", 7),)))
    slurm.refuses = lambda change: isinstance(change, SignalJob)
    loop.reconcile(NOW_S)
    slurm.set(7, fair_share=2, natives=(60,))
    loop.reconcile(NOW_S + 15)  # priorities were computed since the last look
    slurm.refuses = lambda _change: False
    loop.reconcile(NOW_S + 180)
    assert RequeueJob(5) not in loop.decide(NOW_S + 300).changes
    assert RequeueJob(5) in loop.decide(NOW_S + 316).changes
