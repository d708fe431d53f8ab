"""The median stopping rule (Golovin et al., "Google Vizier", KDD 2017).

A training is stopped at a step if its best value by then is worse than the median of the running averages that all
others had reported by the same step. Here only trainings that run to their ends or were stopped count from then on.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.sweep.decision import SweepAction, SweepDecision, Verdict
from sched_policy.sweep.trials import Sweep


class MedianStop(Struct, frozen=True):
    """First in, first out, less those that fall behind the median.

    Attributes:
        least_others: trainings that must have reached a step before anybody is stopped there.
        least_progress: share of its length that a training runs before it may be stopped.

    """

    least_others: int = 5
    least_progress: float = 0.1

    @property
    def name(self) -> str:
        """Its name."""
        return "median-stop"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Run in order; stop who is behind."""
        del gpus
        averages = [np.cumsum(t.values) / np.arange(1, t.values.size + 1) for t in sweep.trials]
        runs, stops = [], []
        for i, trial in enumerate(sweep.trials):
            if trial.has_ended:
                continue
            at = float(sweep.progress[i])
            others = [
                average[np.searchsorted(t.steps, at * sweep.total_steps[j] * (1 + 1e-9), side="right") - 1]
                for j, (t, average) in enumerate(zip(sweep.trials, averages, strict=True))
                if j != i
                and t.steps.size
                and sweep.progress[j] * (1 + 1e-9) >= at
                and t.steps[0] <= at * sweep.total_steps[j]
            ]
            is_behind = (
                at >= self.least_progress
                and len(others) >= self.least_others
                and sweep.best[i] > float(np.median(others))
                and sweep.best[i] > sweep.best.min()
            )
            if is_behind and trial.may_stop:
                why = f"its best value is worse than the median of {len(others)} others at this step"
                stops.append(Verdict(trial.trial_id, SweepAction.STOP, 0.0, why))
            else:
                runs.append(Verdict(trial.trial_id, SweepAction.RUN, 0.0, "not behind the median; first in, first out"))
        by_id = {trial.trial_id: trial for trial in sweep.trials}
        runs.sort(key=lambda v: (by_id[v.trial_id].waits, not by_id[v.trial_id].steps.size, v.trial_id))
        return SweepDecision((*runs, *stops))
