"""Trainings of a sweep are known after their end, until none of the sweep has been there for a day."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from sched_policy.model import Direction, Exploration, Job, ProgressPoint
from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.sweep_record import Note, ended_before
from slurm_plugin.observation.trainings import LASTS_S, MOST_ENDED, GrantedSteps, SeenTraining, SweepTrainings
from tests.sched_policy.builders import job
from tests.slurm_kit import record

NOW_S = 1_000_000.0


class Daemon:
    """What the daemon does with its memory, pass after pass."""

    def __init__(self, spool: Path) -> None:
        self._spool = ProgressSpool(spool)
        self._trainings = SweepTrainings()

    def adopts(self, ended: dict[int, SeenTraining]) -> None:
        self._trainings.adopt(ended)

    def sees(self, now_s: float, *records: SlurmJob) -> Observation:
        remembered = Remembered(trainings=self._trainings.seen)
        seen = observe(ClusterRecords((), records, ()), self._spool, now_s, remembered=remembered)
        uids = {job_id: one.uid for job_id, one in seen.jobs.items()}
        self._trainings.note(seen.snapshot.jobs, seen.snapshot.ended, uids, now_s)
        return seen


def training(job_id: int, sweep: str = "s", state: str = "RUNNING") -> SlurmJob:
    started = {"start_s": NOW_S - 100} if state == "RUNNING" else {}
    return record(job_id, state=state, comment=f"explsched:sweep={sweep}", uid=os.getuid(), **started)


def reports(spool: Path, job_id: int, *values: float) -> None:
    lines = [{"time_s": NOW_S - 100, "restart": 0, "event": "start"}]
    lines += [
        {"time_s": NOW_S - 90 + step, "restart": 0, "step": step, "metric": "loss", "value": value}
        for step, value in enumerate(values)
    ]
    (spool / f"{job_id}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_last_reports_of_an_ended_training_are_known(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    reports(tmp_path, 1, 3.0, 2.0)
    assert daemon.sees(NOW_S, training(1), training(2, state="PENDING")).snapshot.ended == ()
    reports(tmp_path, 1, 3.0, 2.0, 1.0)  # after the last pass that saw it
    for later_s in (15.0, 30.0):
        (ended,) = daemon.sees(NOW_S + later_s, training(2, state="PENDING")).snapshot.ended
        assert (ended.job_id, [point.value for point in ended.points]) == (1, [3.0, 2.0, 1.0])
        assert ended.executed_s(NOW_S + later_s) == 100.0


@pytest.mark.parametrize(("end", "expected"), [({"status": 0}, True), ({"status": 1}, False), (None, False)])
def test_a_training_that_ended_early_by_itself_has_completed(
    tmp_path: Path, end: dict[str, int] | None, *, expected: bool
) -> None:
    daemon = Daemon(tmp_path)
    reports(tmp_path, 1, 3.0, 2.0)
    daemon.sees(NOW_S, training(1), training(2, state="PENDING"))
    if end is not None:
        with (tmp_path / "1.jsonl").open("a") as file:
            file.write(json.dumps({"time_s": NOW_S - 80, "restart": 0, "event": "end", **end}) + "\n")
    (ended,) = daemon.sees(NOW_S + 15, training(2, state="PENDING")).snapshot.ended
    assert ended.has_completed is expected


@pytest.mark.parametrize(("later_s", "known"), [(0.0, [1, 2]), (LASTS_S - 15, [1, 2]), (LASTS_S, [])])
def test_a_sweep_goes_on_after_a_time_without_trainings_but_not_days_later(
    tmp_path: Path, later_s: float, known: list[int]
) -> None:
    """The trials of a search end together, and the next ones are submitted, or start to wait, after a pass."""
    daemon, other = Daemon(tmp_path), training(3, "another")
    reports(tmp_path, 1, 3.0, 2.0)
    daemon.sees(NOW_S, training(1), training(2), other)
    assert [job.job_id for job in daemon.sees(NOW_S + 15, training(2), other).snapshot.ended] == [1]
    assert daemon.sees(NOW_S + 30, other).snapshot.ended == ()  # no pass reads the reports of what nobody waits for
    daemon.sees(NOW_S + 30 + later_s, other)
    ended = daemon.sees(NOW_S + 45 + later_s, other, training(4, state="PENDING")).snapshot.ended
    assert [job.job_id for job in ended] == known
    assert [[point.value for point in job.points] for job in ended if job.job_id == 1] == [[3.0, 2.0]] * bool(known)


def test_a_training_that_left_its_sweep_is_none_of_it(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.sees(NOW_S, training(1), training(2))
    daemon.sees(NOW_S + 15, training(1), record(2, state="RUNNING", uid=os.getuid()))
    assert daemon.sees(NOW_S + 30, training(1)).snapshot.ended == ()


@pytest.mark.parametrize(("direction", "best"), [(Direction.MIN, 7), (Direction.MAX, 9)])
def test_of_a_sweep_that_goes_on_for_weeks_the_latest_and_the_best_are_known(direction: Direction, best: int) -> None:
    told = Exploration("s", direction=direction)
    value = {7: -1.0, 9: 1.0}
    ended = [job(n, exploration=told, points=(ProgressPoint(1, 1.0, value.get(n, 0.0)),)) for n in range(1, 4201)]
    waits, trainings = job(5000, exploration=told), SweepTrainings()
    trainings.adopt({one.job_id: SeenTraining(one, 0, NOW_S) for one in ended})
    trainings.note([waits], ended, {5000: 0}, NOW_S)
    assert set(trainings.seen) == {best, *range(2153, 4201), 5000}
    trainings.note([waits], [one.job for one in trainings.seen.values() if one.job is not waits], {5000: 0}, NOW_S)
    assert best in trainings.seen


def test_of_a_users_sweeps_without_trainings_the_latest_are_known() -> None:
    gone = [job(n, exploration=Exploration(f"s{n % 50}")) for n in range(1, 4201)]
    trainings = SweepTrainings()
    trainings.adopt({one.job_id: SeenTraining(one, 0, NOW_S) for one in gone})
    trainings.note([], [], {}, NOW_S)
    assert {*range(4201 - MOST_ENDED // 2, 4201)} <= trainings.seen.keys() and len(trainings.seen) < MOST_ENDED


def test_the_best_of_each_sweep_without_trainings_is_known() -> None:
    """Curves were dropped first, so the oldest training was taken for the best, of all sweeps together."""
    ended = [
        job(n, exploration=Exploration(f"s{n % 2}"), points=(ProgressPoint(1, 1.0, -float(n in (7, 10))),))
        for n in range(1, 4201)
    ]
    trainings = SweepTrainings()
    trainings.adopt({one.job_id: SeenTraining(one, 0, NOW_S) for one in ended})
    for _ in range(2):
        trainings.note([], [], {}, NOW_S)
        assert set(trainings.seen) == {7, 10, *range(4201 - MOST_ENDED // 2, 4201)}


def test_of_very_many_sweeps_without_trainings_the_latest_are_known() -> None:
    gone = [job(n, exploration=Exploration(f"s{n}")) for n in range(1, 10_001)]
    trainings = SweepTrainings()
    trainings.adopt({one.job_id: SeenTraining(one, 0, NOW_S) for one in gone})
    trainings.note([], [], {}, NOW_S)
    assert set(trainings.seen) == {*range(10_001 - MOST_ENDED // 2, 10_001)}


@pytest.mark.parametrize(("values", "left"), [((3.0, 1.0, 2.0), [1.0]), ((3.0, *[math.inf] * 5), [])])
def test_of_a_sweep_without_trainings_the_best_point_of_each_is_kept(
    values: tuple[float, ...], left: list[float]
) -> None:
    """None of one that has diverged: until its reports are read again it would be the one to beat."""
    points = tuple(ProgressPoint(step, float(step), value) for step, value in enumerate(values, 1))
    ended, trainings = job(1, exploration=Exploration("s"), points=points), SweepTrainings()
    trainings.adopt({1: SeenTraining(ended, 0, NOW_S)})
    for _ in range(2):
        trainings.note([], [], {}, NOW_S)
        assert [point.value for point in trainings.seen[1].job.points] == left


def test_a_requeued_training_has_not_ended(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.sees(NOW_S, training(1), training(2))
    assert daemon.sees(NOW_S + 15, training(1, state="PENDING"), training(2)).snapshot.ended == ()


def note(job_id: int, time_s: float, what: Any = "joined", *, sweep: str = "s", submit_s: float = NOW_S - 200) -> Note:
    return Note(time_s, what, job_id, "ada", os.getuid(), sweep, submit_s=submit_s, gpus=4)


def adopted(spool: Path, notes: list[Note], *records: SlurmJob) -> dict[int, SeenTraining]:
    return ended_before(notes, records, ProgressSpool(spool), "user", NOW_S)


def test_a_daemon_that_starts_knows_what_the_last_one_knew(tmp_path: Path) -> None:
    last, new = Daemon(tmp_path), Daemon(tmp_path)
    both = training(1), training(2, state="PENDING")
    reports(tmp_path, 1, 3.0, 2.0)
    last.sees(NOW_S - 88, *both)
    left = training(2, state="PENDING")
    knew = last.sees(NOW_S, left)
    notes = [note(1, NOW_S - 100), note(2, NOW_S - 100)]
    new.adopts(adopted(tmp_path, notes, left))
    (one,) = knew.snapshot.ended
    (same,) = new.sees(NOW_S, left).snapshot.ended
    assert one.points and (same.job_id, same.user, same.scope) == (1, one.user, one.scope)
    assert (same.points, same.total_steps, same.request.total) == (one.points, one.total_steps, one.request.total)
    assert same.exploration == one.exploration
    assert same.executed_s(NOW_S) == 11.0  # from its first line to its last: what Slurm knew is forgotten


def test_another_sweep_of_that_name_long_ago_is_none_of_this_one(tmp_path: Path) -> None:
    old_s, own_s = NOW_S - 4 * LASTS_S, NOW_S - LASTS_S
    old = [note(1, old_s, submit_s=old_s - 100), note(2, old_s + 1000, "stopped", submit_s=old_s - 100)]
    # 3 ended within a day before the present ones came, and 4, as its reports tell, before 3 came.
    own = [note(3, own_s, submit_s=own_s - 99), note(4, own_s - 110 - LASTS_S, submit_s=own_s - 120 - LASTS_S)]
    lines = [{"time_s": own_s - at_s - LASTS_S, "event": what} for what, at_s in (("start", 105), ("end", 95))]
    (tmp_path / "4.jsonl").write_text("".join(json.dumps({**line, "restart": 0}) + "\n" for line in lines))
    present = record(5, comment="explsched:sweep=s", uid=os.getuid(), submit_s=NOW_S - 60)
    assert list(adopted(tmp_path, [*old, *own], present)) == [4, 3]


def test_who_is_there_or_of_another_sweep_or_user_is_not_adopted(tmp_path: Path) -> None:
    notes = [note(1, NOW_S), note(2, NOW_S), note(3, NOW_S, sweep="t")]
    others = record(4, comment="explsched:sweep=t", uid=os.getuid() + 1)
    assert sorted(adopted(tmp_path, notes, training(1), others)) == [2]
    assert adopted(tmp_path, notes, record(1, comment="explsched:sweep=")) == {}
    assert sorted(adopted(tmp_path, notes, training(1), training(2, state="COMPLETED"))) == [2]


def test_a_later_component_of_a_heterogeneous_job_makes_no_sweep(tmp_path: Path) -> None:
    component = {"comment": "explsched:sweep=s", "uid": os.getuid(), "het_job_id": 5, "submit_s": NOW_S - 60}
    notes = [note(1, NOW_S)]
    assert sorted(adopted(tmp_path, notes, record(5, **component))) == [1]
    assert adopted(tmp_path, notes, record(6, **component)) == {}


def told(job_id: int, step: int, granted_step: float, *, allows_preemption: bool = True) -> Job:
    """A training as a pass sees it, when it last reported at this step."""
    points = (ProgressPoint(step, 10.0 * step, 0.5),) if step else ()
    signal = "USR1" if allows_preemption else None
    return job(
        job_id, exploration=Exploration(sweep="s", checkpoint_signal=signal), points=points, granted_step=granted_step
    )


def test_a_training_is_granted_what_the_last_decision_saw_of_it_if_that_let_it_run_on() -> None:
    waits, runs = record(1, state="PENDING"), record(1, state="RUNNING")
    granted = GrantedSteps()
    assert granted.of([waits]) == {1: 0.0}
    granted.note([told(1, 0, 0.0)], frozenset())
    assert granted.of([runs]) == {1: 0.0}  # it has reported since, and nobody has judged that
    granted.note([told(1, 5, 0.0)], frozenset({1}))
    assert granted.of([runs]) == {1: 0.0}
    granted.note([told(1, 7, 0.0)], frozenset())
    assert granted.of([runs]) == {1: 7.0}
    granted.note([told(1, 9, 7.0)], frozenset({1}))
    assert granted.of([runs, record(2, state="RUNNING")]) == {1: 7.0, 2: 0.0}
    granted.note([told(1, 9, 7.0, allows_preemption=False)], frozenset({1}))
    assert granted.of([runs]) == {1: 9.0}  # it cannot be paused, so it runs on


def test_what_runs_when_a_daemon_starts_has_been_let_run_on_and_what_is_paused_has_not() -> None:
    granted = GrantedSteps()
    found = [record(1, state="RUNNING"), record(2, state="PENDING", restarts=1)]
    assert granted.of(found) == {1: math.inf, 2: 0.0}
    granted.note([told(1, 6, math.inf), told(2, 6, 0.0)], frozenset({1, 2}))
    assert 5.0 < granted.of(found)[1] < 6.0  # promoted from all rungs below the one at which it is held back
    assert granted.of(found)[2] == 0.0
