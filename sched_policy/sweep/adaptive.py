"""Ours: the best trainings run to their ends, the others are explored, and stopping comes late and surely.

Trainings are compared at equal progress (`standing`). GPUs are split between two aims. *Finishing*: the best trainings
run on to their ends, on as many GPUs as early ranks leave in doubt: on at least 3/8 of them, and on all where many
trainings are contenders. A contender that runs is not displaced: nobody is swapped for noise. *Exploring*: the other
GPUs give each training a first chance, those first whose hyper-parameters promise most (`surrogate`), and when all had
theirs run those of which a short run tells most, so that no GPU is idle. Nobody is stopped before everybody has come so
far that a late start would show, the forecast leaves less than `doubt` that anything still beats the best by more than
`tolerance`, nobody is a contender or as good as the best at equal progress, and the leader has run to its end.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from sched_policy.snapshot import Floats
from sched_policy.sweep.decision import SweepAction, SweepDecision, Verdict
from sched_policy.sweep.forecast import Histories, forecast
from sched_policy.sweep.standing import Standing, standing
from sched_policy.sweep.surrogate import hopeful
from sched_policy.sweep.trials import Sweep

_LEAST_SEEN = 3
_LATE = 0.5  # of a training: nothing that has not come so far tells how late values follow from early ones
_SHORTEST_S = 1e-6  # of a training whose length is known to be 0
_SWAP = 1.3  # a training that runs is left for one that is better by more than this factor: restarts cost


class AdaptiveHalving(Struct, frozen=True):
    """The default strategy.

    Attributes:
        tolerance: an improvement of the sweep's best value by less than this share of it is not worth waiting for.
        doubt: probability of a larger improvement below which the sweep is done.
        least_finishing: share of the GPUs that always finish the best trainings.
        usual_contenders: share of contenders that is found where ranks are stable, too; it counts as none.
        finishing_per_contender: share of the GPUs that finish trainings, per share of contenders beyond the usual.
        least_progress: share of its length that each training has run before anybody is stopped. Some stand still at
            first and win in the end, and the forecast, which knows what has moved, does not expect that.

    """

    tolerance: float = 0.01
    doubt: float = 0.03
    least_finishing: float = 3 / 8
    usual_contenders: float = 1 / 8
    finishing_per_contender: float = 3.0
    least_progress: float = 1 / 8

    @property
    def name(self) -> str:
        """Its name."""
        return "adaptive"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """The best trainings first, then those that nobody knows yet, then the others."""
        going = np.array([not trial.has_ended for trial in sweep.trials], dtype=np.bool_)
        if not going.any():
            return SweepDecision((), "all trainings have ended")
        histories = Histories.of(sweep)
        expected = forecast(sweep, histories, self.tolerance)
        leader = int(np.argmin(sweep.best))
        # What the leader itself may still gain keeps nobody else on a GPU.
        others = float(min(expected.open, expected.chance.sum() - expected.chance[leader]))
        now = standing(sweep)
        if others < self.doubt and self._is_settled(sweep, histories, now, leader):
            return self._ending(sweep, leader, others)
        order = self._order(sweep, gpus, now, expected.chance)
        return SweepDecision(
            tuple(
                Verdict(sweep.trials[i].trial_id, SweepAction.RUN, expected.open / (place + 1.0), why)
                for place, (i, why) in enumerate(order)
            )
        )

    def _is_settled(self, sweep: Sweep, histories: Histories, now: Standing, leader: int) -> bool:
        """Whether enough has been seen to trust the forecast, and nobody else is on a way that may lead."""
        if int(histories.seen.sum()) < min(_LEAST_SEEN, len(sweep.trials)):
            return False
        ended = np.array([trial.has_ended for trial in sweep.trials], dtype=np.bool_)
        rivals = (now.may_lead | (now.is_known & (now.ahead == 0))) & ~ended
        rivals[leader] = False
        has_shown = ended | (sweep.progress >= self.least_progress)
        return bool(has_shown.all() and (ended | (sweep.progress >= _LATE)).any() and not rivals.any())

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

    def _order(self, sweep: Sweep, gpus: int, now: Standing, chance: Floats) -> Iterator[tuple[int, str]]:
        """Positions of the trainings that have not ended, in the order in which they should run, and why."""
        trials, known = sweep.trials, now.is_known
        going = [i for i, trial in enumerate(trials) if not trial.has_ended]
        value = self._value(sweep, now)
        stays = [trials[i].is_running and bool(now.may_lead[i]) for i in range(len(trials))]
        able = sorted((i for i in going if known[i]), key=lambda i: (not stays[i], value[i], i))
        finishing = self.finishing_per_contender * (now.contenders - self.usual_contenders)
        first = max(1, round(min(1.0, max(self.least_finishing, finishing)) * gpus))
        doubt = f"{100 * now.contenders:.0f} % of the trainings may still come to lead"
        for i in able[:first]:
            role = "a contender" if stays[i] else "one of the best"
            yield i, f"runs to its end as {role}, {now.ahead[i]} are ahead; {doubt}"
        for i in self._unknown(sweep, now):
            yield i, "explored: not far enough to be compared"
        doubtful = self._doubtful(sweep, chance)
        for i in sorted(able[first:], key=lambda i: (-doubtful[i], i)):
            yield i, f"takes a GPU that would be idle: {100 * chance[i]:.1f} % chance to become the best"

    def _unknown(self, sweep: Sweep, now: Standing) -> list[int]:
        """Those of whom too little is known, in the order in which they are tried."""
        unknown = np.flatnonzero(~now.is_known)
        seen = np.flatnonzero(now.is_known)
        promises = hopeful(sweep, seen, now.ahead[seen].astype(np.float64), unknown)
        promise = dict(zip(unknown.tolist(), promises.tolist(), strict=True))
        trials = sweep.trials
        return sorted(
            (i for i in promise if not trials[i].has_ended),
            key=lambda i: (trials[i].waits, not trials[i].steps.size, promise[i], i),
        )

    def _doubtful(self, sweep: Sweep, chance: Floats) -> Floats:
        """Chance to become the best per second until progress has doubled, which shows what it was worth, (N,).

        The floor keeps the order from being one of numbers that are all 0.
        """
        runs = np.array([trial.is_running for trial in sweep.trials], dtype=np.bool_)
        moving_s = np.where(runs, 0.0, sweep.restart_s + sweep.checkpoint_s)
        gone_s, left_s = sweep.progress * sweep.length_s, (1.0 - sweep.progress) * sweep.length_s
        more_s = np.maximum(np.minimum(np.maximum(gone_s, sweep.restart_s), left_s), 1e-3 * sweep.length_s)
        hope = np.where(runs, _SWAP, 1.0) * np.maximum(chance, 1e-3 / len(runs))
        doubtful: Floats = hope / np.maximum(moving_s + more_s, _SHORTEST_S)
        return doubtful

    def _value(self, sweep: Sweep, now: Standing) -> Floats:
        """By what the best are chosen: how many are ahead, times what a whole training costs; lower is better, (N,).

        Cheap trainings first, where several are as good: by the theory of search, looking first where the chance per
        cost is highest finds soonest. Who is further goes first among equals.
        """
        runs = np.array([trial.is_running for trial in sweep.trials], dtype=np.bool_)
        gpus = np.array([trial.gpus for trial in sweep.trials], dtype=np.float64)
        moving_s = np.where(runs, 0.0, sweep.restart_s + sweep.checkpoint_s)
        cost = gpus * (sweep.length_s * (1.0 - 1e-3 * sweep.progress) + moving_s)
        value: Floats = (now.ahead + 1.0) * cost * np.where(runs, 1.0, _SWAP)
        return value
