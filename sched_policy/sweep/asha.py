"""ASHA, the promotion variant (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020).

Rungs lie at shares eta^-k of each training's own length. Whoever is among the best 1/eta of those that have reached a
rung, and has not been promoted from it, may go on to the next rung; a free GPU takes the best of the highest rung that
has such a training, else a new training. Whoever reaches a rung and is not among the best pauses there. With a fixed
list of trainings GPUs are idle where nobody may be promoted.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from sched_policy.snapshot import Floats
from sched_policy.sweep.decision import SweepAction, SweepDecision, Verdict
from sched_policy.sweep.trials import Sweep, Trial

_ROUNDING = 1e-9


class Rungs(Struct, frozen=True):
    """Where trainings are compared.

    Attributes:
        eta: of the trainings that reach a rung, one in so many goes on; at least 2.
        min_resource: the lowest rung, as a share of a training's length.

    """

    eta: int = 3
    min_resource: float = 1 / 27

    def shares(self) -> Floats:
        """The rungs below the end of a training, rising, as shares of its length."""
        if self.eta < 2 or not 0 < self.min_resource <= 1:
            raise ValueError(f"eta {self.eta} and min_resource {self.min_resource}: accepted are >= 2 and 0 to 1")
        count = max(0, math.floor(math.log(1 / self.min_resource, self.eta) + _ROUNDING))
        rungs: Floats = np.array([self.min_resource * self.eta**k for k in range(count + 1)], dtype=np.float64)
        return rungs[rungs < 1 - _ROUNDING]

    def values(self, sweep: Sweep) -> Floats:
        """What each training reported when it reached each rung, shape (N, K); infinity where it has not."""
        shares = self.shares()
        found = np.full((len(sweep.trials), len(shares)), np.inf)
        for i, trial in enumerate(sweep.trials):
            if trial.steps.size:
                at = np.searchsorted(trial.steps, shares * sweep.total_steps[i] * (1 - _ROUNDING))
                there = at < trial.steps.size
                found[i, there] = trial.values[at[there]]
        return found


class Asha(Struct, frozen=True):
    """The promotion variant, as published."""

    rungs: Rungs = Rungs()

    @property
    def name(self) -> str:
        """Its name."""
        return "asha"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Whoever is between rungs runs on; then promotions, from the highest rung down; then new trainings."""
        del gpus
        shares = self.rungs.shares()
        reached = self.rungs.values(sweep)
        top = promotable(reached, self.rungs.eta)
        runs: list[tuple[tuple[float, ...], Verdict]] = []
        rests: list[Verdict] = []
        highest = np.isfinite(reached).sum(axis=1) - 1
        for i, trial in enumerate(sweep.trials):
            if trial.has_ended:
                continue
            rung = int(highest[i])
            if rung < 0:
                why = "has not reached the first rung yet"
                runs.append(((1.0 if trial.waits else 0.0, 0.0, trial.trial_id), _run(trial, 0.0, why)))
            elif trial.steps[-1] > first_report_at(trial, shares[rung] * sweep.total_steps[i]):
                why = f"was promoted from rung {rung + 1}, runs to the next"
                runs.append(((0.0, -float(rung), reached[i, rung]), _run(trial, rung + 1.0, why)))
            elif top[i, rung]:
                why = f"among the best 1/{self.rungs.eta} of rung {rung + 1}, promoted"
                runs.append(((0.0, -float(rung), reached[i, rung]), _run(trial, rung + 1.0, why)))
            else:
                why = f"not among the best 1/{self.rungs.eta} of rung {rung + 1}"
                rests.append(Verdict(trial.trial_id, SweepAction.PAUSE, 0.0, why))
        if not runs:  # nobody will ever be promoted again
            over = "nobody runs and nobody may be promoted: the sweep is over"
            consenting = {trial.trial_id for trial in sweep.trials if trial.may_stop}
            rests = [
                Verdict(
                    v.trial_id,
                    SweepAction.STOP if v.trial_id in consenting else SweepAction.RUN,
                    0.0,
                    f"{v.reason}; {over}",
                )
                for v in rests
            ]
            return SweepDecision(tuple(rests), over)
        runs.sort(key=lambda entry: entry[0])
        return SweepDecision((*(verdict for _, verdict in runs), *rests))


def promotable(reached: Floats, eta: int) -> np.ndarray:
    """Who is among the best 1/eta (rounded down) of those that reached each rung; ties go to the lower id; (N, K)."""
    top = np.zeros(reached.shape, dtype=np.bool_)
    for rung in range(reached.shape[1]):
        there = np.flatnonzero(np.isfinite(reached[:, rung]))
        best = there[np.argsort(reached[there, rung], kind="stable")[: len(there) // eta]]
        top[best, rung] = True
    return top


def first_report_at(trial: Trial, step: float) -> float:
    """The step of the training's first report at this step or later."""
    return float(trial.steps[np.searchsorted(trial.steps, step * (1 - _ROUNDING))])


def _run(trial: Trial, worth: float, why: str) -> Verdict:
    return Verdict(trial.trial_id, SweepAction.RUN, worth, why)
