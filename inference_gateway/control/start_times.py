"""How long a replica takes to start, from starts that have ended and those that still go on.

A replica that waits in Slurm's queue has not told yet how long it waits, but that it is more than until now: its age is
a censored observation. Leaving it out would make a full cluster look as quick as it was yesterday (Kaplan and Meier,
Nonparametric estimation from incomplete observations, 1958).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from slurm_plugin.client.records import QueuedJob


def quantile(ended_s: Sequence[float], going_on_s: Sequence[float], share: float) -> float:
    """The time within which `share` of all have ended; the longest seen if so many have not. There must be one."""
    return _reached(ended_s, going_on_s, 1.0 - share) or max((*ended_s, *going_on_s))


def median_left_s(ended_s: Sequence[float], going_on_s: Sequence[float], age_s: float) -> float:
    """How long one of this age will still take: the median of those that took longer.

    Without any it may take as long again: nothing else is known of what has lasted longer than all before it.
    """
    longer = [found for found in ended_s if found > age_s]
    end_s = _reached(longer, [found for found in going_on_s if found > age_s], 0.5)
    return age_s if end_s is None else end_s - age_s


def _reached(ended_s: Sequence[float], going_on_s: Sequence[float], left: float) -> float | None:
    """When no more than this share is left (Kaplan-Meier); None if that was not seen."""
    survival = 1.0
    for time_s in sorted(set(ended_s)):
        at_risk = sum(found >= time_s for found in (*ended_s, *going_on_s))
        survival *= 1.0 - ended_s.count(time_s) / at_risk
        if survival <= left + 1e-9:
            return time_s
    return None


_LEAST_S = 5.0
"""Shorter times are not told apart: jobs are listed every few seconds."""
_KEPT_OF_A_WAIT = 8
_MOST_NOTED = 64


@dataclass(frozen=True, slots=True)
class Start:
    """A replica on its way, now. `age_s` is since its job runs, else since it was asked for.

    `expected_in_s` is Slurm's own estimate for a job that waits, None while it has none: the backfill scheduler has not
    looked at the job yet. It is optimistic where jobs of higher priority may still come, and pessimistic where jobs end
    before their time limits. `turn_in_s` is when the others before it will have started, if they go on as of late.
    """

    running: bool
    age_s: float
    expected_in_s: float | None = None
    turn_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Foretold:
    """What was once said to be left of a job's wait, and what was, in seconds.

    `said_s` is Slurm's estimate, `corrected_s` what was made of it then, `turn_s` what its turn said.
    """

    said_s: float
    came_s: float
    corrected_s: float
    turn_s: float | None = None


class EstimateLog:
    """What Slurm says of each job that waits, by name, until it is known how long the job waited."""

    def __init__(self) -> None:
        self._said: dict[str, list[tuple[float, float, float, float | None]]] = {}

    def note(self, name: str, now_s: float, start: Start, foretold: Sequence[Foretold] = ()) -> None:
        """What is said now of a job that waits, if Slurm says anything; `foretold` is what is known by now."""
        said_s = start.expected_in_s
        if said_s is None:
            return
        noted = self._said.setdefault(name, [])
        noted.append((now_s, said_s, corrected_s(said_s, foretold), start.turn_in_s))
        if len(noted) > _MOST_NOTED:
            del noted[1::2]

    def started(self, name: str, began_s: float) -> tuple[Foretold, ...]:
        """The job has started: a few estimates from all of its wait, with what came of them."""
        noted = [one for one in self._said.pop(name, ()) if one[0] < began_s]
        few = min(_KEPT_OF_A_WAIT, len(noted))
        chosen = (noted[place * len(noted) // few] for place in range(few))
        return tuple(Foretold(said_s, began_s - at_s, ours_s, turn_s) for at_s, said_s, ours_s, turn_s in chosen)

    def keep(self, names: Collection[str]) -> None:
        """Forget all other jobs."""
        self._said = {name: noted for name, noted in self._said.items() if name in names}


def corrected_s(said_s: float, foretold: Sequence[Foretold]) -> float:
    """How long a job will wait of which Slurm says `said_s`, by what came of earlier estimates.

    Slurm reckons with time limits and without those who come later, so it is wrong by much the same factor each time,
    but not by the same at the end of a wait as at its beginning. So the logarithm of what came is taken as linear in
    that of what was said, by ridge regression towards "as Slurm says" with the weight of one estimate (Hoerl and
    Kennard, Technometrics 12(1), 1970).
    """
    if not foretold:
        return said_s
    said = [math.log(max(_LEAST_S, one.said_s)) for one in foretold]
    factors = [math.log(max(_LEAST_S, one.came_s)) - at for one, at in zip(foretold, said, strict=True)]
    middle = sum(said) / len(said)
    level = sum(factors) / (len(factors) + 1)
    slope = sum((at - middle) * (factor - level) for at, factor in zip(said, factors, strict=True))
    slope /= sum((at - middle) ** 2 for at in said) + 1
    now = math.log(max(_LEAST_S, said_s))
    # Who is said to wait longer does not wait shorter, nor much longer than in proportion.
    return math.exp(now + level + min(1.0, max(-1.0, slope)) * (now - middle))


def _error(pairs: Sequence[tuple[float, float]]) -> float:
    """The mean factor between what was said and what came, as a logarithm."""
    return fmean(abs(math.log(max(_LEAST_S, said_s) / max(_LEAST_S, came_s))) for said_s, came_s in pairs)


def slurm_knows_better(foretold: Sequence[Foretold]) -> bool:
    """Whether Slurm's estimates, as they were corrected then, have come truer than turns; those are believed at first.

    Both are judged by what they said before it came (Dawid, Journal of the Royal Statistical Society A 147(2), 1984).
    """
    turns = [(one.turn_s, one.came_s) for one in foretold if one.turn_s is not None]
    if not turns:
        return False
    return _error([(one.corrected_s, one.came_s) for one in foretold if one.turn_s is not None]) < _error(turns)


_LATEST = 24
"""Starts from which the time between two of them is known to a fifth."""


class WaitingLine:
    """Slurm's queue: whose turn is when, if jobs go on starting in order of priority and as often as of late."""

    def __init__(self) -> None:
        self._starts_s: dict[str, dict[int, float]] = {}
        self._ahead: dict[int, int] = {}
        self._partitions: dict[int, tuple[str, ...]] = {}
        self._at_s = 0.0

    def take(self, at_s: float, jobs: Sequence[QueuedJob], ours: Collection[int]) -> None:
        """Take a listing that began at this time. Places are worked out for `ours`, by job id."""
        self._at_s = at_s
        for job in jobs:
            if job.start_s is not None:
                for partition in job.partitions:
                    self._starts_s.setdefault(partition, {})[job.job_id] = job.start_s
        for partition, starts in self._starts_s.items():
            if len(starts) > _LATEST:
                latest = sorted(starts.items(), key=lambda item: item[1])[-_LATEST:]
                self._starts_s[partition] = dict(latest)
        waiting = sorted((job for job in jobs if job.ready), key=lambda job: (-job.priority, job.job_id))
        self._partitions = {job.job_id: job.partitions for job in waiting if job.job_id in ours}
        self._ahead = {}
        for partitions in set(self._partitions.values()):
            ahead = 0
            for job in waiting:
                if self._partitions.get(job.job_id) == partitions:
                    self._ahead[job.job_id] = ahead
                ahead += not set(partitions).isdisjoint(job.partitions)

    def turn_s(self, job_id: int, now_s: float) -> float | None:
        """In how many seconds it is the job's turn; None if that is not known."""
        found = self._partitions.get(job_id, ())
        starts = [at_s for name in found for at_s in self._starts_s.get(name, {}).values()]
        if len(starts) < 2:
            return None
        between_s = max(0.0, self._at_s - min(starts)) / len(starts)
        # The median of the time of the n-th of random events is near n - 1/3 times what is between two (Chen and Rubin,
        # Statistics and Probability Letters 4(6), 1986). If it should have come already, it may come at any moment.
        turns = self._ahead[job_id] + 2 / 3
        return max(between_s / 2, turns * between_s - (now_s - self._at_s))


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The latest times of one service: in Slurm's queue, and from the start of the job until it serves.

    `foretold` is what came of Slurm's estimates for its jobs.
    """

    waits_s: Sequence[float]
    loads_s: Sequence[float]
    foretold: Sequence[Foretold] = ()

    def next_in_s(self, starts: Iterable[Start], configured_s: float) -> float | None:
        """When the first of these will serve; None if there is none. `configured_s` stands for what is not measured."""
        known = tuple(starts)
        return min((self._left_s(start, known, configured_s) for start in known), default=None)

    def _left_s(self, start: Start, known: Sequence[Start], configured_s: float) -> float:
        loading = [other.age_s for other in known if other.running]
        if start.running:
            if not self.loads_s and start.age_s < configured_s:
                return configured_s - start.age_s
            return median_left_s(self.loads_s, loading, start.age_s)
        load_s = quantile(self.loads_s, loading, 0.5) if self.loads_s else configured_s
        if start.turn_in_s is not None and (start.expected_in_s is None or not slurm_knows_better(self.foretold)):
            return start.turn_in_s + load_s
        if start.expected_in_s is not None:
            return corrected_s(max(0.0, start.expected_in_s), self.foretold) + load_s
        if not self.waits_s and start.age_s < configured_s:
            return max(load_s, configured_s - start.age_s)
        return median_left_s(self.waits_s, [other.age_s for other in known if not other.running], start.age_s) + load_s
