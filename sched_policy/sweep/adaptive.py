"""The default strategy: the best trainings run to their ends, others are explored, and stopping is late and certain.

Trainings are compared at equal progress. GPUs are split between two aims. *Finishing*: the best training runs to its
end; a running contender is not displaced, so that noise causes no swaps. *Exploring*: the other GPUs go to trainings
with the largest hope per second until their progress doubles. Where hyper-parameters differ, hope follows from them and
from the trainings' standing (`surrogate`), also for trainings that have never run: a first run is cheap, a late one
expensive. Until enough trainings can be compared, those with usual learning rates go first. When few promise much, the
others rest, and their GPUs are for others. Once the leader has run to its end, the forecast's chances count as well:
what is left is to become certain, so the trainings that keep the sweep from being done continue, rarely one far
advanced.
Where there are only curves, each training gets a first run; then the forecast's chances count, and the best trainings
run to their ends on as many GPUs as early ranks are uncertain: on at least 3/8, and on all where many are contenders.
When the forecast's probability that anything still beats the best by more than `tolerance` falls below `doubt`, only
trainings about which it may be wrong continue: the leader to its end, contenders that could beat it by `tolerance`,
trainings as good as the best at equal progress, and all others until a late improvement would show. Then all stop.

*Standing*. Two trainings are compared by their best values at the furthest point that both have reached, so a training
that has just started is not behind for that reason. Points are half doublings of the fraction of a training's own
length. A training is a contender if the leader, at the same progress, was ahead by no more than the training has
improved since half of its progress: one more such improvement would bring it level. Where values are far apart and few
trainings still improve, few are contenders, and stopping pays. Where all improve by more than the distances between
them, ranks will change, and only finishing shows which is best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.model import LARGEST_VALUE
from sched_policy.snapshot import Bools, Floats, Ints
from sched_policy.sweep.forecast import ROUNDING, Histories, forecast
from sched_policy.sweep.surrogate import promise, unusual
from sched_policy.sweep.trials import Sweep, SweepAction, SweepDecision, Trial, Verdict

LEVELS: Floats = np.exp2(np.arange(-6.0, 0.25, 0.5))
"""Fractions of a training's length at which trainings are compared: 1/64 to 1, two for each doubling."""

_DOUBLING = 2  # levels; values before the first doubling say nothing yet


class SweepStanding(Struct, frozen=True, eq=False):
    """The comparison of the trainings of one sweep.

    Attributes:
        ahead: how many others were better at the furthest level that both have reached, shape (N,).
        is_known: which trainings are far enough to be compared and have run for longer than their start took,
            shape (N,).
        margin: how far ahead of the leader one more improvement as since half of its progress would bring each, shape
            (N,); negative: still behind, -infinity for those that did not improve.
        contenders: their fraction, with half a pseudo-observation of each kind: 1/2 while nothing is known.

    """

    ahead: Ints
    is_known: Bools
    margin: Floats
    contenders: float

    @property
    def may_lead(self) -> Bools:
        """The contenders, shape (N,)."""
        return self.margin >= 0


def _first_level(sweep: Sweep) -> int:
    """The level from which a training is compared: 4.4 % of its length, 3.1 % where there are only curves."""
    return _DOUBLING + 1 if sweep.params else _DOUBLING  # few are tried before the best one, so longer


def standing(sweep: Sweep) -> SweepStanding:
    """Compare all trainings of a sweep."""
    best_at = _best_at(sweep)
    level = np.isfinite(best_at).sum(axis=1) - 1
    ahead = np.zeros(len(level), dtype=np.int64)
    margin = np.full(len(level), -np.inf)
    for k in sorted({*level.tolist()} - {-1}):
        value = best_at[:, k]
        here, beyond = np.flatnonzero(level == k), np.flatnonzero(level > k)
        all_there, ended_here = np.sort(value[level >= k]), np.sort(value[here])
        ahead[here] += np.searchsorted(all_there, value[here], side="left")
        ahead[beyond] += np.searchsorted(ended_here, value[beyond], side="left")
        if k >= _DOUBLING:
            improved = best_at[here, k - _DOUBLING] - value[here]
            margin[here] = np.where(improved > 0, improved - (value[here] - all_there[0]), -np.inf)
    has_paid = (sweep.progress * sweep.length_s >= sweep.restart_s) | sweep.has_ended
    return SweepStanding(
        ahead=ahead,
        is_known=(level >= _first_level(sweep)) & has_paid,
        margin=margin,
        contenders=(float((margin >= 0).sum()) + 0.5) / (float((level >= _DOUBLING).sum()) + 1.0),
    )


def _best_at(sweep: Sweep) -> Floats:
    """The best value up to each training's first report at or after each level, shape (N, K); infinity above its last.

    The final value of an ended training counts at all higher levels.
    """
    best_at = np.full((len(sweep.trials), len(LEVELS)), np.inf)
    for i, trial in enumerate(sweep.trials):
        if trial.steps.size:
            lowest = np.minimum.accumulate(trial.values)
            at = np.searchsorted(trial.steps, LEVELS * (sweep.total_steps[i] * (1 - ROUNDING)))
            there = at < trial.steps.size
            best_at[i, there] = lowest[at[there]]
            if trial.has_ended:
                best_at[i, ~there] = lowest[-1]
    return best_at


_LEAST_SEEN = 3
_LATE = 0.5  # fraction of a training; only those beyond it show how late values follow from early ones
_SHORTEST_S = 1e-6  # of a training whose length is known to be 0
_STEEPNESS = 2.0  # hope falls with this power of the promised place
_LEAST_HOPE = 1e-3  # summed over all trainings: without it all could be 0 and have no order
_SWAP = 1.3  # a running training is replaced only by one better by more than this factor: restarts cost


class AdaptiveHalving(Struct, frozen=True):
    """The default strategy.

    Attributes:
        tolerance: an improvement of the sweep's best value by less than this fraction is not worth waiting for.
        doubt: probability of a larger improvement below which the sweep is done.
        least_finishing: fraction of the GPUs that always finish the best trainings, where there are only curves.
        usual_contenders: fraction of contenders that is found even where ranks are stable; it counts as none.
        finishing_per_contender: fraction of the GPUs that finish trainings, per fraction of contenders above the usual.
        least_progress: fraction of its length that each training has run before any is stopped. Some do not improve at
            first and win in the end, which the forecast, made from what has improved, does not expect.
        exploring: trainings that run at a time, per one as promising as the best by parameters (`_worth_exploring`).

    """

    tolerance: float = 0.01
    doubt: float = 0.01
    least_finishing: float = 3 / 8
    usual_contenders: float = 1 / 8
    finishing_per_contender: float = 3.0
    least_progress: float = 1 / 8
    exploring: float = 0.4

    name: ClassVar[str] = "adaptive"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """The best training first, then the others by their promise; once the sweep is done they pause or stop."""
        if sweep.has_ended.all():
            return SweepDecision((), "all trainings have ended")
        if len(sweep.trials) == 1:
            return SweepDecision((Verdict(sweep.trials[0].trial_id, SweepAction.RUN, 1.0, "alone in its sweep"),))
        histories = Histories.of(sweep)
        expected = forecast(sweep, histories, self.tolerance)
        leader = int(np.argmin(sweep.best))
        # The leader's own chance to improve is no reason to keep others running.
        others = float(min(expected.open, expected.chance.sum() - expected.chance[leader]))
        now = standing(sweep)
        order = tuple(self._order(sweep, gpus, now, expected.chance))
        late = sweep.has_ended | (sweep.progress >= _LATE)
        if others < self.doubt and late.any() and histories.seen.sum() >= min(_LEAST_SEEN, len(sweep.trials)):
            return self._closing(sweep, now, (i for i, _, _ in order), others)
        verdicts = (
            Verdict(sweep.trials[i].trial_id, action, expected.open / (place + 1.0), why)
            for place, (i, action, why) in enumerate(order)
        )
        return SweepDecision(tuple(verdicts))

    def _closing(self, sweep: Sweep, now: SweepStanding, order: Iterable[int], still_open: float) -> SweepDecision:
        """Only the leader and trainings that the forecast may be wrong about continue; once they end, all stop."""
        chance = f"{100 * still_open:.2g} % chance that any other training still beats the best by "
        chance += f"{100 * self.tolerance:g} %"
        leader = int(np.argmin(sweep.best))
        may_win = now.margin > self.tolerance * abs(sweep.best[leader])
        may_win |= now.is_known & (now.ahead == 0)
        going: list[tuple[int, str]] = []
        others: list[Trial] = []
        for i in order:
            if i == leader:
                going.insert(0, (i, "leads"))
            elif may_win[i]:
                going.append((i, "may still come to lead"))
            elif sweep.progress[i] < self.least_progress:
                going.append((i, "has not come so far that a late start would show"))
            else:
                others.append(sweep.trials[i])
        verdicts = [
            Verdict(sweep.trials[i].trial_id, SweepAction.RUN, 1.0 if i == leader else still_open, f"{why}; {chance}")
            for i, why in going  # the leader before other sweeps' trainings: they must not keep it from its end
        ]
        last = SweepAction.PAUSE if going else SweepAction.STOP
        verdicts += [
            Verdict(trial.trial_id, last if trial.may_stop else SweepAction.RUN, 0.0, chance) for trial in others
        ]
        return SweepDecision(tuple(verdicts), None if going else f"done: {chance}")

    def _order(
        self, sweep: Sweep, gpus: int, now: SweepStanding, chance: Floats
    ) -> Iterator[tuple[int, SweepAction, str]]:
        """Positions of the trainings that have not ended, in the order in which they should run."""
        trials, known, odd = sweep.trials, now.is_known, unusual(sweep)
        seen = np.flatnonzero(known)
        promises = promise(sweep, seen, now.ahead[seen].astype(np.float64))
        going = np.flatnonzero(~sweep.has_ended).tolist()
        value = self._value(sweep, now)
        stays = [trials[i].is_running and bool(now.may_lead[i]) for i in range(len(trials))]
        able = sorted((i for i in going if known[i]), key=lambda i: (not stays[i], value[i], i))
        share = max(self.least_finishing, self.finishing_per_contender * (now.contenders - self.usual_contenders))
        held = np.cumsum([trials[i].gpus for i in able])
        finishing = able[: 1 if sweep.params else max(1, int((held <= round(min(1.0, share) * gpus)).sum()))]
        for i in finishing:
            rank = f"{now.ahead[i]} ahead of it" if now.ahead[i] else "best at equal progress"
            yield i, SweepAction.RUN, f"runs to its end: {'may win' if stays[i] else 'among the best'}, {rank}"
        others = set(going).difference(finishing)
        tried_first = [i for i in others if not known[i] and (promises is None or sweep.runs[i])]
        is_untold = all(trial.total_steps is None for trial in trials)
        for i in sorted(tried_first, key=lambda i: (trials[i].waits, not trials[i].steps.size, odd[i], i)):
            why = "reports no total_steps by which" if is_untold and trials[i].steps.size else "not far enough"
            yield i, SweepAction.RUN, f"explored: {why} to be compared"
        hope, by = self._hope(sweep, chance, promises)
        worth = self._worth(sweep, known, hope)
        most = self._worth_exploring(sweep, hope[going], promises)
        explored = sorted(others.difference(tried_first), key=lambda i: (sweep.best[i] == LARGEST_VALUE, -worth[i], i))
        for place, i in enumerate(explored, start=len(finishing)):
            if place < most + sweep.runs[i]:  # one more may stay than may start: restarts cost
                yield i, SweepAction.RUN, f"explored: among the largest expected gains per second, by {by}"
            else:
                yield i, SweepAction.PAUSE, f"not worth a GPU now: {place} others have larger expected gains, by {by}"

    def _worth_exploring(self, sweep: Sweep, hope: Floats, promises: Floats | None) -> float:
        """How many trainings are worth their GPUs: a part of the number of equally good ones with the same entropy.

        That number is the exponential of Shannon's entropy (perplexity): all while nothing is known, few once they can
        be told apart. Where there are only curves, or the leader has ended, it is not limited.
        """
        if promises is None or sweep.has_ended[np.argmin(sweep.best)]:
            return math.inf
        share = hope / hope.sum()
        return math.ceil(self.exploring * math.exp(-float(share @ np.log(share))))

    def _hope(self, sweep: Sweep, chance: Floats, promises: Floats | None) -> tuple[Floats, str]:
        """The expected benefit of exploring each training, shape (N,), and the source of the estimate.

        Until the leader has run to its end the aim is a better training; after that, to rule out those that keep the
        sweep from being done. These are the ones with a chance by the forecast, rarely those far advanced.
        """
        if promises is None:
            return chance, "learning curves"
        if not sweep.has_ended[np.argmin(sweep.best)]:
            return np.exp(-_STEEPNESS * promises), "hyper-parameters and rank"
        least = _LEAST_HOPE / len(sweep.trials)
        return np.maximum(chance, least) * np.exp(-promises), "learning curves and hyper-parameters"

    def _worth(self, sweep: Sweep, known: Bools, hope: Floats) -> Floats:
        """Hope per second until a training's progress has doubled, after which it is judged again, shape (N,).

        A first run counts as doubled once it has come far enough to be compared.
        """
        look_s = np.where(known, sweep.restart_s, LEVELS[_first_level(sweep)] * sweep.length_s)
        gone_s, left_s = sweep.progress * sweep.length_s, (1.0 - sweep.progress) * sweep.length_s
        more_s = np.maximum(np.minimum(np.maximum(gone_s, look_s), left_s), 1e-3 * sweep.length_s)
        hope = np.maximum(hope, _LEAST_HOPE / len(sweep.trials)) * np.where(known & sweep.runs, _SWAP, 1.0)
        worth: Floats = hope / np.maximum(np.where(sweep.progress > 0, sweep.moving_s, 0.0) + more_s, _SHORTEST_S)
        return worth

    def _value(self, sweep: Sweep, now: SweepStanding) -> Floats:
        """The key by which the best are chosen: how many are ahead, times the cost of a whole training, shape (N,).

        Lower is better. Among equally good trainings the cheap ones go first: in search theory the order of highest
        chance per cost finds soonest. Among equals the furthest goes first.
        """
        gpus = np.array([trial.gpus for trial in sweep.trials], dtype=np.float64)
        cost = gpus * (sweep.length_s * (1.0 - 1e-3 * sweep.progress) + sweep.moving_s)
        value: Floats = (now.ahead + 1.0) * cost * np.where(sweep.runs, 1.0, _SWAP)
        return value
