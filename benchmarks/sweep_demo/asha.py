"""What a user has without explsched: Optuna's ASHA, asked by each training whether to go on.

Optuna's SuccessiveHalvingPruner is ASHA's stopping variant (Li et al., A System for Massively Parallel Hyperparameter
Tuning, MLSys 2020): a trial that is not among the best third at a rung ends. Rungs are at 1/27, 1/9 and 1/3 of the
steps. The trainings share a journal file, so nothing but Slurm and they themselves has to run.
"""

from __future__ import annotations

import math
from pathlib import Path

ETA = 3
_RUNGS = 3


class OptunaTrial:
    """One training as a trial of the study in a journal file."""

    def __init__(self, journal: Path, steps: int) -> None:
        """Join the study in `journal`; `steps` is the length of a training."""
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._pruned = optuna.trial.TrialState.PRUNED
        self._steps = steps
        shortest = math.ceil(steps / ETA**_RUNGS)
        self._study = optuna.create_study(
            study_name="digits",
            storage=JournalStorage(JournalFileBackend(str(journal))),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=shortest, reduction_factor=ETA),
            direction="minimize",
            load_if_exists=True,
        )
        self._trial = self._study.ask()

    def should_stop(self, step: int, loss: float) -> bool:
        """Whether ASHA ends the trial after this report; the study is told so, and of the end of a whole training."""
        self._trial.report(loss, step)
        if self._trial.should_prune():
            self._study.tell(self._trial, state=self._pruned)
            return True
        if step == self._steps:
            self._study.tell(self._trial, loss)
        return False
