"""Run times learnt from a cluster's history: a job is expected to take as long as similar jobs did.

Similarity has levels, the most informative first: the same user, name and GPUs; the same user and GPUs; the same queue
and GPUs; the same GPUs. Within each group the length is estimated from the jobs submitted just before and after, the
nearer ones weighing more, because users submit similar trainings together (`sched_policy.order`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from sched_policy.order import NEIGHBOURS, effective_left_s, weights_of_neighbours
from sched_policy.snapshot import Floats, Ints

DECAY = 5.0
"""The weight of the k-th neighbour is exp(-k / DECAY)."""
RECENT = 24
RECENT_WEIGHT = 0.2
"""The `RECENT` jobs of a group that ended last weigh as much as `RECENT_WEIGHT` neighbours together: of many
jobs submitted at once, those in the middle have no neighbour that has ended."""
BACKOFF = 0.1
"""Factor on the weight of neighbours for each wider group."""
ENOUGH = 3
"""If this many jobs of a group have ended, wider groups do not count."""
_HISTORY_PRIOR = 0.02
"""Weight, in neighbours, of a Pareto tail for run times longer than any in the history."""
LONGER = 1.1
"""A running job is estimated again when its run time has grown by this factor."""
_SOON_S = 30.0
_AT_ONCE = 1024
"""Jobs estimated in one batch: each takes 20 kB, and after each reading of sacct a whole queue is estimated."""
_NUMBER = re.compile(r"\d+")
_NOBODY = 0


class Likeness(NamedTuple):
    """What is known of a job at submission. Numbers in the name are ignored: `train-17` is like `train-18`."""

    gpus: int
    queue: str = ""
    user: str = ""
    name: str = ""

    def groups(self) -> tuple[AlikeJobs, ...]:
        """The groups that the job belongs to, the most informative first."""
        name = _NUMBER.sub("#", self.name)
        alike: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("user, name and GPUs", (self.user, name)),
            ("user and GPUs", (self.user,)),
            ("queue and GPUs", (self.queue,)),
            ("GPUs", ()),
        )
        return tuple(AlikeJobs(alike_in, (*values, self.gpus)) for alike_in, values in alike if all(values))


class AlikeJobs(NamedTuple):
    """A group of similar jobs: the properties that they share, and the values of these."""

    alike_in: str
    values: tuple[str | int, ...]


class Expectation(Struct, frozen=True):
    """The run time that the history predicts for a job that has not started.

    Attributes:
        run_s: quantiles of its run time, seconds, for the given probabilities.
        alike_in: what it has in common with the nearest ended jobs.

    """

    run_s: tuple[float, ...]
    alike_in: str


class Judged(NamedTuple):
    """How a prediction compares with the run time: between half and twice the median, inside quantiles 0.1 and 0.9."""

    alike_in: str
    within_twice: bool
    within_quantiles: bool


class _Members:
    """The jobs of one group in order of submission, padded with `_NOBODY` at either end."""

    def __init__(self) -> None:
        self.count = 0
        self.ends = 0
        self.recent: Ints = np.full(RECENT, _NOBODY, dtype=np.int64)
        self._jobs: Ints = np.full(4 * NEIGHBOURS, _NOBODY, dtype=np.int64)

    def add(self, job: int) -> int:
        if self.count + 2 * NEIGHBOURS >= self._jobs.size:
            self._jobs = np.append(self._jobs, np.full_like(self._jobs, _NOBODY))
        self._jobs[self.count + NEIGHBOURS] = job
        self.count += 1
        return self.count - 1

    def ended(self, job: int) -> None:
        """Record a job as one of those that ended last."""
        self.recent[self.ends % RECENT] = job
        self.ends += 1

    def near(self, place: int) -> Ints:
        """The neighbours of a job of the group, the job itself in the middle, padded with `_NOBODY`."""
        return self._jobs[place : place + 2 * NEIGHBOURS + 1]


class RunTimes:
    """The jobs of a cluster, and estimates for those that have not ended from those that have.

    Jobs are added in order of submission; each gets a number, from 1.
    """

    def __init__(self) -> None:
        self._groups: dict[AlikeJobs, _Members] = {}
        self._places: list[tuple[tuple[_Members, int, str], ...]] = [()]
        self._length_s: Floats = np.zeros(1024)
        self._ended = np.zeros(1024, dtype=np.bool_)
        self._left_s: Floats = np.full(1024, np.nan)
        self._estimated_at_s: Floats = np.full(1024, -np.inf)
        self._weight = weights_of_neighbours(DECAY)

    @property
    def jobs(self) -> int:
        """Number of jobs added."""
        return len(self._places) - 1

    def add(self, likeness: Likeness) -> int:
        """Add the job submitted next; returns its number."""
        number = len(self._places)
        if number >= self._length_s.size:
            self._grow()
        groups = [(self._groups.setdefault(group, _Members()), group.alike_in) for group in likeness.groups()]
        self._places.append(tuple((members, members.add(number), alike_in) for members, alike_in in groups))
        return number

    def ended(self, number: int, run_s: float) -> None:
        """Record the run time of an ended job; its neighbours are estimated again."""
        self._length_s[number], self._ended[number] = run_s, True
        for members, place, _ in self._places[number]:
            members.ended(number)
            self._estimated_at_s[members.near(place)] = -np.inf

    def left_s(self, numbers: Ints, ran_s: Floats) -> Floats:
        """The effective time left of running jobs, given their run times so far; seconds, same shape.

        NaN if no similar job has ended. It is the inverse of the Gittins index, so that known and estimated remaining
        times compare.
        """
        estimated_s = self._estimated_at_s[numbers]
        stale = np.isneginf(estimated_s) | (ran_s > LONGER * estimated_s + _SOON_S)
        stale |= ran_s > estimated_s + self._left_s[numbers]  # it should have ended
        again = numbers[stale]
        self._length_s[again] = self._estimated_at_s[again] = ran_s[stale]
        for at in range(0, again.size, _AT_ONCE):
            some = again[at : at + _AT_ONCE]
            self._left_s[some] = self._estimates_s(some)
        left_s: Floats = self._left_s[numbers] + self._estimated_at_s[numbers] - ran_s
        return left_s

    def expected(self, number: int, probabilities: Sequence[float]) -> Expectation | None:
        """The run time expected from ended jobs; None if no similar job has ended."""
        near, weight = self._neighbours(number)
        weight = np.where(self._ended[near], weight, 0.0)
        if not weight.any():
            return None
        near, weight = near[weight > 0], weight[weight > 0]
        order = np.argsort(self._length_s[near], kind="stable")
        share = np.cumsum(weight[order]) / weight.sum()
        at = np.searchsorted(share, np.asarray(probabilities) - 1e-12)
        found = self._length_s[near[order[np.minimum(at, order.size - 1)]]]
        nearest = next(alike_in for members, _, alike_in in self._places[number] if members.ends)
        return Expectation(tuple(found.tolist()), nearest)

    def judged(self, number: int, run_s: float) -> Judged | None:
        """The run time expected now beside the real one; None if no similar job has ended."""
        found = self.expected(number, (0.1, 0.5, 0.9))
        if found is None:
            return None
        least_s, median_s, most_s = found.run_s
        return Judged(found.alike_in, median_s / 2 <= run_s <= 2 * median_s, least_s <= run_s <= most_s)

    def _estimates_s(self, numbers: Ints) -> Floats:
        found = [self._neighbours(number) for number in numbers.tolist()]
        weight = np.zeros((numbers.size, max(theirs.size for theirs, _ in found)))
        near = np.full(weight.shape, _NOBODY, dtype=np.int64)
        for row, (theirs, counts) in enumerate(found):
            near[row, : theirs.size], weight[row, : theirs.size] = theirs, counts
        ended = self._ended[near]
        left_s = effective_left_s(self._length_s[numbers], self._length_s[near], weight, ended, _HISTORY_PRIOR)
        left_s[(weight * ended).sum(axis=1) <= 0] = np.nan
        return left_s

    def _neighbours(self, number: int) -> tuple[Ints, Floats]:
        """The neighbours of a job and their weights; one that is near in several groups is listed repeatedly."""
        near, weight = [], []
        for level, (members, place, _) in enumerate(self._places[number]):
            jobs = np.concatenate([members.near(place), members.recent])
            recent = np.full(RECENT, RECENT_WEIGHT / max(1, min(RECENT, members.ends)))
            counts = np.where(jobs != _NOBODY, np.concatenate([self._weight, recent]), 0.0)
            near.append(jobs)
            weight.append(counts * BACKOFF**level)
            if members.ends >= ENOUGH:
                break
        return np.concatenate(near), np.concatenate(weight)

    def _grow(self) -> None:
        more = self._length_s.size
        self._length_s = np.append(self._length_s, np.zeros(more))
        self._ended = np.append(self._ended, np.zeros(more, dtype=np.bool_))
        self._left_s = np.append(self._left_s, np.full(more, np.nan))
        self._estimated_at_s = np.append(self._estimated_at_s, np.full(more, -np.inf))


def of_history(past: Iterable[tuple[Likeness, float]]) -> RunTimes:
    """The run times of ended jobs, given in order of submission, in seconds."""
    history = RunTimes()
    for likeness, run_s in past:
        history.ended(history.add(likeness), run_s)
    return history
