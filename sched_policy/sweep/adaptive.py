"""Ours: asynchronous halving that finishes as many trainings as early ranks leave in doubt, and stops late and surely.

GPUs are split between two aims. *Finishing*: the best trainings by their present values run on to their ends, on as
large a part of the GPUs as there are contenders among the trainings (`contenders`): most where ranks will still change,
few where early values tell who will win. A contender that runs is not displaced: nobody is swapped for noise.
*Exploring*: the other GPUs follow ASHA's rule. Where that promotes nobody, the paused training goes on that is most
likely to become the best per second that it still has to run, so that no GPU is idle. Nobody is stopped before the
forecast leaves less than `doubt` that anything still beats the best by more than `tolerance`, and the leader has run to
its end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from sched_policy.snapshot import Floats
from sched_policy.sweep.asha import Asha
from sched_policy.sweep.contenders import Contention, contention
from sched_policy.sweep.decision import SweepAction, SweepDecision, Verdict
from sched_policy.sweep.forecast import forecast
from sched_policy.sweep.histories import Histories
from sched_policy.sweep.trials import Sweep

_LEAST_SEEN = 3
_LATE = 0.5  # of a training: nothing that has not come so far tells how late values follow from early ones


class AdaptiveHalving(Struct, frozen=True):
    """The default strategy.

    Attributes:
        asha: who is explored.
        tolerance: an improvement of the sweep's best value by less than this share of it is not worth waiting for.
        doubt: probability of a larger improvement below which the sweep is done.

    """

    asha: Asha = Asha()
    tolerance: float = 0.01
    doubt: float = 0.03

    @property
    def name(self) -> str:
        """Its name."""
        return "adaptive"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """Leaders and contenders first, then ASHA's choice, then whoever may most likely become the best."""
        going = np.array([not trial.has_ended for trial in sweep.trials], dtype=np.bool_)
        if not going.any():
            return SweepDecision((), "all trainings have ended")
        histories = Histories.of(sweep)
        expected = forecast(sweep, histories, self.tolerance)
        still_open = expected.open
        leader = int(np.argmin(sweep.best))
        # What the leader itself may still gain keeps nobody else on a GPU.
        others = float(min(still_open, expected.chance.sum() - expected.chance[leader]))
        if self._is_done(sweep, histories, others):
            return self._ending(sweep, leader, others)
        ranks = contention(sweep)
        order = dict(self._order(sweep, gpus, ranks, expected.chance))
        return SweepDecision(
            tuple(
                Verdict(sweep.trials[i].trial_id, SweepAction.RUN, still_open / (place + 1.0), why)
                for place, (i, why) in enumerate(order.items())
            )
        )

    def _is_done(self, sweep: Sweep, histories: Histories, still_open: float) -> bool:
        if int(histories.seen.sum()) < min(_LEAST_SEEN, len(sweep.trials)):
            return False
        is_late = any(trial.has_ended or at >= _LATE for trial, at in zip(sweep.trials, sweep.progress, strict=True))
        return is_late and still_open < self.doubt

    def _ending(self, sweep: Sweep, leader: int, still_open: float) -> SweepDecision:
        """The leader runs to its end; after that, nothing runs."""
        by = f"{100 * self.tolerance:g} %"
        chance = f"{100 * still_open:.2g} % chance that any other training still beats the best by {by}"
        verdicts = []
        if not sweep.trials[leader].has_ended:
            why = f"leads; {chance}, so that it alone runs on"
            verdicts.append(Verdict(sweep.trials[leader].trial_id, SweepAction.RUN, still_open, why))
        last = SweepAction.PAUSE if verdicts else SweepAction.STOP
        verdicts += [
            Verdict(trial.trial_id, last if trial.may_stop else SweepAction.RUN, 0.0, chance)
            for i, trial in enumerate(sweep.trials)
            if i != leader and not trial.has_ended
        ]
        return SweepDecision(tuple(verdicts), None if last is SweepAction.PAUSE else f"done: {chance}")

    def _order(self, sweep: Sweep, gpus: int, ranks: Contention, chance: Floats) -> Iterator[tuple[int, str]]:
        """Positions of the trainings that have not ended, in the order in which they should run, and why."""
        trials, best = sweep.trials, sweep.best
        able = [i for i, trial in enumerate(trials) if not trial.has_ended and trial.steps.size]
        stays = [trials[i].is_running and bool(ranks.may_lead[i]) for i in range(len(trials))]
        finishing = round(ranks.share * gpus)
        chosen = sorted(able, key=lambda i: (not stays[i], best[i], trials[i].trial_id))[:finishing]
        why = f"{100 * ranks.share:.0f} % of the trainings may still come to lead"
        for i in chosen:
            yield i, f"runs to its end as {'a contender' if stays[i] else 'a leader'}: {why}"
        taken = set(chosen)
        position = {trial.trial_id: i for i, trial in enumerate(trials)}
        for verdict in self.asha.decide(sweep, gpus).verdicts:
            i = position[verdict.trial_id]
            if verdict.action is SweepAction.RUN and i not in taken:
                taken.add(i)
                yield i, f"explored: {verdict.reason}"
        hope = self._hope(sweep, chance)
        for i in sorted(set(able) - taken, key=lambda i: (-hope[i], trials[i].trial_id)):
            yield i, f"takes a GPU that would be idle: {100 * chance[i]:.1f} % chance to become the best"

    def _hope(self, sweep: Sweep, chance: Floats) -> Floats:
        """Chance to become the best per second of what is left to run; twice that for those that run, (N,).

        By the theory of search, looking first where the chance per cost is highest finds soonest. The floor keeps the
        order from being one of numbers that are all 0; the factor, trainings from being swapped for noise.
        """
        runs = np.array([trial.is_running for trial in sweep.trials], dtype=np.bool_)
        moving_s = np.where(runs, 0.0, sweep.restart_s + sweep.checkpoint_s)
        left_s = moving_s + np.maximum(1.0 - sweep.progress, 1e-3) * sweep.length_s
        hope: Floats = np.where(runs, 2.0, 1.0) * np.maximum(chance, 1e-3 / len(runs)) / left_s
        return hope
