"""Ours: the best trainings run to their ends, the others are explored, and stopping comes late and surely.

Trainings are compared at equal progress. GPUs are split between two aims. *Finishing*: the best training runs on to its
end; a contender that runs is not displaced, nobody is swapped for noise. *Exploring*: the other GPUs go where hope per
second until progress doubles is largest, so that no GPU is idle. Where hyper-parameters differ, hope is what they and
the trainings' standing promise, of those that have never run as of the others: a first run costs little, a late one
much. Once the leader has run to its end, the forecast's chances count beside hyper-parameters: what is left is to be
sure, and whoever keeps the sweep from being done goes on, seldom who is second and far. Where only curves tell, each
training gets a first chance, then the forecast's chances count, and the best trainings run to their ends on as many
GPUs as early ranks leave in doubt: on at least 3/8 of them, and on all where many are contenders. When the forecast
leaves less than `doubt` that anything still beats the best by more than `tolerance`, only those run on about whom it
may be wrong: the leader to its end, contenders, whoever is as good as the best at equal progress, and everybody until a
late start would show. When these are through, all stop.

*Standing*. Two trainings are compared by their best values at the furthest point that both have reached, never by what
one reported early with what the other did late: who has just started is not behind because he has just started. Points
are half doublings of the share of a training's own length. A training is a contender if the leader, when it was as far,
was ahead by no more than the training has improved since half of its progress: improving once more as it just did would
bring it level. Where values are far apart and hardly anybody moves, few are contenders: stopping pays. Where all make
more progress than lies between them, ranks will change, and only finishing tells who is best.

*Promise* of hyper-parameters: a Gaussian process with the exponential kernel exp(-d / l) on the distance d between
them: numbers by their ranks in the sweep, so that it does not matter whether a rate is given as itself or as its
logarithm; words as equal or not. Length scale and noise are the likeliest of a small grid (Rasmussen & Williams 2006,
5.4.1; the scale of the values is integrated out by its maximum). A learning rate counts four times: no other
hyper-parameter matters as much (Bengio 2012, arXiv 1206.5533, 3.1), and a few trainings cannot tell that by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise, product
from typing import ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from sched_policy.snapshot import Bools, Floats, Ints
from sched_policy.sweep.forecast import Histories, forecast
from sched_policy.sweep.trials import Sweep, SweepAction, SweepDecision, Trial, Verdict

LEAST_SEEN = 6
_MOST_SEEN = 128  # the cost grows with the cube
_SCALES = (0.5, 1.0, 2.0, 4.0)
_NOISES = (0.1, 0.4, 1.5)
_RATES_WEIGHT = 4.0  # of a learning rate in the distance


def promise(sweep: Sweep, seen: Ints, places: Floats) -> Floats | None:
    """What hyper-parameters promise of each training, shape (N,): the logarithm of its place, lower is better.

    `places` are those of the `seen` trainings, 0 for the best; who is not far yet has a less certain one. What a seen
    training has shown counts for it more than for others. Half a standard deviation is taken off (a lower confidence
    bound). None without hyper-parameters that differ, or while too few have been seen.
    """
    columns = _columns(sweep)
    if seen.size < LEAST_SEEN or not columns:
        return None
    if seen.size > _MOST_SEEN:
        kept = np.argsort(places, kind="stable")[np.linspace(0, seen.size - 1, _MOST_SEEN).astype(np.int64)]
        seen, places = seen[kept], places[kept]
    values = np.log((places + 1.0) / (places.max() + 1.0))
    mean, scale = float(values.mean()), float(values.std()) or 1.0
    values = (values - mean) / scale
    doubt = np.maximum(sweep.progress[seen], LEVELS[0]) ** -0.5
    doubt = np.diag(doubt / np.median(doubt))
    near = _distances(columns, seen, seen)
    likeliest, chosen = -np.inf, None
    for length, noise in product(_SCALES, _NOISES):
        lower = np.linalg.cholesky(np.exp(-near / length) + noise * doubt)
        whitened = np.linalg.solve(lower, values)
        variance = float(whitened @ whitened) / seen.size
        likelihood = -0.5 * seen.size * np.log(variance + 1e-12) - float(np.log(np.diag(lower)).sum())
        if likelihood > likeliest:
            likeliest, chosen = likelihood, (lower, whitened, length, variance)
    if chosen is None:
        return None
    lower, whitened, length, variance = chosen
    far = _distances(columns, seen, np.arange(len(sweep.trials)))
    part = np.linalg.solve(lower, np.exp(-far / length))
    std = np.sqrt(np.maximum(1.0 - (part**2).sum(axis=0), 0.0) * variance)
    expected: Floats = scale * (part.T @ whitened - 0.5 * std)
    return expected


class _Column(NamedTuple):
    """One hyper-parameter that differs between trainings: ranks from 0 to 1, or codes of words; and how it counts."""

    values: Floats
    is_number: bool
    weight: float


def _columns(sweep: Sweep) -> list[_Column]:
    columns = []
    for name in sorted({name for trial in sweep.trials for name in trial.params}):
        given = [trial.params.get(name) for trial in sweep.trials]
        is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given)
        _, codes = np.unique(np.array(given if is_number else [str(v) for v in given]), return_inverse=True)
        if codes.max() > 0:
            values = codes / codes.max() if is_number else codes.astype(np.float64)
            columns.append(_Column(values, is_number, _RATES_WEIGHT if _is_rate(name) else 1.0))
    return columns


def _is_rate(name: str) -> bool:
    """Whether the name is one of a learning rate, as `lr`, `learning_rate`, `optimizer.lr` or `learningRate`."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    return "lr" in words or "learningrate" in words or ("learning", "rate") in pairwise(words)


def _distances(columns: list[_Column], these: Ints, those: Ints) -> Floats:
    """Sums over all hyper-parameters, shape (len(these), len(those))."""
    total = np.zeros((these.size, those.size))
    for values, is_number, weight in columns:
        apart = np.abs(values[these][:, None] - values[those][None, :])
        total += weight * (apart if is_number else (apart > 0))
    return total


LEVELS: Floats = np.exp2(np.arange(-6.0, 0.25, 0.5))
"""Shares of a training's length at which trainings are compared: 1/64 to 1, two for each doubling."""

_DOUBLING = 2  # levels; below the first doubling values tell nothing yet
_ROUNDING = 1e-9


class SweepStanding(Struct, frozen=True, eq=False):
    """How the trainings of one sweep stand.

    Attributes:
        ahead: how many others were better at the furthest level that both have reached, shape (N,).
        is_known: who is far enough for a comparison to tell anything, and has run for longer than its start took,
            shape (N,).
        may_lead: the contenders, shape (N,).
        contenders: their share, with half a pseudo-observation of each kind: 1/2 while nothing is known.

    """

    ahead: Ints
    is_known: Bools
    may_lead: Bools
    contenders: float


def standing(sweep: Sweep) -> SweepStanding:
    """Compare all trainings of a sweep."""
    best_at = _best_at(sweep)
    level = np.isfinite(best_at).sum(axis=1) - 1
    ahead = np.zeros(len(level), dtype=np.int64)
    may_lead = np.zeros(len(level), dtype=np.bool_)
    for k in range(len(LEVELS)):
        value = best_at[:, k]
        here, beyond = np.flatnonzero(level == k), np.flatnonzero(level > k)
        if not here.size:
            continue
        all_there, ended_here = np.sort(value[level >= k]), np.sort(value[here])
        ahead[here] += np.searchsorted(all_there, value[here], side="left")
        ahead[beyond] += np.searchsorted(ended_here, value[beyond], side="left")
        if k >= _DOUBLING:
            improved = best_at[here, k - _DOUBLING] - value[here]
            may_lead[here] = (improved > 0) & (value[here] - all_there[0] <= improved)
    compared = int((level >= _DOUBLING).sum())
    has_paid = sweep.progress * sweep.length_s >= sweep.restart_s
    has_paid |= sweep.has_ended
    return SweepStanding(
        ahead=ahead,
        is_known=(level >= _DOUBLING) & has_paid,
        may_lead=may_lead,
        contenders=(float(may_lead.sum()) + 0.5) / (compared + 1.0),
    )


def _best_at(sweep: Sweep) -> Floats:
    """The best value by each training's first report at or after each level, shape (N, K); infinity above its last.

    An ended training stays what it was: it counts at all levels.
    """
    best_at = np.full((len(sweep.trials), len(LEVELS)), np.inf)
    for i, trial in enumerate(sweep.trials):
        if trial.steps.size:
            lowest = np.minimum.accumulate(trial.values)
            at = np.searchsorted(trial.steps, LEVELS * (sweep.total_steps[i] * (1 - _ROUNDING)))
            there = at < trial.steps.size
            best_at[i, there] = lowest[at[there]]
            if trial.has_ended:
                best_at[i, ~there] = lowest[-1]
    return best_at


_LEAST_SEEN = 3
_LATE = 0.5  # of a training: nothing that has not come so far tells how late values follow from early ones
_SHORTEST_S = 1e-6  # of a training whose length is known to be 0
_STEEPNESS = 2.0  # hope falls with this power of the promised place
_LEAST_HOPE = 1e-3  # over all trainings: keeps the order from being one of numbers that are all 0
_SWAP = 1.3  # a training that runs is left for one that is better by more than this factor: restarts cost


class AdaptiveHalving(Struct, frozen=True):
    """The default strategy.

    Attributes:
        tolerance: an improvement of the sweep's best value by less than this share of it is not worth waiting for.
        doubt: probability of a larger improvement below which the sweep is done.
        least_finishing: share of the GPUs that always finish the best trainings, where only curves tell.
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

    name: ClassVar[str] = "adaptive"

    def decide(self, sweep: Sweep, gpus: int) -> SweepDecision:
        """The best training first, then the others, by what they promise; what is done pauses or stops."""
        if sweep.has_ended.all():
            return SweepDecision((), "all trainings have ended")
        histories = Histories.of(sweep)
        expected = forecast(sweep, histories, self.tolerance)
        leader = int(np.argmin(sweep.best))
        # What the leader itself may still gain keeps nobody else on a GPU.
        others = float(min(expected.open, expected.chance.sum() - expected.chance[leader]))
        now = standing(sweep)
        order = self._order(sweep, gpus, now, expected.chance)
        if others < self.doubt and self._has_seen_enough(sweep, histories):
            return self._closing(sweep, now, order, others)
        return SweepDecision(
            tuple(
                Verdict(sweep.trials[i].trial_id, SweepAction.RUN, expected.open / (place + 1.0), why)
                for place, (i, why) in enumerate(order)
            )
        )

    def _has_seen_enough(self, sweep: Sweep, histories: Histories) -> bool:
        """Whether enough has been seen to trust the forecast."""
        late = sweep.has_ended | (sweep.progress >= _LATE)
        return bool(late.any() and histories.seen.sum() >= min(_LEAST_SEEN, len(sweep.trials)))

    def _closing(
        self, sweep: Sweep, now: SweepStanding, order: Iterable[tuple[int, str]], still_open: float
    ) -> SweepDecision:
        """Only the leader runs on, and who the forecast may be wrong about; when they are through, all stop."""
        chance = f"{100 * still_open:.2g} % chance that any other training still beats the best by "
        chance += f"{100 * self.tolerance:g} %"
        leader = int(np.argmin(sweep.best))
        may_lead = now.may_lead | (now.is_known & (now.ahead == 0))
        going: list[tuple[int, str]] = []
        others: list[Trial] = []
        for i, _ in order:
            if i == leader:
                going.insert(0, (i, "leads"))
            elif may_lead[i]:
                going.append((i, "may still come to lead"))
            elif sweep.progress[i] < self.least_progress:
                going.append((i, "has not come so far that a late start would show"))
            else:
                others.append(sweep.trials[i])
        verdicts = [
            Verdict(sweep.trials[i].trial_id, SweepAction.RUN, still_open, f"{why}; {chance}") for i, why in going
        ]
        last = SweepAction.PAUSE if going else SweepAction.STOP
        verdicts += [
            Verdict(trial.trial_id, last if trial.may_stop else SweepAction.RUN, 0.0, chance) for trial in others
        ]
        return SweepDecision(tuple(verdicts), None if going else f"done: {chance}")

    def _order(self, sweep: Sweep, gpus: int, now: SweepStanding, chance: Floats) -> Iterator[tuple[int, str]]:
        """Positions of the trainings that have not ended, in the order in which they should run, and why."""
        trials, known = sweep.trials, now.is_known
        seen = np.flatnonzero(known)
        promises = promise(sweep, seen, now.ahead[seen].astype(np.float64))
        going = np.flatnonzero(~sweep.has_ended).tolist()
        value = self._value(sweep, now)
        stays = [trials[i].is_running and bool(now.may_lead[i]) for i in range(len(trials))]
        able = sorted((i for i in going if known[i]), key=lambda i: (not stays[i], value[i], i))
        finishing = able[: 1 if _columns(sweep) else self._finishing(now, gpus)]
        doubt = f"{100 * now.contenders:.0f} % of the trainings may still come to lead"
        for i in finishing:
            role = "a contender" if stays[i] else "one of the best"
            yield i, f"runs to its end as {role}, {now.ahead[i]} are ahead; {doubt}"
        others = set(going).difference(finishing)
        tried_first = [i for i in others if not known[i] and (promises is None or sweep.runs[i])]
        for i in sorted(tried_first, key=lambda i: (trials[i].waits, not trials[i].steps.size, i)):
            yield i, "explored: not far enough to be compared"
        hope, by = self._hope(sweep, chance, promises)
        worth = self._worth(sweep, known, hope)
        for i in sorted(others.difference(tried_first), key=lambda i: (-worth[i], i)):
            yield i, f"explored: of those that are not sure to lead, it promises most per second by {by}"

    def _hope(self, sweep: Sweep, chance: Floats, promises: Floats | None) -> tuple[Floats, str]:
        """What exploring each training may bring, shape (N,), and what tells that.

        Until the leader has run to its end the search is for a better one; after that, for whatever keeps the sweep
        from being done. That is where the forecast sees a chance, seldom where progress is long and the place good.
        """
        if promises is None:
            return chance, "its curve"
        if not sweep.has_ended[np.argmin(sweep.best)]:
            return np.exp(-_STEEPNESS * promises), "its hyper-parameters and how it stands"
        least = _LEAST_HOPE / len(sweep.trials)
        return np.maximum(chance, least) * np.exp(-promises), "its curve and its hyper-parameters"

    def _finishing(self, now: SweepStanding, gpus: int) -> int:
        """On how many GPUs the best trainings run to their ends where only curves tell who is best."""
        share = self.finishing_per_contender * (now.contenders - self.usual_contenders)
        return max(1, round(min(1.0, max(self.least_finishing, share)) * gpus))

    def _worth(self, sweep: Sweep, known: Bools, hope: Floats) -> Floats:
        """Hope per second until progress has doubled, which shows what it was worth, shape (N,).

        A first run doubles progress where it has come far enough to be compared.
        """
        look_s = np.where(known, sweep.restart_s, LEVELS[_DOUBLING] * sweep.length_s)
        gone_s, left_s = sweep.progress * sweep.length_s, (1.0 - sweep.progress) * sweep.length_s
        more_s = np.maximum(np.minimum(np.maximum(gone_s, look_s), left_s), 1e-3 * sweep.length_s)
        hope = np.maximum(hope, _LEAST_HOPE / len(sweep.trials)) * np.where(known & sweep.runs, _SWAP, 1.0)
        worth: Floats = hope / np.maximum(np.where(sweep.progress > 0, sweep.moving_s, 0.0) + more_s, _SHORTEST_S)
        return worth

    def _value(self, sweep: Sweep, now: SweepStanding) -> Floats:
        """By what the best are chosen: how many are ahead, times what a whole training costs; lower is better, (N,).

        Cheap trainings first, where several are as good: by the theory of search, looking first where the chance per
        cost is highest finds soonest. Who is further goes first among equals.
        """
        gpus = np.array([trial.gpus for trial in sweep.trials], dtype=np.float64)
        cost = gpus * (sweep.length_s * (1.0 - 1e-3 * sweep.progress) + sweep.moving_s)
        value: Floats = (now.ahead + 1.0) * cost * np.where(sweep.runs, 1.0, _SWAP)
        return value
