"""Published sweep strategies: ASHA, Hyperband and the median stopping rule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.model import LARGEST_VALUE
from sched_policy.snapshot import Bools, Floats
from sched_policy.sweep.trials import Sweep, SweepAction, SweepDecision, Trial, TrialState, Verdict

_ROUNDING = 1e-9


class Rungs(Struct, frozen=True):
    """Where trainings are compared.

    Attributes:
        eta: one in `eta` trainings that reach a rung is promoted; at least 2.
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
        """The value that each training reported at each rung, shape (N, K); infinity where it has not reached it."""
        shares = self.shares()
        found = np.full((len(sweep.trials), len(shares)), np.inf)
        for i, trial in enumerate(sweep.trials):
            if trial.steps.size:
                at = np.searchsorted(trial.steps, shares * sweep.total_steps[i] * (1 - _ROUNDING))
                there = at < trial.steps.size
                found[i, there] = trial.values[at[there]]
        return found


class Asha(Struct, frozen=True):
    """ASHA, the promotion variant (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020).

    Rungs are at shares eta^-k of each training's own length. A training among the best 1/eta of those that have reached
    a rung is promoted: it may run to the next rung. Others pause at the rung. A free GPU takes the best promotable
    training of the highest rung that has one, else a new training. With a fixed list of trainings GPUs are idle while
    none may be promoted. If the list is too short for any training to be promoted to its end, which does not happen in
    the paper, the best of those left is promoted, so that there is one finished model. Then each other goes on to the
    next rung if none that has reached its own was better there, and stops if not: a search submits its trainings one
    after the other, and a promotion needs `eta` of them.

    Between two passes of a daemon a training runs past rungs without a decision (`Trial.granted_step`). It is compared
    by its value at the first of them, and does not count at later ones before it is promoted.
    """

    rungs: Rungs = Rungs()

    name: ClassVar[str] = "asha"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Trainings between rungs continue; then promotions, from the highest rung down; then new trainings."""
        del gpus
        shares = self.rungs.shares()
        reached, top = self._compared(sweep)
        runs: list[tuple[tuple[float, ...], Verdict]] = []
        rests: list[Verdict] = []
        highest = np.isfinite(reached).sum(axis=1) - 1
        for i, trial in enumerate(sweep.trials):
            if trial.has_ended:
                continue
            rung = int(highest[i])
            if rung < 0:
                why = "has not reached the first rung yet"
                runs.append(((2.0 if trial.waits else 0.0, 0.0, trial.trial_id), _run(trial, 0.0, why)))
            elif _is_through(trial, sweep.total_steps[i]):
                why = "has done its last step, and ends by itself"
                runs.append(((0.0, -np.inf, trial.trial_id), _run(trial, rung + 1.0, why)))
            elif trial.steps[-1] > (at := first_report_at(trial, shares[rung] * sweep.total_steps[i])) and (
                trial.granted_step >= at
            ):
                why = f"was promoted from rung {rung + 1}, runs to the next"
                at_place = (1.0 if trial.waits else 0.0, -rung - 1.0, reached[i, rung])
                runs.append((at_place, _run(trial, rung + 1.0, why)))
            elif top[i, rung]:
                why = f"among the best 1/{self.rungs.eta} of rung {rung + 1}, promoted"
                runs.append(((1.0, -rung - 1.0, reached[i, rung]), _run(trial, rung + 1.0, why)))
            else:
                why = f"not among the best 1/{self.rungs.eta} of rung {rung + 1}"
                rests.append(Verdict(trial.trial_id, SweepAction.PAUSE, 0.0, why))
        if not runs and rests and not any(map(_is_through, sweep.trials, sweep.total_steps)):
            of = {trial.trial_id: (highest[i], -reached[i, highest[i]]) for i, trial in enumerate(sweep.trials)}
            best = max(rests, key=lambda verdict: of[verdict.trial_id])
            rests.remove(best)
            why = f"{best.reason}, but the best of those left where none has run to its end"
            return SweepDecision((Verdict(best.trial_id, SweepAction.RUN, 0.0, why), *rests))
        if not runs:  # of those that are there none will ever be promoted; a search may still add others
            over = "no training that is there runs or may be promoted"
            leads = (reached <= reached.min(axis=0, initial=np.inf)) & (reached < LARGEST_VALUE)
            leading = {trial.trial_id for i, trial in enumerate(sweep.trials) if leads[i, highest[i]]}
            stoppable = {trial.trial_id for trial in sweep.trials if trial.may_stop} - leading
            rests = [
                replace(
                    v,
                    action=SweepAction.STOP if v.trial_id in stoppable else SweepAction.RUN,
                    reason=f"{v.reason}, but none was better there" if v.trial_id in leading else f"{v.reason}; {over}",
                )
                for v in sorted(rests, key=lambda v: v.trial_id in stoppable)
            ]
            return SweepDecision(tuple(rests), over if stoppable.issuperset(v.trial_id for v in rests) else None)
        runs.sort(key=lambda entry: entry[0])
        return SweepDecision((*(verdict for _, verdict in runs), *rests))

    def _compared(self, sweep: Sweep) -> tuple[Floats, Bools]:
        """The value of each training at each rung, and whether it is among the best there; shape (N, K) both."""
        reached = self.rungs.values(sweep)
        top = promotable(reached, self.rungs.eta)
        is_compared_late = np.array([not t.has_ended and math.isfinite(t.granted_step) for t in sweep.trials])
        for rung, share in enumerate(self.rungs.shares() if is_compared_late.any() else ()):
            top[:, rung] = promotable(reached[:, rung : rung + 1], self.rungs.eta)[:, 0]
            for i in np.flatnonzero(np.isfinite(reached[:, rung]) & ~top[:, rung] & is_compared_late):
                trial = sweep.trials[i]
                if trial.granted_step < first_report_at(trial, share * sweep.total_steps[i]):
                    reached[i, rung + 1 :] = np.inf
        return reached, top


def promotable(reached: Floats, eta: int) -> np.ndarray:
    """Whether a training is in the best 1/eta (rounded down) of each rung; ties go to the lower id; shape (N, K)."""
    top = np.zeros(reached.shape, dtype=np.bool_)
    for rung in range(reached.shape[1]):
        there = np.flatnonzero(np.isfinite(reached[:, rung]))
        best = there[np.argsort(reached[there, rung], kind="stable")[: len(there) // eta]]
        top[best, rung] = True
    return top


def first_report_at(trial: Trial, step: float) -> float:
    """The step of the training's first report at this step or later."""
    return float(trial.steps[np.searchsorted(trial.steps, step * (1 - _ROUNDING))])


def _is_through(trial: Trial, total_steps: float) -> bool:
    """Whether it has reported its last step, or completed before, as by early stopping of its own, without diverging.

    With steps counted from 0 the last is one reporting interval before the total.
    """
    if not trial.steps.size:
        return False
    if trial.state is TrialState.COMPLETED and trial.values.min() < LARGEST_VALUE:
        return True
    gap = float(trial.steps[-1] - trial.steps[-2]) if trial.steps.size > 1 and trial.steps[0] == 0 else 0.0
    missing = max(1.0, gap) if trial.has_ended else 0.0
    return float(trial.steps[-1]) + missing >= total_steps * (1 - _ROUNDING)


def _run(trial: Trial, worth: float, why: str) -> Verdict:
    return Verdict(trial.trial_id, SweepAction.RUN, worth, why)


class Hyperband(Struct, frozen=True):
    """Hyperband (Li et al., JMLR 2018), asynchronous, over a fixed list: brackets are ASHA with different lowest rungs.

    Trainings are assigned to brackets by their position in the sweep, in proportion to the number that Hyperband starts
    in each: with s_max = floor(log_eta 1/min_resource), bracket s starts ceil((s_max + 1) / (s + 1) * eta^s) trainings,
    whose lowest rung is at the share eta^-s of their length.
    """

    rungs: Rungs = Rungs()

    name: ClassVar[str] = "hyperband"

    def sizes(self) -> tuple[int, ...]:
        """Number of trainings that each bracket starts, the bracket with the lowest first rung first."""
        eta = self.rungs.eta
        most = max(0, math.floor(math.log(1 / self.rungs.min_resource, eta) + 1e-9))
        return tuple(math.ceil((most + 1) / (s + 1) * eta**s) for s in range(most, -1, -1))

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Each bracket's decision, promotions of all brackets before their new trainings."""
        sizes = self.sizes()
        bracket_of = [bracket for bracket, size in enumerate(sizes) for _ in range(size)]
        parts = []
        for bracket in range(len(sizes)):
            own = tuple(t for n, t in enumerate(sweep.trials) if bracket_of[n % len(bracket_of)] == bracket)
            lowest = replace(self.rungs, min_resource=self.rungs.min_resource * self.rungs.eta**bracket)
            parts.append(Asha(lowest).decide(Sweep(own, sweep.restart_s, sweep.checkpoint_s), gpus))
        verdicts = sorted((v for part in parts for v in part.verdicts), key=lambda v: -v.worth)
        runs = (v for v in verdicts if v.action is SweepAction.RUN)
        return SweepDecision((*runs, *(v for v in verdicts if v.action is not SweepAction.RUN)))


class MedianStop(Struct, frozen=True):
    """The median stopping rule (Golovin et al., "Google Vizier", KDD 2017); trainings run in order of submission.

    A training is stopped at a step if its best value so far is worse than the median of the running averages of all
    others that have reached this step, running ones included.

    Attributes:
        least_others: number of other trainings that must have reached a step before one is stopped there.
        least_progress: share of its length that a training runs before it may be stopped.

    """

    least_others: int = 5
    least_progress: float = 0.1

    name: ClassVar[str] = "median-stop"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Run trainings in order; stop those that are behind."""
        del gpus
        behind = dict(self._behind(sweep))
        runs, stops = [], []
        for i, trial in enumerate(sweep.trials):
            if trial.has_ended:
                continue
            if i in behind:
                why = f"its best value is worse than the median of {behind[i]} others at this step"
                stops.append(Verdict(trial.trial_id, SweepAction.STOP, 0.0, why))
            else:
                runs.append(Verdict(trial.trial_id, SweepAction.RUN, 0.0, "not behind the median; first in, first out"))
        by_id = {trial.trial_id: trial for trial in sweep.trials}
        runs.sort(key=lambda v: (by_id[v.trial_id].waits, not by_id[v.trial_id].steps.size, v.trial_id))
        return SweepDecision((*runs, *stops))

    def _behind(self, sweep: Sweep) -> Iterator[tuple[int, int]]:
        """Positions of the trainings that are stopped, each with the number of those that it was compared with."""
        best = sweep.best.min(initial=np.inf)
        is_far = (sweep.progress >= self.least_progress) & ~sweep.has_ended & (sweep.best > best)
        judged = [int(i) for i in np.flatnonzero(is_far) if sweep.trials[i].may_stop]
        if not judged:
            return
        judged.sort(key=lambda i: sweep.progress[i])
        for i, averages in zip(judged, _running_averages(sweep, sweep.progress[judged]), strict=True):
            averages[i] = np.nan  # nobody is compared with itself
            others = averages[~np.isnan(averages)]
            if others.size >= self.least_others and sweep.best[i] > float(np.median(others)):
                yield i, others.size


def _running_averages(sweep: Sweep, progress: Floats) -> Iterator[Floats]:
    """For each progress, rising: the mean of each training's values up to it, shape (N,); NaN where it is not so far.

    Each report is looked at once: 10,000 trainings are judged at as many points in each pass.
    """
    told = [(trial.steps, trial.values, total) for trial, total in zip(sweep.trials, sweep.total_steps, strict=True)]
    at = np.concatenate([steps / total for steps, _, total in told])
    means = np.concatenate([np.cumsum(values) / np.arange(1, values.size + 1) for _, values, _ in told])
    whose = np.repeat(np.arange(len(told)), [steps.size for steps, _, _ in told])
    order = np.argsort(at, kind="stable")
    at, means, whose = at[order], means[order], whose[order]
    latest = np.full(len(told), np.nan)
    begin = 0
    for point, end in zip(progress, np.searchsorted(at, progress * (1 + _ROUNDING), side="right"), strict=True):
        latest[whose[begin:end]] = means[begin:end]  # of several by one training numpy keeps the last
        begin = end
        yield np.where(sweep.progress * (1 + _ROUNDING) >= point, latest, np.nan)
