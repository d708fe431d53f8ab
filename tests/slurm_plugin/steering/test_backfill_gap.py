"""Leases and factors that are written again wait for a gap between backfill cycles, requeues for new priorities."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from sched_policy.plan import Plan, Preemption, Score
from slurm_plugin.client.changes import AttachReservation, Change, CreateReservation, RequeueJob, SetSiteFactor
from slurm_plugin.client.records import ControllerLoad
from slurm_plugin.steering.backpressure import MOST_PUT_OFF, BackfillGap, Recalculations, split
from tests.slurm_kit import FakeSlurm, record
from tests.slurm_plugin.steering.test_controller import NOW_S, asking, controller

YIELDS_AFTER_S = 2.0
BUSY = ControllerLoad(1, 0, 0.0, 5.0, 0, backfills=True)
SHORT = replace(BUSY, backfill_last_cycle_s=1.0)
IDLE = replace(BUSY, backfills=False)


class Loads:
    """What slurmctld tells, one after the other, the last for ever; pauses take no time."""

    def __init__(self, *loads: ControllerLoad) -> None:
        self.loads = list(loads)
        self.paused_s = 0.0

    def load(self) -> ControllerLoad:
        return self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]

    def pause(self, seconds: float) -> None:
        self.paused_s += seconds


def gap(loads: Loads) -> BackfillGap:
    return BackfillGap(loads.load, loads.pause)


def test_nothing_waits_while_no_cycle_runs_or_cycles_keep_their_locks() -> None:
    for load in (IDLE, SHORT):
        loads = Loads(load)
        assert gap(loads).is_open(YIELDS_AFTER_S)
        assert loads.paused_s == 0.0


def test_the_end_of_a_cycle_is_waited_for() -> None:
    loads = Loads(BUSY, BUSY, IDLE)
    assert gap(loads).is_open(YIELDS_AFTER_S)
    assert loads.paused_s == 2.0


def test_a_cycle_without_end_puts_changes_off_a_bounded_number_of_times() -> None:
    loads = Loads(BUSY)
    waits = gap(loads)
    assert [waits.is_open(YIELDS_AFTER_S) for _ in range(MOST_PUT_OFF + 2)] == [*[False] * MOST_PUT_OFF, True, False]
    assert loads.paused_s == (MOST_PUT_OFF + 1) * 5.0


def test_what_waits_for_the_gap() -> None:
    jobs = {1: record(1, site_factor=300), 2: record(2, site_factor=0)}
    again, new = SetSiteFactor(1, 300), SetSiteFactor(2, 300)
    create = CreateReservation("explsched_1", 0.0, 2, ("n1",), ("ada",), "main")
    changes: list[Change] = [again, create, new, AttachReservation(1, "explsched_1"), RequeueJob(3)]
    at_once, in_gap = split(changes, jobs)
    assert at_once == (new, RequeueJob(3))
    assert in_gap == (again, create, AttachReservation(1, "explsched_1"))


def test_a_new_order_waits_for_the_gap_but_not_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = tuple(Score(job_id, -job_id, "") for job_id in (1, 2))
    for loads, waited_s in ((Loads(BUSY, BUSY, IDLE), 2.0), (Loads(BUSY), 5.0)):
        slurm = FakeSlurm((asking(1, natives=(50,), site_factor=0, priority=50), asking(2)))
        daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores))
        monkeypatch.setattr(daemon, "_gap", gap(loads))
        daemon.reconcile(NOW_S)
        assert loads.paused_s == waited_s
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
    monkeypatch.setattr(slurm, "load", loads.load)
    monkeypatch.setattr("slurm_plugin.steering.backpressure.time.sleep", loads.pause)
    daemon = controller(slurm, tmp_path, monkeypatch, Plan(scores=scores[:1]))
    monkeypatch.setattr(daemon, "_gap", gap(loads))
    slurm.known = {job.job_id: job for job in right}
    daemon.reconcile(NOW_S)
    assert slurm.applied == []
    slurm.known = {job.job_id: job for job in stale}
    daemon.reconcile(NOW_S)
    assert slurm.applied == []  # a cycle is at work
    loads.loads = [IDLE]
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
    loop.reconcile(NOW_S)
    slurm.set(7, fair_share=2, natives=(60,))
    loop.reconcile(NOW_S + 15)  # priorities were computed since the last look
    assert RequeueJob(5) not in loop.decide(NOW_S + 300).changes
    assert RequeueJob(5) in loop.decide(NOW_S + 316).changes
