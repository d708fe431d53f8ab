"""ASHA promotes whom it promotes as published, and as Optuna does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sched_policy.model import LARGEST_VALUE
from sched_policy.sweep.trials import SweepAction, Trial, TrialState
from simulation.strategies import Asha, Hyperband, MedianStop, Rungs
from tests.sched_policy.sweep.builders import TOTAL, sweep, trial


def test_rungs_are_shares_of_a_training_below_its_end() -> None:
    assert Rungs().shares() == pytest.approx([1 / 27, 1 / 9, 1 / 3])
    assert Rungs(eta=4, min_resource=1 / 16).shares() == pytest.approx([1 / 16, 1 / 4])
    with pytest.raises(ValueError, match="eta 1"):
        Rungs(eta=1).shares()


def test_one_in_three_is_promoted_and_the_highest_rung_goes_first() -> None:
    done = [trial(i, final=0.1 * i, steps=2) for i in range(1, 7)]  # all at rung 1/27
    decision = Asha().decide(sweep(*done, trial(9)), gpus=2)
    assert decision.wanted == (1, 2, 9)
    higher = [trial(i, final=0.1 * i, steps=6) for i in range(1, 4)]  # three of them at 1/9
    decision = Asha().decide(sweep(*higher, *done[3:], trial(9)), gpus=2)
    assert decision.wanted == (1, 9)  # 2 was promoted already; of three at 1/9 only the best goes on


def test_who_runs_between_rungs_goes_on_and_who_is_behind_pauses() -> None:
    between = trial(1, final=0.9, steps=4, state=TrialState.RUNNING)
    others = [trial(i, final=0.1 * i, steps=2) for i in range(2, 8)]
    decision = Asha().decide(sweep(between, *others), gpus=2)
    assert 1 in decision.wanted
    paused = {verdict.trial_id for verdict in decision.verdicts if verdict.action is SweepAction.PAUSE}
    assert paused == {4, 5, 6, 7}
    assert all(verdict.reason for verdict in decision.verdicts)


@pytest.mark.parametrize("unit", [1.0, 1e6])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_training_between_rungs_does_not_leave_for_a_promotion(unit: float, steps: int) -> None:
    """As published, a promotion takes a free GPU. Values are not compared with ids."""
    between = trial(50, final=0.9, steps=steps, state=TrialState.RUNNING)
    others = (trial(i, final=0.1 * i, steps=2) for i in range(1, 7))
    paused = [replace(one, values=one.values * unit) for one in others]
    assert Asha().decide(sweep(replace(between, values=between.values * unit), *paused), gpus=1).wanted == (50, 1, 2)


def ran_past(*trials: Trial) -> tuple[Trial, ...]:
    """The trainings, none of which has been judged since it began."""
    return tuple(replace(one, granted_step=0.0) for one in trials)


def test_who_ran_past_a_rung_before_anybody_looked_is_judged_by_its_value_there() -> None:
    """Rungs are at 2, 6 and 18; between two passes these have come to 5, one of them far better than at 2."""
    behind = [trial(i, final=0.1 * i, steps=5, state=TrialState.RUNNING) for i in range(1, 7)]
    late = trial(6, final=0.6, steps=5, state=TrialState.RUNNING)
    late = replace(late, values=np.array([*late.values[:2], 0.0, 0.0, 0.0]))
    decision = Asha().decide(sweep(*ran_past(*behind[:5], late)), gpus=6)
    assert decision.wanted == (1, 2)
    assert Asha().decide(sweep(*behind[:5], late), gpus=6).wanted == (1, 2, 3, 4, 5, 6)  # let run on there


def test_who_was_not_promoted_counts_at_no_later_rung() -> None:
    passed = [trial(i, final=0.1 * i, steps=7, state=TrialState.RUNNING) for i in range(1, 10)]
    decision = Asha().decide(sweep(*ran_past(*passed)), gpus=9)
    assert decision.wanted == (1,)  # three are promoted from the first rung, one of these from the second
    told = {verdict.trial_id: verdict.reason for verdict in decision.verdicts}
    assert "not among the best 1/3 of rung 2" in told[2]
    assert "not among the best 1/3 of rung 1" in told[4]


def test_who_was_promoted_stays_so_though_others_do_better_there_later() -> None:
    first = replace(trial(1, final=0.5, steps=4, state=TrialState.RUNNING), granted_step=3.0)
    better = ran_past(*(trial(i, final=0.01 * i, steps=4, state=TrialState.RUNNING) for i in range(2, 6)))
    assert 1 in Asha().decide(sweep(first, *better), gpus=6).wanted
    assert 1 not in Asha().decide(sweep(*ran_past(first), *better), gpus=6).wanted


def test_the_sweep_is_over_when_nobody_runs_and_nobody_can_be_promoted() -> None:
    through = trial(2, final=0.5, steps=TOTAL, state=TrialState.ENDED)
    decision = Asha().decide(sweep(trial(1, final=0.6, steps=2), through), gpus=2)
    assert decision.done
    assert decision.stopped == (1,)


def test_the_best_of_a_sweep_too_small_for_promotions_runs_to_its_end() -> None:
    first, second = trial(1, final=0.2, steps=2), trial(2, final=0.1, steps=2)
    decision = Asha().decide(sweep(first, second), gpus=2)
    assert (decision.wanted, decision.stopped, decision.done) == ((2,), (), None)
    further = trial(2, final=0.1, steps=6)  # it has stopped at the next rung, alone
    assert Asha().decide(sweep(first, further), gpus=2).wanted == (2,)
    through = trial(2, final=0.1, steps=TOTAL, state=TrialState.ENDED)
    assert Asha().decide(sweep(first, through), gpus=2).stopped == (1,)


@pytest.mark.parametrize("strategy", [Asha(), Hyperband()])
def test_who_leads_its_rung_is_not_stopped_though_too_few_are_there_for_a_promotion(strategy: Asha | Hyperband) -> None:
    """A search submits its trainings one after the other; the best value of all is that of the one that has ended."""
    through = trial(1, final=0.5, steps=TOTAL, state=TrialState.ENDED)
    ahead = trial(2, final=0.3, steps=5, state=TrialState.RUNNING)
    behind = trial(3, final=0.6, steps=5, state=TrialState.RUNNING)
    assert ahead.values.min() > through.values.min()
    decision = strategy.decide(sweep(*ran_past(through, ahead)), gpus=4)
    assert (decision.wanted, decision.stopped, decision.done) == ((2,), (), None)
    assert strategy.decide(sweep(*ran_past(through, behind)), gpus=4).stopped == (3,)
    diverged = [replace(one, values=np.full(one.steps.size, LARGEST_VALUE)) for one in ran_past(through, ahead)]
    assert strategy.decide(sweep(*diverged), gpus=4).stopped == (2,)


def test_of_those_that_none_may_promote_only_who_leads_its_rung_goes_on() -> None:
    through = trial(1, final=0.5, steps=TOTAL, state=TrialState.ENDED)
    higher = trial(2, final=0.3, steps=18)
    others = [trial(i, final=0.5 + 0.1 * i, steps=2) for i in range(3, 6)]
    decision = Asha().decide(sweep(through, *ran_past(higher), *others), gpus=4)
    assert (decision.wanted, decision.stopped) == ((2,), (3, 4, 5))


@pytest.mark.parametrize("strategy", [Asha(), Hyperband()])
def test_who_ends_early_by_itself_has_run_to_its_end_but_not_who_failed_or_diverged(strategy: Asha | Hyperband) -> None:
    """A training with patience; its sweep used to go on one by one, as if none had run to its end."""
    early = trial(1, final=0.1, steps=27, state=TrialState.COMPLETED)
    others = [trial(i, final=0.1 * i, steps=5) for i in (2, 3)]
    assert strategy.decide(sweep(*ran_past(early, *others)), gpus=4).stopped == (2, 3)
    diverged = replace(early, values=np.full(27, LARGEST_VALUE))
    for without_model in (replace(early, state=TrialState.ENDED), diverged):
        decision = strategy.decide(sweep(*ran_past(without_model, *others)), gpus=4)
        assert (decision.wanted, decision.stopped) == ((2,), ())


def test_promotions_are_those_of_optuna() -> None:
    """Trainings one after the other, each until it is stopped: Optuna's pruner is ASHA's rule at each rung."""
    optuna = pytest.importorskip("optuna", reason="optuna is an extra of the benchmarks")
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=3, min_early_stopping_rate=0)
    study = optuna.create_study(pruner=pruner)
    rng = np.random.default_rng(3)
    known: list[Trial] = []
    compared = []
    for number, final in enumerate(np.sort(rng.random(60))[::-1] + 0.3 * rng.random(60)):
        values = trial(number, final=final, steps=TOTAL).values
        asked = study.ask()
        goes_on, steps = True, 0
        while goes_on and steps < TOTAL - 1:
            steps += 1
            asked.report(float(values[steps - 1]), steps)
            goes_on = not asked.should_prune()
            # Optuna lets the best pass a rung that fewer than three have reached; as published, nobody passes there.
            at_rung = 1 + sum(other.steps.size >= steps for other in known)
            if steps in (2, 6, 18) and at_rung >= 3:
                present = trial(number, final=final, steps=steps, state=TrialState.RUNNING)
                ours = number in Asha().decide(sweep(*known, present), gpus=1).wanted
                compared.append((number, steps, ours, goes_on))
        pruned = optuna.trial.TrialState.PRUNED
        study.tell(asked, state=pruned) if not goes_on else study.tell(asked, 0.0)
        known.append(trial(number, final=final, steps=steps if not goes_on else TOTAL))
    assert {steps for _, steps, _, _ in compared} == {2, 6, 18}
    assert [entry for entry in compared if entry[2] != entry[3]] == []


def test_hyperband_deals_trainings_to_brackets_of_the_published_sizes() -> None:
    assert Hyperband().sizes() == (27, 12, 6, 4)
    decision = Hyperband().decide(sweep(*(trial(i) for i in range(49))), gpus=4)
    assert sorted(decision.wanted) == list(range(49))


@pytest.mark.parametrize("strategy", [Asha(), Hyperband()])
def test_who_did_all_steps_before_anybody_looked_may_save_its_model_and_end(strategy: Asha | Hyperband) -> None:
    saving = ran_past(trial(1, steps=TOTAL, state=TrialState.RUNNING))
    assert strategy.decide(sweep(*saving), gpus=1).wanted == (1,)


def test_the_median_rule_looks_at_each_report_once(monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[np.ndarray] = []
    sums = np.add.accumulate

    def cumsum(values: np.ndarray) -> np.ndarray:
        summed.append(values)
        return np.asarray(sums(values))

    monkeypatch.setattr(np, "cumsum", cumsum)
    rng = np.random.default_rng(0)
    trainings = (trial(i, rng.random(), 10 + i % 40, TrialState.RUNNING) for i in range(1, 1101))
    decision = MedianStop().decide(sweep(*trainings), gpus=8)
    assert decision.stopped and len(summed) == 1100
