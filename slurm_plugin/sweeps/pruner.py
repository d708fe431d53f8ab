"""An Optuna pruner that asks a strategy of explsched whether a trial should go on.

    study = optuna.create_study(pruner=SweepPruner(total_steps=100))

Optuna's trials hold their GPUs until they end, so a trial that the strategy would pause in favour of others is pruned,
as in Optuna's own successive halving; but none that is as good as any other was after as many steps: a strategy pauses
those, too, where it waits for more trials to compare with. The default strategy prunes late and surely, when hardly
anybody can still beat the leader; `asha` and `median-stop` prune early. Needs Optuna (explsched[optuna]).
"""

from __future__ import annotations

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from explsched.parameters import of_value
from sched_policy import catalog
from sched_policy.sweep.trials import Sweep, SweepAction, Trial, TrialState

_STATES = {
    OptunaState.RUNNING: TrialState.RUNNING,
    OptunaState.COMPLETE: TrialState.COMPLETED,
    OptunaState.PRUNED: TrialState.ENDED,
}


class SweepPruner(optuna.pruners.BasePruner):
    """Prunes where a strategy would pause or stop.

    Args:
        total_steps: the steps of a whole trial; without it the most of those that have completed, and none is pruned
            before one has.
        strategy: a name of `sched_policy.catalog.STRATEGIES`; the first of them by default.

    Raises PolicyError for an unknown strategy.

    """

    def __init__(self, total_steps: int | None = None, strategy: str | None = None) -> None:
        self._total_steps = None if total_steps is None else float(total_steps)
        self._strategy = catalog.STRATEGIES.build(strategy or catalog.STRATEGIES.names()[0])

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether the trial should end now. Raises ValueError for a study of several objectives."""
        if len(study.directions) != 1:
            raise ValueError(f"the study has {len(study.directions)} objectives, pruning supports one")
        if trial.last_step is None:
            return False
        sign = 1.0 if study.direction is StudyDirection.MINIMIZE else -1.0
        others = study.get_trials(deepcopy=False, states=tuple(_STATES))
        whole = (one.last_step for one in others if one.state is OptunaState.COMPLETE)
        total_steps = self._total_steps or max(filter(None, whole), default=None)
        trials = [_trial(one, sign, total_steps) for one in others if one.number != trial.number]
        own = _trial(trial, sign, total_steps)
        if not own.values.size or own.values.min() <= min(
            (_best_by(one, own.steps[-1]) for one in trials), default=np.inf
        ):
            return False
        running = 1 + sum(one.state is TrialState.RUNNING for one in trials)
        decision = self._strategy.decide(Sweep.of([own, *trials]), running)
        verdict = next((verdict for verdict in decision.verdicts if verdict.trial_id == trial.number), None)
        return verdict is not None and verdict.action is not SweepAction.RUN


def _trial(trial: FrozenTrial, sign: float, total_steps: float | None) -> Trial:
    """As a strategy sees it. Values that are not finite do not count."""
    reports = sorted((step, sign * value) for step, value in trial.intermediate_values.items())
    finite = [(step, value) for step, value in reports if np.isfinite(value)]
    return Trial(
        trial.number,
        _STATES[trial.state],
        np.array([step for step, _ in finite], dtype=np.float64),
        np.array([value for _, value in finite], dtype=np.float64),
        total_steps,
        {name: of_value(value) for name, value in trial.params.items()},
    )


def _best_by(trial: Trial, step: float) -> float:
    """Its best value up to a step, infinity if it had none by then."""
    return float(trial.values[trial.steps <= step].min(initial=np.inf))
