"""Optuna asks explsched whether a trial should go on."""

from __future__ import annotations

import pytest

from explsched.errors import PolicyError
from sched_policy import catalog

optuna = pytest.importorskip("optuna", reason="Optuna is not installed (explsched[optuna])")
from slurm_plugin.sweeps.pruner import SweepPruner  # noqa: E402

STEPS = 27
_ENDED = {False: optuna.trial.TrialState.COMPLETE, True: optuna.trial.TrialState.FAIL}


def study_of(pruner: SweepPruner, final: list[float], direction: str = "minimize", first: int = 1) -> list[str]:
    """Trials one after the other, whose values approach these, with steps from `first`; what became of each."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(pruner=pruner, direction=direction)
    for end in final:
        trial = study.ask()
        trial.suggest_float("lr", 0, 1)
        trial.suggest_categorical("schedule", [None, "cosine", 3])
        for step in range(1, STEPS + 1):
            value = end + (1 if direction == "minimize" else -1) * 5.0 / step
            trial.report(value, step - 1 + first)
            if trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, None if end != end else value, state=_ENDED[end != end])
    return [trial.state.name for trial in study.trials]


@pytest.mark.parametrize(("direction", "sign"), [("minimize", 1), ("maximize", -1)])
@pytest.mark.parametrize("strategy", catalog.STRATEGIES.names())
def test_the_best_is_never_pruned(strategy: str, direction: str, sign: int) -> None:
    ends = [sign * value for value in (3.0, 9.0, 8.0, 7.0, 9.0, 8.0, 9.0, 7.0, 9.0, 1.0)]
    states = study_of(SweepPruner(STEPS, strategy), ends, direction)
    assert (states[0], states[-1]) == ("COMPLETE", "COMPLETE")


@pytest.mark.parametrize("strategy", ["asha", "hyperband"])
@pytest.mark.parametrize("first", [0, 1])
def test_hopeless_trials_are_pruned(strategy: str, first: int) -> None:
    states = study_of(SweepPruner(STEPS, strategy), [1.0, *[9.0] * 9], first=first)
    assert states[0] == "COMPLETE"
    assert states.count("PRUNED") >= 5


@pytest.mark.parametrize("strategy", ["asha", "hyperband"])
def test_hopeless_trials_are_pruned_beside_one_that_completed_before_its_last_step(strategy: str) -> None:
    states = study_of(SweepPruner(2 * STEPS, strategy), [1.0, 9.0])
    assert states == ["COMPLETE", "PRUNED"]


@pytest.mark.parametrize("strategy", catalog.STRATEGIES.names())
def test_who_leads_at_equal_progress_is_not_pruned_for_starting_late(strategy: str) -> None:
    """A strategy pauses the second of two at the first rung, until there is a third; nobody could resume a trial."""
    study = optuna.create_study(pruner=SweepPruner(STEPS, strategy))
    first, second = study.ask(), study.ask()
    for step in range(1, 10):
        first.report(5.0 / step, step)
    for step in range(1, 9):
        second.report(4.9 / step, step)
        assert not second.should_prune()


@pytest.mark.parametrize("strategy", catalog.STRATEGIES.names())
def test_without_a_number_of_steps_nobody_is_pruned_before_a_trial_has_shown_how_many_there_are(strategy: str) -> None:
    study = optuna.create_study(pruner=SweepPruner(strategy=strategy))
    trials = [study.ask() for _ in range(8)]
    for step in range(1, 4):
        for place, trial in enumerate(trials):
            trial.report(place + 0.01 / step, step)
            assert not trial.should_prune()


def test_values_that_are_not_finite_prune_nobody_and_break_nothing() -> None:
    assert study_of(SweepPruner(STEPS, "asha"), [1.0, 2.0, float("nan")])[::2] == ["COMPLETE", "FAIL"]


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(PolicyError, match="unknown sweep strategy 'ash'"):
        SweepPruner(strategy="ash")


def test_several_objectives_are_refused() -> None:
    study = optuna.create_study(directions=["minimize", "maximize"])
    study.ask()
    with pytest.raises(ValueError, match="2 objectives"):
        SweepPruner().prune(study, study.get_trials()[-1])
