"""What sweeps want of a snapshot's jobs, and that the policy carries it out."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from explsched.errors import PolicyError
from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import Absence, Direction, Exploration, Job, Node, ProgressPoint
from sched_policy.snapshot import Snapshot
from sched_policy.sweep import choice as choice_module
from sched_policy.sweep.adaptive import AdaptiveHalving
from sched_policy.sweep.choice import Sweeps
from sched_policy.sweep.trials import Sweep, SweepAction, SweepDecision, Verdict
from simulation.strategies import Asha, Hyperband, MedianStop
from tests.sched_policy.builders import NOW_S, job, nodes, row, running, snapshot

POLICY = row("explsched", catalog.PolicyOptions(objective="best"))


def consent(sweep: str = "digits", **fields: Any) -> Exploration:
    return Exploration(sweep=sweep, checkpoint_signal="USR1", may_stop=True, **fields)


def reports(final: float, count: int, total: int = 54) -> tuple[ProgressPoint, ...]:
    return tuple(ProgressPoint(s, 10.0 * s, final + (1 - final) * (s**-0.5 - total**-0.5)) for s in range(1, count + 1))


def member(job_id: int, **fields: Any) -> Job:
    return job(job_id, **{"exploration": consent(), "total_steps": 54, **fields})


def test_free_gpus_take_new_trainings_of_both_users_alike() -> None:
    jobs = [member(i, user="ada" if i < 20 else "bob") for i in (*range(1, 11), *range(20, 30))]
    plan = checked_plan(POLICY, snapshot(*jobs))
    started = [start.job_id for start in plan.starts]
    assert len(started) == 8
    assert sum(job_id < 20 for job_id in started) == 4


def test_what_one_user_cannot_use_goes_to_the_other() -> None:
    jobs = [member(1, user="ada"), *(member(i, user="bob") for i in range(20, 30))]
    started = [start.job_id for start in checked_plan(POLICY, snapshot(*jobs)).starts]
    assert len(started) == 8 and 1 in started


def test_asha_holds_a_paused_training_back_although_gpus_are_free() -> None:
    asha = row("explsched", catalog.PolicyOptions(objective="best", sweep_strategy="asha"))
    paused = [member(i, points=reports(0.1 * i, 2), restarts=1) for i in range(1, 7)]
    busy = running(9, "n1", exploration=consent(), total_steps=54)
    plan = checked_plan(asha, snapshot(*paused, busy))
    assert {start.job_id for start in plan.starts} == {1, 2}
    assert "not among the best" in next(score.reason for score in plan.scores if score.job_id == 6)
    assert plan.rests == {3, 4, 5, 6}


@pytest.mark.parametrize(
    "fields", [{"is_overdue": True}, {"restarts": 0}, {"exploration": Exploration(sweep="digits", may_stop=True)}]
)
def test_nobody_rests_without_consent_nor_for_ever(fields: dict[str, Any]) -> None:
    asha = row("explsched", catalog.PolicyOptions(objective="best", sweep_strategy="asha"))
    paused = [member(i, points=reports(0.1 * i, 2), **{"restarts": 1, **fields}) for i in range(1, 7)]
    assert not checked_plan(asha, snapshot(*paused)).rests


def test_a_training_that_is_behind_makes_room_for_new_ones() -> None:
    asha = row("explsched", catalog.PolicyOptions(objective="best", sweep_strategy="asha"))
    behind = [running(i, "n1", exploration=consent(), total_steps=54, points=reports(0.1 * i, 2)) for i in range(1, 5)]
    young = running(5, "n2", exploration=consent(), total_steps=54, points=reports(0.9, 2), first_report_s=None)
    plan = checked_plan(asha, snapshot(*behind, young))
    assert {preemption.job_id for preemption in plan.preemptions} == {2, 3, 4}  # 5 has not reported in this run yet


def test_a_sweep_that_is_done_stops_its_waiting_trainings_too() -> None:
    ended = [member(1, points=reports(0.05, 54), exploration=consent())]
    flat = tuple(ProgressPoint(s, 10.0 * s, 1.0) for s in range(1, 54))
    rest = [member(i, points=flat, restarts=1) for i in range(2, 12)]
    seen = Snapshot.of(NOW_S, nodes(), rest, ended)
    plan = checked_plan(POLICY, seen)
    assert {stop.job_id for stop in plan.stops} == set(range(2, 12))
    assert not plan.starts


def test_room_is_made_for_the_next_task_of_an_array() -> None:
    asha = row("explsched", catalog.PolicyOptions(objective="best", sweep_strategy="asha"))
    behind = [
        running(i, f"n{1 + (i > 4)}", exploration=consent(), total_steps=54, points=reports(0.1 * i, 2))
        for i in range(1, 9)
    ]
    plan = checked_plan(asha, snapshot(*behind, member(9, array_tasks=16)))
    assert {preemption.job_id for preemption in plan.preemptions} == {3, 4, 5, 6, 7, 8}
    assert "has not reached the first rung yet" in next(score.reason for score in plan.scores if score.job_id == 9)


def test_a_sweep_knows_that_a_training_has_completed_before_its_last_step() -> None:
    ended = [member(1, points=reports(0.05, 27))]
    rest = [member(i, points=reports(0.1 * i, 5), restarts=1, granted_step=0.0) for i in (2, 3)]
    asha = Sweeps(Asha())
    assert not asha.choose(Snapshot.of(NOW_S, nodes(), rest, ended)).stops  # it may have failed
    completed = [replace(one, has_completed=True) for one in ended]
    assert {stop.job_id for stop in asha.choose(Snapshot.of(NOW_S, nodes(), rest, completed)).stops} == {2, 3}


def test_an_array_is_never_stopped_its_tasks_that_run_would_end_with_it() -> None:
    flat = tuple(ProgressPoint(s, 10.0 * s, 1.0) for s in range(1, 54))
    ended = [member(1, points=reports(0.05, 54)), *(member(i, points=flat) for i in range(2, 12))]
    waiting = [member(20, array_tasks=5, points=flat, restarts=1), member(21, points=flat, restarts=1)]
    plan = checked_plan(POLICY, Snapshot.of(NOW_S, nodes(), waiting, ended))
    assert {stop.job_id for stop in plan.stops} == {21}
    assert {start.job_id for start in plan.starts} == {20}


def test_values_that_are_no_numbers_are_passed_over_and_steps_that_go_back_too() -> None:
    odd = (
        ProgressPoint(1, 10.0, 0.9),
        ProgressPoint(2, 20.0, math.nan),
        ProgressPoint(3, 30.0, -math.inf),
        ProgressPoint(2, 40.0, 0.1),
        ProgressPoint(4, 50.0, 0.8),
    )
    jobs = [running(1, "n1", exploration=consent(), total_steps=54, points=odd), member(2)]
    choice = Sweeps(AdaptiveHalving()).choose(snapshot(*jobs))
    assert set(choice.wishes) == {1, 2}
    assert not choice.stops


NOT_NUMBERS = tuple(ProgressPoint(step, 10.0 * step, math.nan) for step in range(4, 27))
STRATEGIES = {"adaptive": AdaptiveHalving(), "asha": Asha(), "hyperband": Hyperband(), "median-stop": MedianStop()}


def going(job_id: int, *points: ProgressPoint) -> Job:
    return running(job_id, "n1", exploration=consent(), total_steps=54, points=points)


@pytest.mark.parametrize("begun", [(), reports(-5.0, 3)])
def test_a_diverged_training_does_not_keep_its_sweep_from_being_done(begun: tuple[ProgressPoint, ...]) -> None:
    """It has never reported a number, or had been the best before. Its steps go on."""
    ended = [member(i, points=reports(0.1 + 0.1 * i, 54)) for i in range(1, 6)]
    jobs = [going(6, *begun, *NOT_NUMBERS), going(7, *reports(0.9, 40)), going(8, *reports(0.9, 40))]
    choice = Sweeps(AdaptiveHalving()).choose(Snapshot.of(NOW_S, nodes(), jobs, ended))
    assert {stop.job_id for stop in choice.stops} == {6, 7, 8}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_diverged_training_goes_after_all_others(name: str) -> None:
    """Others go on, or it is at most compared with them; what it reported before does not make it the best."""
    others = [going(i, *reports(0.1 * i, 26)) for i in range(2, 8)]
    diverged = going(1, *reports(-5.0, 3), *NOT_NUMBERS)
    choice = Sweeps(STRATEGIES[name]).choose(snapshot(diverged, *others, on=nodes(1, 7)))
    place, best = choice.wishes[1].place, choice.wishes[2].place
    assert best == 0
    assert place is None or place == max(wish.place or 0 for wish in choice.wishes.values())
    assert "may win" not in choice.wishes[1].reason


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("last", [(27,), (26, 27)])
def test_a_training_is_not_stopped_for_a_report_from_which_it_may_recover(name: str, last: tuple[int, ...]) -> None:
    odd = tuple(ProgressPoint(step, 10.0 * step, math.nan) for step in last)
    ended = [member(i, points=reports(0.3 + 0.1 * i, 54)) for i in range(2, 8)]
    best = going(1, *reports(0.1, last[0] - 1), *odd)
    choice = Sweeps(STRATEGIES[name]).choose(Snapshot.of(NOW_S, nodes(), [best, going(9, *reports(0.9, 40))], ended))
    assert choice.wishes[1].place == 0
    assert 1 not in {stop.job_id for stop in choice.stops}
    recovered = replace(best, points=(*best.points, reports(0.1, 28)[-1]))
    clean = replace(best, points=tuple(point for point in recovered.points if math.isfinite(point.value)))
    decided = [Sweeps(STRATEGIES[name]).choose(Snapshot.of(NOW_S, nodes(), [job], ended)) for job in (recovered, clean)]
    assert decided[0] == decided[1]


def test_where_all_have_diverged_new_trainings_are_tried() -> None:
    diverged = [going(i, *reports(0.5, 3), *NOT_NUMBERS) for i in range(1, 9)]
    choice = Sweeps(AdaptiveHalving()).choose(snapshot(*diverged, member(9), member(10), on=nodes(1, 8)))
    assert choice.wishes[9].place is not None and choice.wishes[10].place is not None
    assert {preemption.beneficiary for preemption in choice.preemptions} >= {9, 10}


def test_a_metric_that_rises_is_read_the_other_way_round() -> None:
    def rising(job_id: int, final: float) -> Job:
        points = tuple(ProgressPoint(p.step, p.gpu_s, 1 - p.value) for p in reports(1 - final, 20))
        return member(job_id, points=points, restarts=1, exploration=consent(direction=Direction.MAX))

    jobs = [rising(1, 0.2), rising(2, 0.9), rising(3, 0.3)]
    assert checked_plan(POLICY, snapshot(*jobs, on=nodes(1, 1))).starts[0].job_id == 2


def test_two_metrics_under_one_name_of_sweep_are_two_sweeps() -> None:
    accuracy = consent(metric="accuracy", direction=Direction.MAX)
    mixed = [member(1, points=reports(0.5, 10), restarts=1), member(2, points=reports(0.1, 10), exploration=accuracy)]
    choice = Sweeps(AdaptiveHalving()).choose(snapshot(*mixed))
    assert set(choice.wishes) == {1, 2} and not choice.stops


def test_jobs_of_no_sweep_are_not_starved_by_a_large_one() -> None:
    jobs = [*(member(i) for i in range(1, 60)), *(job(i) for i in range(100, 110))]
    started = [start.job_id for start in checked_plan(POLICY, snapshot(*jobs)).starts]
    assert 0 < sum(job_id >= 100 for job_id in started) < 8


@pytest.mark.parametrize(("field", "said"), [("objective", "unknown objective"), ("sweep_strategy", "sweep strategy")])
def test_unknown_names_are_errors(field: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        catalog.build("explsched", catalog.PolicyOptions(**{field: "nonsense"}))


def test_ten_thousand_trainings_are_decided_with_one_verdict_each() -> None:
    points = reports(0.3, 20)
    jobs = [member(i, points=points[: i % 20], restarts=i % 2) for i in range(1, 10_001)]
    choice = Sweeps(AdaptiveHalving()).choose(snapshot(*jobs))
    assert len(choice.wishes) == 10_000


def test_of_a_hundred_thousand_trainings_the_first_are_weighed_and_the_rest_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choice_module, "MOST_FRESH", 50)
    ran = [member(i, points=reports(0.3, 20), restarts=1) for i in (500, 501)]
    choice = Sweeps(AdaptiveHalving()).choose(snapshot(*(member(i) for i in range(1, 101)), *ran))
    assert len(choice.wishes) == 102
    assert {i for i, wish in choice.wishes.items() if wish.place is None} == set(range(51, 101))
    assert "waits behind the first" in choice.wishes[51].reason


@pytest.mark.parametrize(
    ("fields", "makes_room"), [({}, True), ({"may_displace": False}, False), ({"scope": "bob"}, False)]
)
def test_room_is_made_only_for_jobs_that_would_start_then_and_in_one_scope(
    fields: dict[str, Any], *, makes_room: bool
) -> None:
    of_ada = {"exploration": consent(), "total_steps": 54, "user": "ada"}
    held = [running(i, "n1", **of_ada, points=reports(0.1 * i, 20), ran_s=3000.0) for i in range(1, 5)]
    new = [member(i, user="bob", **fields) for i in range(20, 24)]
    plan = checked_plan(POLICY, snapshot(*held, *new, on=nodes(1)))
    assert bool([p for p in plan.preemptions if p.beneficiary in range(20, 24)]) is makes_room


def test_each_victim_is_named_with_the_job_that_its_gpus_are_for() -> None:
    """Whether that one would start is looked at before a victim goes: nobody goes in the name of another."""
    of_ada = {"exploration": consent(), "total_steps": 54, "user": "ada"}
    held = [running(i, "n1", **of_ada, points=reports(0.1 * i, 20), ran_s=3000.0) for i in range(1, 5)]
    plan = checked_plan(POLICY, snapshot(*held, *(member(i, user="bob") for i in range(20, 24)), on=nodes(1)))
    assert sorted(str(p.beneficiary) for p in plan.preemptions) == ["20", "21"]


def test_who_rests_makes_room_by_name_as_long_as_somebody_waits_for_it() -> None:
    asha = row("explsched", catalog.PolicyOptions(objective="best", sweep_strategy="asha"))
    held = [running(i, "n1", exploration=consent(), total_steps=54, points=reports(0.1 * i, 2)) for i in range(1, 5)]
    plan = checked_plan(asha, snapshot(*held, member(20), member(21), on=nodes(1)))
    assert {preemption.job_id for preemption in plan.preemptions} == {2, 3, 4}
    assert sorted(str(preemption.beneficiary) for preemption in plan.preemptions) == ["20", "21", "None"]


class NewestFirst:
    """A strategy under which all run, the newest first."""

    name = "newest-first"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """All run."""
        newest_first = reversed(sweep.trials)
        return SweepDecision(tuple(Verdict(trial.trial_id, SweepAction.RUN, 1.0, "explored") for trial in newest_first))


def test_the_reason_of_a_preemption_is_no_reason_to_run() -> None:
    held = [running(i, "n1", exploration=consent(), total_steps=54, points=reports(0.1 * i, 2)) for i in range(1, 5)]
    choice = Sweeps(NewestFirst()).choose(snapshot(*held, member(20), on=nodes(1)))
    assert [preemption.reason for preemption in choice.preemptions] == ["makes room for job 20"]


MAIN, OTHER = frozenset({"main"}), frozenset({"other"})


@pytest.mark.parametrize(
    ("beside", "absences"),
    [
        ((), ()),
        ((Node("n2", 4, OTHER),), ()),
        ((Node("n2", 4, MAIN, schedulable=False),), ()),
        ((Node("n2", 4, MAIN),), (Absence(("n2",), NOW_S - 60, NOW_S + 600),)),
    ],
    ids=["none", "of another partition", "drained", "reserved for others"],
)
def test_room_is_made_though_there_are_idle_gpus_that_the_job_cannot_use(
    beside: tuple[Node, ...], absences: tuple[Absence, ...]
) -> None:
    held = [running(i, "n1", exploration=consent(), points=reports(0.1 * i, 2)) for i in range(1, 5)]
    seen = Snapshot.of(NOW_S, (*nodes(1), *beside), [*held, member(20)], absences=absences)
    assert [(p.job_id, p.beneficiary) for p in Sweeps(NewestFirst()).choose(seen).preemptions] == [(1, 20)]


@pytest.mark.parametrize("drained", [False, True])
def test_nobody_makes_room_where_only_gpus_of_a_drained_node_are_taken(*, drained: bool) -> None:
    held = [running(i, "n1", 2, exploration=consent(), points=reports(0.1 * i, 2)) for i in range(1, 4)]
    on = (*nodes(1, 8), Node("n2", 8, MAIN, schedulable=not drained))
    choice = Sweeps(NewestFirst()).choose(snapshot(*held, running(9, "n2", 2), member(20, gpus=2), on=on))
    assert choice.preemptions == ()


def test_only_those_make_room_whose_gpus_the_job_can_use() -> None:
    """Job 1 would be the first to go, but it runs in another partition."""
    told = {"exploration": consent(), "ran_s": 3000.0}
    there = [running(1, "n2", 2, partition="other", **told), *(running(i, "n1", 2, **told) for i in (2, 3))]
    on = (Node("n1", 4, MAIN), Node("n2", 2, OTHER))
    choice = Sweeps(NewestFirst()).choose(snapshot(*there, member(20, gpus=4), on=on))
    assert {(p.job_id, p.beneficiary) for p in choice.preemptions} == {(2, 20)}


class Watching:
    """A strategy that notes what it is asked."""

    name = "watching"

    def __init__(self) -> None:
        self.asked: list[Sweep] = []

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Nobody should run."""
        self.asked.append(sweep)
        return SweepDecision(())


def reporting(job_id: int, restarts: int, first_report_s: float) -> Job:
    """Runs since 100 s; has reported each of 20 steps, a second each."""
    points = tuple(ProgressPoint(step, 4.0 + step, 1.0 / step) for step in range(1, 21))
    started = {"start_s": NOW_S - 100.0, "first_report_s": NOW_S - 100.0 + first_report_s, "restarts": restarts}
    return running(job_id, "n1", exploration=consent(), total_steps=54, points=points, **started)


def test_a_step_of_a_training_that_goes_on_from_another_jobs_checkpoint_takes_as_long() -> None:
    points = tuple(ProgressPoint(1000 + step, 3.0 * step, 1.0 / (step + 1)) for step in range(10))
    watching = Watching()
    Sweeps(watching).choose(snapshot(running(1, "n1", exploration=consent(), total_steps=2000, points=points)))
    assert watching.asked[0].trials[0].step_s == pytest.approx(3.0)


def test_what_a_start_costs_is_measured() -> None:
    watching = Watching()
    sweeps = Sweeps(watching)
    sweeps.choose(snapshot(member(1), running(2, "n1", exploration=consent(), total_steps=54)))
    sweeps.choose(snapshot(member(1), reporting(2, 0, 5.0), reporting(3, 1, 4.0), reporting(4, 1, 13.0)))
    assert [sweep.restart_s for sweep in watching.asked] == [30.0, 4.0]


def test_who_consents_later_to_being_stopped_is_stopped_though_nobody_has_reported_since() -> None:
    ended = [member(i, points=reports(0.1 + 0.1 * i, 54)) for i in range(1, 6)]
    behind = member(9, points=reports(0.9, 40), restarts=1, exploration=Exploration(sweep="digits"))
    decided = [
        Sweeps(AdaptiveHalving()).choose(Snapshot.of(NOW_S, nodes(), [job], ended))
        for job in (behind, replace(behind, exploration=consent()))
    ]
    assert [[stop.job_id for stop in choice.stops] for choice in decided] == [[], [9]]


def test_the_best_is_not_taken_for_slow_because_its_last_run_began_anew() -> None:
    again = (*reports(0.1, 20), ProgressPoint(1, 210.0, 1.0))
    best = member(1, points=again, restarts=1)
    others = [member(i, points=reports(0.4 + 0.1 * i, 20), restarts=1) for i in (2, 3, 4)]
    choice = Sweeps(AdaptiveHalving()).choose(snapshot(best, *others, on=nodes(1, 1)))
    assert choice.wishes[1].place == 0


@pytest.mark.parametrize("strategy", ["asha", "hyperband"])
def test_the_best_of_a_sweep_that_is_over_runs_to_its_end(strategy: str) -> None:
    best_late = (ProgressPoint(1, 10.0, 0.9), ProgressPoint(2, 20.0, 0.95), ProgressPoint(3, 30.0, 0.01))
    ended = [member(i, points=reports(0.3 + 0.01 * i, 54)) for i in range(1, 5)]
    rest = [member(i, points=reports(0.3 + 0.01 * i, 2), restarts=1) for i in range(5, 12)]
    best = member(12, points=best_late, restarts=1, granted_step=1.0)
    policy = row("explsched", catalog.PolicyOptions(objective="best", sweep_strategy=strategy))
    plan = checked_plan(policy, Snapshot.of(NOW_S, nodes(), [*rest, best], ended))
    assert {stop.job_id for stop in plan.stops} == set(range(5, 12))
    assert [start.job_id for start in plan.starts] == [12]


def test_each_users_sweeps_are_found_without_a_look_at_all_others() -> None:
    class User(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            User.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    jobs = [member(i, user=User(f"user{i}")) for i in range(1, 201)]
    Sweeps(AdaptiveHalving()).choose(snapshot(*jobs))
    assert User.compared < 200 * 20


def test_the_best_of_a_sweep_that_is_decided_runs_to_its_end_before_another_sweep_begins() -> None:
    decided = [
        running(1, "n1", exploration=consent(), total_steps=54, points=reports(0.1, 36)),
        *(member(i, points=reports(0.9, 30), restarts=1) for i in range(2, 8)),
    ]
    begins = [member(i, exploration=consent("next")) for i in range(20, 60)]
    choice = Sweeps(AdaptiveHalving()).choose(snapshot(*decided, *begins, on=nodes(1)))
    assert "leads" in choice.wishes[1].reason and choice.wishes[1].place in range(4)
    assert not choice.preemptions
