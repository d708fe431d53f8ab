"""Estimates how long a replica takes to start, from completed starts and from those still in progress.

A replica that waits in Slurm's queue is a censored observation: it will wait at least as long as it has so far. Leaving
it out would make a full cluster look as fast as it was yesterday (Kaplan and Meier, Nonparametric estimation from
incomplete observations, 1958).
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from slurm_plugin.client.records import QueuedJob


def quantile(ended_s: Sequence[float], going_on_s: Sequence[float], share: float) -> float:
    """The time within which `share` of all have ended; if so many have not, the longest seen. Needs at least one."""
    return _reached(ended_s, going_on_s, 1.0 - share) or max((*ended_s, *going_on_s))


def median_left_s(ended_s: Sequence[float], going_on_s: Sequence[float], age_s: float) -> float:
    """The median remaining time of a start of this age, from those that took longer.

    If none took longer, its age again: nothing else is known of a start that has lasted longer than all before it.
    """
    longer = [found for found in ended_s if found > age_s]
    end_s = _reached(longer, [found for found in going_on_s if found > age_s], 0.5)
    return age_s if end_s is None else end_s - age_s


def _reached(ended_s: Sequence[float], going_on_s: Sequence[float], left: float) -> float | None:
    """When the Kaplan-Meier survival falls to this share; None if it does not."""
    survival = 1.0
    for time_s in sorted(set(ended_s)):
        at_risk = sum(found >= time_s for found in (*ended_s, *going_on_s))
        survival *= 1.0 - ended_s.count(time_s) / at_risk
        if survival <= left + 1e-9:
            return time_s
    return None


_LEAST_S = 5.0
"""Shorter times count as this: jobs are listed only every few seconds."""
_KEPT_OF_A_WAIT = 8
_MOST_NOTED = 64


@dataclass(frozen=True, slots=True)
class ReplicaStart:
    """A starting replica. `age_s` is the time since its job started or, if it has not, since its submission.

    `expected_in_s` is Slurm's own estimate for a pending job, None until the backfill scheduler has planned it. It is
    optimistic where jobs of higher priority may still arrive, and pessimistic where jobs end before their time limits.
    `turn_in_s` is our estimate, from a replay of the queue (`WaitingLine`).
    """

    running: bool
    age_s: float
    expected_in_s: float | None = None
    turn_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Foretold:
    """Estimates of a job's remaining wait at one time, and the actual one (`came_s`), in seconds.

    `said_s` is Slurm's estimate, `corrected_s` its correction at that time, `turn_s` the estimate by `WaitingLine`.
    """

    said_s: float
    came_s: float
    corrected_s: float
    turn_s: float | None = None


class EstimateLog:
    """Slurm's estimates for each pending job, by name, until it is known how long the job waited."""

    def __init__(self) -> None:
        self._said: dict[str, list[tuple[float, float, float, float | None]]] = {}

    def note(self, name: str, now_s: float, start: ReplicaStart, foretold: Sequence[Foretold] = ()) -> None:
        """Record the current estimates for a pending job, if Slurm has one; `foretold` serves for the correction."""
        said_s = start.expected_in_s
        if said_s is None:
            return
        noted = self._said.setdefault(name, [])
        noted.append((now_s, said_s, corrected_s(said_s, foretold), start.turn_in_s))
        if len(noted) > _MOST_NOTED:
            del noted[1::2]

    def started(self, name: str, began_s: float) -> tuple[Foretold, ...]:
        """Close the record of a job that has started: a few estimates, spread over its wait, with the actual waits."""
        noted = [one for one in self._said.pop(name, ()) if one[0] < began_s]
        few = min(_KEPT_OF_A_WAIT, len(noted))
        chosen = (noted[place * len(noted) // few] for place in range(few))
        return tuple(Foretold(said_s, began_s - at_s, ours_s, turn_s) for at_s, said_s, ours_s, turn_s in chosen)

    def keep(self, names: Collection[str]) -> None:
        """Forget all other jobs."""
        self._said = {name: noted for name, noted in self._said.items() if name in names}


def corrected_s(said_s: float, foretold: Sequence[Foretold]) -> float:
    """Slurm's estimate `said_s` of a wait, corrected by its earlier errors.

    Slurm assumes that jobs use their whole time limits and that no further jobs arrive, so it errs by much the same
    factor each time, though by another at the end of a wait than at its beginning. So the logarithm of the actual wait
    is modelled as linear in that of the estimate, by ridge regression towards the identity with the weight of one
    estimate (Hoerl and Kennard, Technometrics 12(1), 1970).
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
    # Keep the correction monotonic: a longer estimate never gives a shorter wait, nor one far out of proportion.
    return math.exp(now + level + min(1.0, max(-1.0, slope)) * (now - middle))


def _error(pairs: Sequence[tuple[float, float]]) -> float:
    """The mean absolute logarithm of the ratio between estimated and actual waits."""
    return fmean(abs(math.log(max(_LEAST_S, said_s) / max(_LEAST_S, came_s))) for said_s, came_s in pairs)


def slurm_knows_better(foretold: Sequence[Foretold]) -> bool:
    """Whether Slurm's corrected estimates have been better than those by turn, which are used at first.

    Both are judged by their past forecasts (prequential; Dawid, Journal of the Royal Statistical Society A 147(2),
    1984).
    """
    turns = [(one.turn_s, one.came_s) for one in foretold if one.turn_s is not None]
    if not turns:
        return False
    return _error([(one.corrected_s, one.came_s) for one in foretold if one.turn_s is not None]) < _error(turns)


_LATEST = 100
"""Number of ended jobs kept; enough to know the distribution of run times to about a tenth."""
_RECENT_S = 60.0
"""The largest number of nodes in use within this time is taken for the size of a full partition."""
_DRAWS = 31
_COARSEST = 0.25
"""A job that may have ended at any time during a larger fraction of its limit teaches nothing."""
_AT_LIMIT = 0.05
"""A job that ends within this fraction of its limit has been ended by the limit."""
_STEPS = 30_000
"""Largest number of jobs replayed, over all draws: about 50 ms."""


class WaitingLine:
    """Predicts when jobs in Slurm's queue will start.

    Running and pending jobs are replayed in order of priority, with run times drawn from those of ended jobs, as
    fractions of their time limits; the prediction is the median start over the draws (Smith, Taylor and Foster, Using
    run-time predictions to estimate queue wait times and improve scheduler performance, JSSPP 1999, with a distribution
    instead of a mean). The replay gives whole nodes to jobs and does not backfill.

    Until jobs have ended, those that go on tell something as well: the nearer they come to their limits, the fewer jobs
    of this cluster end early. So beside the ended jobs stands one whose fraction has the distribution 1 - (1 - x)^k,
    from which (k = 0) all jobs run to their limits. As -ln(1 - x) is then exponential with the rate k, the latter has a
    gamma distribution, from the prior of one end per unit of -ln(1 - x) on (conjugate; Gelman et al., Bayesian Data
    Analysis, 3rd ed., section 2.6).
    """

    def __init__(self) -> None:
        self._parts: deque[float] = deque(maxlen=_LATEST)
        self._ends, self._exposure = 1.0, 1.0
        self._running: dict[int, QueuedJob] = {}
        self._used: dict[frozenset[str], list[tuple[float, int]]] = {}
        self._turns_s: dict[int, float] = {}
        self._at_s = 0.0

    def take(self, at_s: float, jobs: Sequence[QueuedJob], ours: Collection[int]) -> None:
        """Take a listing of the queue that began at `at_s`; starts are predicted for the job ids in `ours`."""
        listed = {job.job_id for job in jobs}
        if at_s < self._at_s:  # the clock was set back: earlier listings tell nothing
            self._running, self._used = {}, {}
        for job in self._running.values():
            if job.start_s is not None and job.limit_s:
                seen, part = ((now_s - job.start_s) / job.limit_s for now_s in (self._at_s, at_s))
                self._learn(seen, part, ended=job.job_id not in listed)
        self._running = {job.job_id: job for job in jobs if job.start_s is not None}
        self._at_s, self._turns_s = at_s, {}
        waiting = sorted((job for job in jobs if job.ready), key=lambda job: (-job.priority, job.job_id))
        for partitions in {frozenset(job.partitions) for job in waiting if job.job_id in ours}:
            line = [job for job in waiting if not partitions.isdisjoint(job.partitions)]
            mine = [job.job_id for job in line if job.job_id in ours and frozenset(job.partitions) == partitions]
            last = max(place for place, job in enumerate(line) if job.job_id in mine)
            self._turns_s |= self._replayed(partitions, line[: last + 1], mine)

    def _learn(self, seen: float, part: float, *, ended: bool) -> None:
        """A job that had used the fraction `seen` of its limit at the last listing has gone on to `part`, or ended."""
        if ended and part - seen > _COARSEST:
            return  # it may have ended long before this listing
        self._exposure += math.log(max(_AT_LIMIT, 1.0 - seen) / max(_AT_LIMIT, 1.0 - part))
        if ended:
            self._ends += part < 1.0 - _AT_LIMIT
            self._parts.append(min(1.0, part))

    def turn_s(self, job_id: int, now_s: float) -> float | None:
        """In how many seconds the job is predicted to start; None if unknown."""
        turn_s = self._turns_s.get(job_id)
        # A job that should have started already may start at any moment.
        return None if turn_s is None else max(_LEAST_S, turn_s - (now_s - self._at_s))

    def _replayed(self, partitions: frozenset[str], line: Sequence[QueuedJob], mine: list[int]) -> dict[int, float]:
        """The predicted starts of `mine`, in seconds from the listing; empty if no running job has a time limit."""
        running = [job for job in self._running.values() if job.limit_s and not partitions.isdisjoint(job.partitions)]
        limits_s = sorted(job.limit_s for job in (*running, *line) if job.limit_s)
        if not running:
            return {}
        usual_s = limits_s[len(limits_s) // 2]
        used = sum(job.nodes for job in running)
        recent = [one for one in self._used.get(partitions, ()) if one[0] > self._at_s - _RECENT_S]
        self._used[partitions] = [*recent, (self._at_s, used)]
        idle = max(0, *(nodes - used for _, nodes in self._used[partitions]))
        draw = random.Random(len(line))  # noqa: S311  the same queue gives the same times
        parts = sorted(self._parts)
        starts_s: dict[int, list[float]] = {job_id: [] for job_id in mine}
        for _ in range(max(3, min(_DRAWS, _STEPS // (len(running) + len(line))))):
            rate = draw.gammavariate(self._ends, 1.0 / self._exposure)
            ends = [(self._left_s(job, parts, rate, draw), job.nodes) for job in running]
            heapq.heapify(ends)
            at_s, free = 0.0, idle
            for job in line:
                while free < job.nodes and ends:
                    at_s, nodes = heapq.heappop(ends)
                    free += nodes
                free = max(0, free - job.nodes)
                heapq.heappush(ends, (at_s + _part(0.0, parts, rate, draw) * (job.limit_s or usual_s), job.nodes))
                if job.job_id in starts_s:
                    starts_s[job.job_id].append(at_s)
        return {job_id: median(found) for job_id, found in starts_s.items()}

    def _left_s(self, job: QueuedJob, parts: Sequence[float], rate: float, draw: random.Random) -> float:
        """The remaining run time of a running job, drawn at random."""
        limit_s, ran_s = job.limit_s or 0.0, self._at_s - (job.start_s or 0.0)
        return max(0.0, _part(ran_s / limit_s, parts, rate, draw) * limit_s - ran_s)


def _part(over: float, parts: Sequence[float], rate: float, draw: random.Random) -> float:
    """Draw the fraction of its time limit that a job uses, given that it has already used `over` of it.

    Drawn from the ended jobs that used more or, with the weight of one job, from the distribution 1 - (1 - x)^rate.
    """
    first = bisect_right(parts, over)
    chosen = draw.randrange(first, len(parts) + 1)
    return parts[chosen] if chosen < len(parts) else 1.0 - max(0.0, 1.0 - over) * draw.random() ** (1.0 / rate)


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The latest times of one service: in Slurm's queue, and from the start of the job until it serves, in seconds.

    `foretold` compares Slurm's estimates for its jobs with what happened.
    """

    waits_s: Sequence[float]
    loads_s: Sequence[float]
    foretold: Sequence[Foretold] = ()

    def next_in_s(self, starts: Iterable[ReplicaStart], configured_s: float) -> float | None:
        """In how many seconds the first of these will serve; None if there is none. `configured_s` is the prior."""
        known = tuple(starts)
        return min((self._left_s(start, known, configured_s) for start in known), default=None)

    def _left_s(self, start: ReplicaStart, known: Sequence[ReplicaStart], configured_s: float) -> float:
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
