"""Our strategy: finishes contenders, explores the others, never stops who may still win."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sched_policy import catalog
from sched_policy.sweep import adaptive as adaptive_module
from sched_policy.sweep.adaptive import AdaptiveHalving, standing
from sched_policy.sweep.forecast import Histories, forecast
from sched_policy.sweep.trials import Sweep, SweepAction, TrialState
from simulation.strategies import MedianStop
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


def test_a_sweep_of_one_is_decided_without_a_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_module, "forecast", lambda *_: pytest.fail("10,000 such sweeps would take a minute"))
    (verdict,) = AdaptiveHalving().decide(sweep(trial(1, steps=5)), gpus=8).verdicts
    assert verdict.worth == 1.0


def test_few_are_contenders_where_values_are_far_apart_and_all_where_everybody_still_moves() -> None:
    apart = sweep(trial(1, final=0.1, steps=20), *(flat(i, 0.95, 20) for i in range(2, 9)))
    moving = sweep(*(trial(i, final=0.5 + 0.001 * i, steps=20) for i in range(1, 9)))
    assert standing(apart).may_lead.tolist() == [True, *[False] * 7]
    assert standing(moving).may_lead.all()
    assert standing(sweep(trial(1), trial(2))).contenders == 0.5


def test_trainings_are_compared_where_both_have_been() -> None:
    late = [trial(i, final=0.5 + 0.01 * i, steps=40) for i in range(1, 5)]
    fresh = [trial(5, final=0.1, steps=4), trial(6, final=0.9, steps=4)]
    now = standing(sweep(*late, *fresh))
    assert now.ahead.tolist() == [1, 2, 3, 4, 0, 5]
    first, second = AdaptiveHalving().decide(sweep(*late, *fresh), gpus=8).verdicts[:2]
    assert (first.trial_id, first.reason) == (5, "runs to its end: among the best, best at equal progress")
    assert (second.trial_id, second.reason) == (1, "runs to its end: among the best, 1 ahead of it")


def test_who_ended_early_counts_with_what_it_ended_with() -> None:
    ended = trial(1, final=0.9, steps=3, state=TrialState.ENDED)
    now = standing(sweep(ended, trial(2, final=0.5, steps=40)))
    assert now.ahead.tolist() == [1, 0]


def test_ranks_are_those_of_comparing_all_pairs() -> None:
    rng = np.random.default_rng(1)
    trials = [trial(i, final=float(rng.random()), steps=int(rng.integers(1, TOTAL))) for i in range(40)]
    by_pairs = []
    for a in trials:
        at = [max(1, min(len(a.values), len(b.values))) for b in trials]
        by_pairs.append(sum(b.values[n - 1] < a.values[n - 1] for b, n in zip(trials, at, strict=True)))
    apart = np.abs(standing(sweep(*trials)).ahead - np.array(by_pairs))
    assert apart.max() <= 4  # levels lie up to half a doubling below the last report
    assert apart.mean() < 1


def test_hyper_parameters_tell_whom_to_try_first() -> None:
    def rated(trial_id: int, rate: float, **fields: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
        final = 0.1 + 0.8 * abs(np.log10(rate) + 3) / 3  # 1e-3 is best
        return trial(trial_id, final=final, params={"lr": rate, "name": "x"}, **fields)

    rates = np.logspace(-6, 0, 30)
    seen = [rated(i, float(rate), steps=6) for i, rate in enumerate(rates[::2])]
    fresh = [rated(100 + i, float(rate)) for i, rate in enumerate(rates[1::2])]
    wanted = AdaptiveHalving().decide(sweep(*seen, *fresh), gpus=40).wanted
    tried = [i for i in wanted if i >= 100]
    assert set(tried[:3]) <= {105, 106, 107, 108, 109}
    also = AdaptiveHalving().decide(sweep(*seen, *fresh, trial(200, params={"name": "x"})), gpus=40).wanted
    assert [i for i in also if 100 <= i < 200][:3] == tried[:3]  # one without a rate makes no words of the others'
    untold = [trial(t.trial_id, steps=len(t.values)) for t in (*seen, *fresh)]
    in_turn = [i for i in AdaptiveHalving().decide(sweep(*untold), gpus=40).wanted if i >= 100]
    assert in_turn == list(range(100, 115))
    assert len(tried) < 8  # the others rest


def test_who_stands_still_is_tried_further_where_hyper_parameters_like_its_own_did_well() -> None:
    def through(trial_id: int, final: float, rate: float):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return trial(trial_id, final=final, steps=TOTAL, state=TrialState.ENDED, params={"lr": rate})

    shown = [through(i, final, 10.0**-i) for i, final in enumerate((0.8, 0.7, 0.6, 0.2, 0.1, 0.2, 0.6, 0.7))]
    rates = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 1.1e-3, 1.2e-4, 1.1e-5)  # the last three are near the good ones
    still = [flat(20 + i, 0.95, 6, params={"lr": rate}) for i, rate in enumerate(rates)]
    wanted = AdaptiveHalving().decide(sweep(*shown, *still), gpus=8).wanted
    assert wanted[0] == 20  # finishes: all are as good, and have come as far
    assert set(wanted[1:4]) == {27, 28, 29}


def test_a_start_of_which_little_is_hoped_waits_behind_one_that_goes_on_well() -> None:
    def rated(trial_id: int, rate: float, **fields: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
        final = 0.1 + 0.8 * abs(np.log10(rate) + 3) / 3  # 1e-3 is best
        return trial(trial_id, final=final, params={"lr": rate}, **fields)

    seen = [rated(i, float(rate), steps=6) for i, rate in enumerate(np.logspace(-6, 0, 15))]
    fresh = [rated(100, 1.1e-3), rated(101, 1.1e-6), rated(102, 0.9)]
    wanted = AdaptiveHalving().decide(sweep(*seen, *fresh), gpus=4).wanted
    assert 100 in wanted[:4]
    assert {101, 102}.isdisjoint(wanted[:6])


def test_once_the_leader_has_ended_those_go_on_that_may_still_beat_it() -> None:
    def rated(trial_id: int, rate: float, final: float, **fields: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return trial(trial_id, final=final, params={"lr": rate}, **fields)

    behind = [rated(i, 1e-3 + 1e-5 * i, 0.3 + 0.01 * i, steps=TOTAL - 2) for i in range(2, 8)]  # good, but not enough
    fresh = [rated(i, 10.0**-i, 0.9, steps=3) for i in range(12, 18)]
    goes_on = sweep(rated(1, 1e-3, 0.1, steps=TOTAL - 1), *behind, *fresh)
    ended = sweep(rated(1, 1e-3, 0.1, steps=TOTAL, state=TrialState.ENDED), *behind, *fresh)
    assert set(AdaptiveHalving(exploring=10.0).decide(goes_on, gpus=6).wanted[:5]) == {1, 2, 3, 4, 5}
    assert AdaptiveHalving().decide(goes_on, gpus=6).wanted == (1, 2)
    assert set(AdaptiveHalving().decide(ended, gpus=6).wanted[1:6]) <= set(range(12, 18))


def test_gpus_are_left_to_others_when_few_promise_much() -> None:
    """One more stays than may start, so that small changes cause no restarts."""

    def rated(trial_id: int, place: int, **fields: object):  # type: ignore[no-untyped-def]  # noqa: ANN202
        return trial(trial_id, final=0.1 + 0.02 * place, steps=20, params={"lr": 2.0**-place}, **fields)

    all_run = [rated(i, i, state=TrialState.RUNNING) for i in range(24)]
    decision = AdaptiveHalving().decide(sweep(*all_run), gpus=24)
    waiting = AdaptiveHalving().decide(sweep(*(rated(i, i, state=TrialState.PAUSED) for i in range(24))), gpus=24)
    assert 1 < len(waiting.wanted) < 4
    assert len(decision.wanted) == len(waiting.wanted) + 1
    resting = [v for v in decision.verdicts if v.action is SweepAction.PAUSE]
    assert len(resting) + len(decision.wanted) == 24
    assert resting[0].reason.startswith("not worth a GPU now")
    alike = AdaptiveHalving().decide(sweep(*(trial(i, final=0.5, steps=20) for i in range(24))), gpus=24)
    assert len(alike.wanted) == 24  # without hyper-parameters


@pytest.mark.parametrize("odd", [[1e-300], [1e-300] * 8, [1e300]])
def test_learning_rates_however_far_from_usual_ones_are_taken(odd: list[float]) -> None:
    rates = [*odd, *(10.0**-i for i in range(1, 9))]
    told = [trial(i, final=0.1 * i, steps=20 if i < 8 else 0, params={"lr": r}) for i, r in enumerate(rates)]
    assert AdaptiveHalving().decide(sweep(*told), gpus=4).wanted


def test_usual_learning_rates_are_tried_first_until_trainings_can_be_compared() -> None:
    rates = [1e-8, 10.0, 0.02, 1e-6, 0.001]
    fresh = sweep(*(trial(i, params={"lr": rate}) for i, rate in enumerate(rates)))
    assert AdaptiveHalving().decide(fresh, gpus=2).wanted == (2, 4, 1, 3, 0)
    warm_up = sweep(*(trial(i, params={"lr_warmup_steps": 1000 - 100 * i}) for i in range(5)))
    assert AdaptiveHalving().decide(warm_up, gpus=2).wanted == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("name", ["l2", "l1_reg", "optim.regL2", "--kernel-l2"])
def test_penalties_that_hardly_ever_help_are_tried_last(name: str) -> None:
    fresh = sweep(*(trial(i, params={name: value}) for i, value in enumerate([10.0, 1e-3, 0.03, 0, 1e-9])))
    assert AdaptiveHalving().decide(fresh, gpus=2).wanted == (1, 3, 4, 2, 0)


def test_a_first_try_is_longer_where_hyper_parameters_differ() -> None:
    at_level_2 = {
        "steps": 2,
        "state": TrialState.RUNNING,
        "step_s": 60.0,
    }  # 3.7 % of its length
    curves = sweep(trial(1, **at_level_2), trial(2, **at_level_2))
    rated = sweep(trial(1, params={"lr": 0.1}, **at_level_2), trial(2, params={"lr": 0.2}, **at_level_2))
    assert standing(curves).is_known.all()
    assert not standing(rated).is_known.any()


def test_a_first_try_costs_what_it_takes_to_be_compared() -> None:
    """One that goes on to twice its progress costs less than a first try to 4.4 %, and more than one to 3.1 %."""
    shown = [trial(i, final=0.1 + 0.08 * i, steps=20, params={"other": float(i)}) for i in range(8)]
    goes_on = trial(20, final=0.1, steps=3, params={"other": 0.25}, step_s=60.0)
    fresh = trial(21, params={"other": 0.5}, step_s=60.0)
    wanted = AdaptiveHalving(exploring=10.0).decide(sweep(*shown, goes_on, fresh), gpus=8).wanted
    assert wanted.index(20) < wanted.index(21)


def test_when_nothing_else_is_open_those_that_were_hardly_tried_go_first() -> None:
    ended = [trial(i, final=0.1 + 0.1 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(1, 12)]
    tried = [flat(i, 0.95, 30) for i in range(12, 16)]
    hardly = [flat(i, 0.95, 4) for i in range(16, 20)]
    decision = AdaptiveHalving().decide(sweep(*ended, *tried, *hardly), gpus=4)
    assert not decision.stopped
    assert set(decision.wanted[:4]) == {16, 17, 18, 19}


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


@pytest.mark.parametrize("gpus", [1, 8])
def test_trainings_of_many_gpus_leave_others_room_for_a_first_run(gpus: int) -> None:
    known = [flat(i, 0.1 * i, 6, state=TrialState.RUNNING, gpus=gpus) for i in range(1, 9)]
    wanted = AdaptiveHalving().decide(sweep(*known, *(trial(i, gpus=gpus) for i in range(9, 49))), gpus=8 * gpus).wanted
    assert wanted[:4] == (1, 2, 3, 9)


def test_nothing_is_stopped_while_most_have_not_been_seen() -> None:
    seen = [trial(i, final=0.2 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(1, 4)]
    decision = AdaptiveHalving().decide(sweep(*seen, *(trial(i) for i in range(4, 60))), gpus=8)
    assert not decision.stopped and decision.done is None


def test_gpus_that_would_be_idle_go_where_doubt_goes_soonest() -> None:
    hopeful_ones = [trial(i, final=0.1, steps=50) for i in range(1, 4)]  # finish on their 3 GPUs
    middling = [flat(4, 0.3, 30)]  # second by its value, and it does not move
    unclear = [trial(i, final=0.5, steps=3) for i in range(5, 12)]
    wanted = AdaptiveHalving().decide(sweep(*hopeful_ones, *middling, *unclear), gpus=6).wanted
    assert set(wanted[:3]) == {1, 2, 3} and set(wanted[3:6]) <= set(range(5, 12))


def test_a_training_runs_for_as_long_as_its_start_took_before_it_is_judged() -> None:
    fields = {"steps": 4, "state": TrialState.RUNNING}
    long, short = (
        sweep(trial(1, step_s=step_s, **fields), trial(2, step_s=step_s, **fields)) for step_s in (10.0, 1.0)
    )
    assert standing(long).is_known.all()
    assert not standing(short).is_known.any()
    ended = sweep(trial(1, steps=4, step_s=1.0, state=TrialState.ENDED))
    assert standing(ended).is_known.all()


def test_nothing_is_stopped_while_somebody_is_as_good_as_the_best_was_then() -> None:
    leader = trial(1, final=0.3, steps=TOTAL, state=TrialState.ENDED)
    early = float(leader.values[3])
    rival = flat(2, early - 1e-6, 4)
    unhurried = AdaptiveHalving(doubt=1.1, least_progress=0.0)
    assert unhurried.decide(sweep(leader, rival, *hopeless()[1:]), gpus=8).done is None
    behind = flat(2, early + 1e-3, 4)
    assert unhurried.decide(sweep(leader, behind, *hopeless()[1:]), gpus=8).done


def test_nothing_is_stopped_before_everybody_has_come_so_far_that_a_late_start_would_show() -> None:
    leader = trial(1, final=0.3, steps=TOTAL, state=TrialState.ENDED)
    for steps, is_done in ((TOTAL // 8 - 1, False), (TOTAL // 8 + 1, True)):
        decision = AdaptiveHalving(doubt=1.1).decide(sweep(leader, flat(2, 0.99, steps), *hopeless()[1:]), gpus=8)
        assert (decision.done is not None) is is_done


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


@pytest.mark.parametrize("power", [-200, -60, -40, 40, 200])
def test_the_unit_of_the_metric_decides_nothing(power: int) -> None:
    """A loss of 1e-12 is as good as one of 1; powers of 2 round nothing."""
    others = [trial(i, final=0.5 + 0.02 * i, steps=1 + i % 9) for i in range(4, 30)]
    for ended in (0.5, 0.8):  # the others are behind what has ended, or ahead of it
        done = [trial(i, final=ended + 0.01 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(4)]
        trials = [*done, *others, trial(40)]
        scaled = [replace(one, values=one.values * 2.0**power) for one in trials]
        assert AdaptiveHalving().decide(sweep(*scaled), gpus=8) == AdaptiveHalving().decide(sweep(*trials), gpus=8)


def test_trainings_of_very_different_length_and_without_one() -> None:
    long = trial(1, steps=10, total_steps=1e7)
    unsaid = trial(2, steps=30, total_steps=None)
    decision = AdaptiveHalving().decide(sweep(long, unsaid, trial(3, total_steps=5.0)), gpus=2)
    assert {verdict.action for verdict in decision.verdicts} == {SweepAction.RUN}


@pytest.mark.parametrize("strategy", catalog.STRATEGIES.names())
def test_where_nobody_says_how_long_trainings_are_nobody_pauses_for_being_a_report_behind(strategy: str) -> None:
    counts = (10, 10, 9, 9, 8, 8, 7, 7)
    running = (
        trial(i, 0.1 * i, steps, TrialState.RUNNING, total_steps=None, granted_step=3.0)
        for i, steps in enumerate(counts)
    )
    decision = catalog.STRATEGIES.build(strategy).decide(sweep(*running), gpus=8)
    assert {verdict.action for verdict in decision.verdicts} == {SweepAction.RUN}


def test_the_reason_tells_that_nobody_says_how_long_trainings_are() -> None:
    """As where `sxrun --follow` is not told `--total-steps`: trainings would never be far enough to be compared."""
    unsaid = [trial(i, 0.1 * i, 20, TrialState.RUNNING, total_steps=None) for i in (1, 2)]
    fresh = trial(3, total_steps=None)
    reasons = {v.trial_id: v.reason for v in AdaptiveHalving().decide(sweep(*unsaid, fresh), gpus=3).verdicts}
    assert reasons[1] == reasons[2] == "explored: reports no total_steps by which to be compared"
    assert "not far enough" in reasons[3]
    told = AdaptiveHalving().decide(sweep(*unsaid, trial(3, total_steps=1000.0)), gpus=3)
    assert not any("total_steps" in verdict.reason for verdict in told.verdicts)


def test_the_forecast_is_sure_of_what_has_ended_and_open_before_anything_is_known() -> None:
    nothing = sweep(trial(1), trial(2))
    assert forecast(nothing, Histories.of(nothing), 0.01).open == 1.0
    ended = sweep(*(trial(i, final=0.1 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(1, 5)))
    assert forecast(ended, Histories.of(ended), 0.01).open == 0.0


def test_where_all_that_ended_are_as_good_little_is_expected_of_those_that_have_not_run() -> None:
    rng = np.random.default_rng(2)
    alike, apart = (
        sweep(
            *(
                trial(i, final=0.5 + width * float(rng.random()), steps=TOTAL, state=TrialState.ENDED)
                for i in range(20)
            ),
            *(trial(i) for i in range(20, 40)),
        )
        for width in (0.01, 0.4)
    )
    assert forecast(alike, Histories.of(alike), 0.01).open < 0.1
    assert forecast(apart, Histories.of(apart), 0.01).open > 0.2


def test_who_was_ahead_of_all_that_ended_when_they_were_as_far_may_well_lead() -> None:
    ended = [trial(i, final=0.5 + 0.001 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(10)]
    ahead = sweep(*ended, trial(10, final=0.4, steps=8))
    behind = sweep(*ended, trial(10, final=0.6, steps=8))
    assert forecast(ahead, Histories.of(ahead), 0.01).open > 0.3
    assert forecast(behind, Histories.of(behind), 0.01).open < 0.1


def test_the_scale_of_a_lead_is_that_of_an_exponential_tail() -> None:
    """Distances of 1, 1/2, 1/3 ... of the scale between the best, the next, and so on: the means of such a tail."""
    scale = 0.005
    final = 1.0 + scale * np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, 40))])
    part = TOTAL // 8
    early = np.repeat(np.sort(np.random.default_rng(3).uniform(1.2, 3.0, (4, 40)), axis=0)[::-1], part, axis=0)
    ended = [
        trial(
            i, steps=TOTAL, values=np.append(early[:, i], np.full(TOTAL - 4 * part, final[i])), state=TrialState.ENDED
        )
        for i in range(40)
    ]
    going = sweep(*ended, *(trial(i) for i in range(40, 64)))
    expected = 24 / 41 * (1 + 0.01 / (9 * scale)) ** -9  # 9 distances; each of 24 is the best of 41 one time in 41
    assert forecast(going, Histories.of(going), 0.01).chance.sum() == pytest.approx(expected, rel=0.05)


def test_a_place_counts_for_as_much_as_places_have_said_of_the_end() -> None:
    def last_of(order: list[int]) -> float:
        """Ended trainings that were in this order at a quarter of their length, and one that was behind them all."""
        early = [
            np.concatenate([np.full(TOTAL // 4, 1.0 + 0.1 * order[i]), np.full(TOTAL - TOTAL // 4, 0.5 + 0.02 * i)])
            for i in range(16)
        ]
        ended = [trial(i, steps=TOTAL, values=values, state=TrialState.ENDED) for i, values in enumerate(early)]
        going = sweep(*ended, trial(16, steps=TOTAL // 4, values=np.full(TOTAL // 4, 3.0)))
        return float(forecast(going, Histories.of(going), 0.01).chance[16])

    stayed, shuffled = list(range(16)), np.random.default_rng(0).permutation(16).tolist()
    assert last_of(stayed) < 0.2 * last_of(shuffled)


def test_a_contender_that_would_gain_less_than_the_tolerance_keeps_no_sweep_open() -> None:
    """All end within 0.2 %: one more small improvement would make it the best, which nobody waits for."""
    slow = np.concatenate([np.full(TOTAL // 4, 1.0), np.linspace(0.5, 0.4985, TOTAL - TOTAL // 4)])
    ended = [trial(i, steps=TOTAL, values=slow + 1e-5 * i, state=TrialState.ENDED) for i in range(12)]
    contender = trial(12, steps=TOTAL // 2 + 8, values=slow[: TOTAL // 2 + 8] + 2e-4, state=TrialState.RUNNING)
    assert standing(sweep(*ended, contender)).may_lead[12]
    assert AdaptiveHalving().decide(sweep(*ended, contender), gpus=8).done


def test_trainings_that_failed_before_their_first_report_tell_nothing_of_the_others() -> None:
    failed = [trial(i, state=TrialState.ENDED) for i in range(4)]
    going = [trial(i, final=0.2 + 0.1 * i, steps=10) for i in range(4, 8)]
    with np.errstate(all="raise"):
        expected = forecast(sweep(*failed, *going), Histories.of(sweep(*failed, *going)), 0.01)
    assert 0.5 < expected.open <= 1.0
    assert np.isfinite(expected.chance).all()


def test_when_little_is_expected_only_those_run_on_that_were_hardly_tried() -> None:
    ended = [trial(i, final=0.1 + 0.1 * i, steps=TOTAL, state=TrialState.ENDED) for i in range(1, 12)]
    tried = [flat(i, 0.95, 30, state=TrialState.RUNNING) for i in range(12, 16)]
    hardly = [flat(i, 0.95, 4) for i in range(16, 20)]
    decision = AdaptiveHalving().decide(sweep(*ended, *tried, *hardly), gpus=8)
    assert set(decision.wanted) == {16, 17, 18, 19}
    assert decision.done is None and not decision.stopped


def test_the_leader_runs_to_its_end_beside_one_that_is_better_at_its_progress() -> None:
    values = np.concatenate([np.full(24, 0.5), np.full(TOTAL - 24, 0.1)])
    leader = trial(1, steps=TOTAL, values=values, state=TrialState.RUNNING)  # it has not moved for long
    rival = flat(2, 0.4, 20)
    assert standing(sweep(leader, rival, *hopeless()[1:])).ahead[0] == 1
    settled = AdaptiveHalving(doubt=1.1, least_progress=0.0)
    assert settled.decide(sweep(leader, rival, *hopeless()[1:]), gpus=8).wanted == (1, 2)


def test_the_median_rule_stops_who_is_behind_and_never_the_leader() -> None:
    others = [trial(i, final=0.2, steps=30) for i in range(2, 10)]
    behind = flat(1, 0.99, 30, state=TrialState.RUNNING)
    decision = MedianStop().decide(sweep(behind, *others), gpus=4)
    assert decision.stopped == (1,)


def test_the_median_rule_compares_with_all_who_came_as_far_among_many() -> None:
    """Looked at one by one for each that waits or runs, 12,000 that have ended take minutes."""
    running = [flat(i, 0.4505 + 0.001 * i, 10 + i % 3, state=TrialState.RUNNING) for i in range(100)]
    ended = [flat(100 + i, (i % 100) / 100, 10 + i % 3, state=TrialState.ENDED) for i in range(12_000)]
    waiting = [trial(12_100 + i) for i in range(8_000)]
    decision = MedianStop().decide(sweep(*running, *ended, *waiting), gpus=100)
    ended_at = {steps: [t.values[0] for t in ended if t.steps.size >= steps] for steps in (10, 11, 12)}
    behind = {
        t.trial_id
        for t in running
        if t.values[0]
        > np.median([*ended_at[t.steps.size], *(o.values[0] for o in running if o.steps.size >= t.steps.size)])
    }
    assert behind and set(decision.stopped) == behind
    assert len(decision.wanted) == 8_100 - len(behind)
