"""Our strategy: finishes contenders, explores the others, never stops who may still win."""

from __future__ import annotations

import numpy as np
import pytest

from sched_policy.sweep.adaptive import AdaptiveHalving
from sched_policy.sweep.contenders import contention
from sched_policy.sweep.decision import SweepAction
from sched_policy.sweep.forecast import forecast
from sched_policy.sweep.histories import Histories
from sched_policy.sweep.median_stop import MedianStop
from sched_policy.sweep.trials import Sweep, TrialState
from tests.sched_policy.sweep.builders import TOTAL, sweep, trial


def flat(trial_id: int, value: float, steps: int, **fields: object):  # type: ignore[no-untyped-def]  # noqa: ANN201
    return trial(trial_id, steps=steps, values=np.full(steps, value), **fields)


def test_a_sweep_of_one_runs_to_its_end() -> None:
    for steps in (0, 1, TOTAL // 2, TOTAL - 1):
        state = TrialState.RUNNING if steps else TrialState.WAITING
        decision = AdaptiveHalving().decide(sweep(trial(1, steps=steps, state=state)), gpus=8)
        assert decision.wanted == (1,)
    ended = AdaptiveHalving().decide(sweep(trial(1, steps=TOTAL, state=TrialState.ENDED)), gpus=8)
    assert ended.done and not ended.verdicts


def test_few_are_contenders_where_values_are_far_apart_and_all_where_everybody_still_moves() -> None:
    apart = sweep(trial(1, final=0.1, steps=20), *(flat(i, 0.95, 20) for i in range(2, 9)))
    moving = sweep(*(trial(i, final=0.5 + 0.001 * i, steps=20) for i in range(1, 9)))
    assert contention(apart).may_lead.tolist() == [True, *[False] * 7]
    assert contention(moving).may_lead.all()
    assert contention(sweep(trial(1), trial(2))).share == 0.5


def test_contenders_that_run_are_not_displaced_for_a_slightly_better_one() -> None:
    runs = [trial(i, final=0.5 + 0.001 * i, steps=20, state=TrialState.RUNNING) for i in range(5, 9)]
    waits = [trial(i, final=0.5 + 0.001 * i, steps=20) for i in range(1, 5)]
    assert set(AdaptiveHalving().decide(sweep(*waits, *runs), gpus=4).wanted[:4]) == {5, 6, 7, 8}


def test_the_leader_runs_and_new_ones_are_explored_where_early_values_tell() -> None:
    plateau = [flat(i, 0.95, 6) for i in range(2, 12)]
    decision = AdaptiveHalving().decide(
        sweep(trial(1, final=0.1, steps=6), *plateau, *(trial(i) for i in range(12, 20))), 8
    )
    assert decision.wanted[0] == 1
    assert len(set(decision.wanted[:8]) & set(range(12, 20))) >= 4


def test_nothing_is_stopped_while_most_have_not_been_seen() -> None:
    seen = [trial(i, final=0.2 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(1, 4)]
    decision = AdaptiveHalving().decide(sweep(*seen, *(trial(i) for i in range(4, 60))), gpus=8)
    assert not decision.stopped and decision.done is None


def hopeless() -> list:  # type: ignore[type-arg]
    return [flat(i, 0.99, TOTAL - 1, state=TrialState.RUNNING if i < 5 else None) for i in range(2, 20)]


def test_the_sweep_ends_when_nobody_can_win_any_more_but_not_before_its_leader() -> None:
    unfinished = AdaptiveHalving().decide(sweep(flat(1, 0.1, 40, state=TrialState.RUNNING), *hopeless()), gpus=8)
    assert unfinished.done is None and not unfinished.stopped and unfinished.wanted == (1,)
    finished = AdaptiveHalving().decide(sweep(flat(1, 0.1, TOTAL, state=TrialState.ENDED), *hopeless()), gpus=8)
    assert finished.done and set(finished.stopped) == set(range(2, 20))
    assert "%" in finished.done


def test_who_has_not_consented_is_not_stopped() -> None:
    stubborn = flat(2, 0.99, TOTAL - 1, state=TrialState.RUNNING, may_stop=False)
    decision = AdaptiveHalving().decide(
        sweep(flat(1, 0.1, TOTAL, state=TrialState.ENDED), stubborn, *hopeless()[1:]), 8
    )
    assert 2 not in decision.stopped


def test_the_same_sweep_gives_the_same_decision_and_every_training_one_verdict() -> None:
    rng = np.random.default_rng(5)
    trials = [trial(i, final=float(rng.random()), steps=int(rng.integers(0, TOTAL))) for i in range(50)]
    first, again = (AdaptiveHalving().decide(Sweep.of(order), 8) for order in (trials, trials[::-1]))
    assert first == again
    assert sorted(verdict.trial_id for verdict in first.verdicts) == list(range(50))


@pytest.mark.parametrize("jump", [1e30, -1e3])
def test_metrics_that_jump_do_not_break_it(jump: float) -> None:
    values = np.array([1.0, jump, 0.9, 0.8])
    odd = trial(1, steps=4, values=values)
    decision = AdaptiveHalving().decide(sweep(odd, *(trial(i, steps=4) for i in range(2, 10))), gpus=4)
    assert sorted(verdict.trial_id for verdict in decision.verdicts) == list(range(1, 10))
    assert not decision.stopped


def test_trainings_of_very_different_length_and_without_one() -> None:
    long = trial(1, steps=10, total_steps=1e7)
    unsaid = trial(2, steps=30, total_steps=None)
    decision = AdaptiveHalving().decide(sweep(long, unsaid, trial(3, total_steps=5.0)), gpus=2)
    assert {verdict.action for verdict in decision.verdicts} == {SweepAction.RUN}


def test_the_forecast_is_sure_of_what_has_ended_and_open_before_anything_is_known() -> None:
    nothing = sweep(trial(1), trial(2))
    assert forecast(nothing, Histories.of(nothing), 0.01).open == 1.0
    ended = sweep(*(trial(i, final=0.1 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(1, 5)))
    assert forecast(ended, Histories.of(ended), 0.01).open == 0.0


def test_the_median_rule_stops_who_is_behind_and_never_the_leader() -> None:
    others = [trial(i, final=0.2, steps=30) for i in range(2, 10)]
    behind = flat(1, 0.99, 30, state=TrialState.RUNNING)
    decision = MedianStop().decide(sweep(behind, *others), gpus=4)
    assert decision.stopped == (1,)
