"""Orders: which job comes first. Here those by how long jobs have run, will run, or are expected to run.

Arrival (FIFO), shortest remaining time (SRTF) or service (SRSF; Muri's `shortest[-gpu]`), and the Gittins index, learnt
from similar jobs.

Gittins (1979): among jobs of unknown length run the one with the largest

    max over d of  P(it ends within d more seconds) / E[seconds that it runs in them],

which for a job of known length is 1 / (what is left), so that known and unknown lengths compare. Its inverse is called
`effective` time left here. Lengths are learnt from jobs of the same number of GPUs that were submitted just before and
after: users submit alike trainings together. Those that have ended tell a length, those that have not tell a least one
(they count as long as they were watched, as in Kaplan and Meier's estimate). Where nothing is known, a Pareto tail with
exponent `TAIL` stands in, whose index falls with the service attained: least attained service first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

from sched_policy.model import Job
from sched_policy.plan import Ranking
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot


class Order(Protocol):
    """Ranks the jobs of a snapshot. `needs_durations` tells whether it looks at how long jobs will run."""

    needs_durations: ClassVar[bool]

    def rank(self, snapshot: Snapshot) -> Ranking:
        """All jobs, best first, ties broken by (submit time, job id)."""
        ...


class Srtf(Struct, frozen=True):
    """The less run time a job has left, the earlier it runs; a job of unknown length comes last."""

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the remaining seconds of each job."""
        left_s = snapshot.columns.left_s
        return Ranking(snapshot, -left_s, lambda row: f"{left_s[row]:.0f} seconds remain")


class Srsf(Struct, frozen=True):
    """Service is remaining run time times GPUs; a job of unknown length comes last."""

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the remaining GPU-seconds of each job."""
        service_gpu_s = snapshot.columns.left_s * np.maximum(snapshot.columns.gpus, 1)
        return Ranking(snapshot, -service_gpu_s, lambda row: f"{service_gpu_s[row]:.0f} GPU-seconds remain")


class Fifo(Struct, frozen=True):
    """Order of submission."""

    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """The earlier a job was submitted, the higher its score (seconds since then)."""
        since_s = snapshot.now_s - snapshot.columns.submit_s
        return Ranking(snapshot, since_s, lambda row: f"submitted {since_s[row]:.0f} s ago")


NEIGHBOURS = 20
"""Jobs of the same size before and after a job that tell of its length."""
DECAY = 2.0
"""The weight of the k-th neighbour is exp(-k / DECAY)."""
PRIOR = 0.15
"""Weight of the Pareto tail, in neighbours."""
TAIL = 0.6
LEAST_S = 60.0
"""Below this time the tail is flat."""
LIKENESS, LIKENESS_S = 1.1, 30.0
"""Alike jobs take about as long: up to so many times what an ended neighbour took, and so many seconds more."""


def effective_left_s(ran_s: Floats, length_s: Floats, weight: Floats, ended: Bools, prior: float = PRIOR) -> Floats:
    """The inverse Gittins index of R jobs, in seconds, shape (R,).

    Args:
        ran_s: how long each has run, shape (R,).
        length_s: how long each of its M neighbours has run, shape (R, M).
        weight: how much each neighbour counts, 0 where there is none, shape (R, M).
        ended: whether the neighbour has ended; the others run at least so long, shape (R, M).
        prior: weight of the Pareto tail, in neighbours.

    """
    ran = ran_s[:, None]
    length_s = np.where(ended, LIKENESS * length_s + LIKENESS_S, length_s)
    weight = np.where(length_s > ran, weight, 0.0)  # who ended earlier says nothing of a job that has come so far
    more_s = np.where(weight > 0, length_s - ran, np.inf)
    by_length = np.argsort(more_s, axis=1)
    more_s, weight, ended = (np.take_along_axis(one, by_length, axis=1) for one in (more_s, weight, ended))
    more_s = np.where(np.isinf(more_s), 0.0, more_s)
    at_risk = weight.sum(axis=1, keepdims=True)
    counted = np.cumsum(weight, axis=1)
    ends = np.cumsum(weight * ended, axis=1)
    spent_s = np.cumsum(weight * more_s, axis=1) + (at_risk - counted) * more_s
    base_s = ran + LEAST_S
    growth = (base_s + more_s) / base_s
    ends += prior * (1.0 - growth**-TAIL)
    spent_s += prior * base_s / (1.0 - TAIL) * (growth ** (1.0 - TAIL) - 1.0)
    index = np.where(weight * ended > 0, ends / np.maximum(spent_s, 1e-9), 0.0)
    soon = prior * TAIL / base_s[:, 0] / (prior + at_risk[:, 0])  # of an instant in which only the tail ends
    return np.asarray(1.0 / np.maximum(index.max(axis=1, initial=0.0), soon))


class Lengths:
    """Run times of jobs of one size, in order of submission."""

    def __init__(self) -> None:
        self._jobs = 0
        # A margin of neighbours that are not there at either end.
        self._length_s: Floats = np.zeros(2 * NEIGHBOURS)
        self._there: Floats = np.zeros(2 * NEIGHBOURS)
        self._ended: Bools = np.zeros(2 * NEIGHBOURS, dtype=np.bool_)
        distance = np.abs(np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
        self._weight: Floats = np.where(distance == 0, 0.0, np.exp(-distance / DECAY))

    def add(self) -> int:
        """The next job submitted; its number, counted from 0."""
        if self._jobs + 2 * NEIGHBOURS >= self._length_s.size:
            more = self._length_s.size
            self._length_s = np.append(self._length_s, np.zeros(more))
            self._there = np.append(self._there, np.zeros(more))
            self._ended = np.append(self._ended, np.zeros(more, dtype=np.bool_))
        self._there[self._jobs + NEIGHBOURS] = 1.0
        self._jobs += 1
        return self._jobs - 1

    def ran(self, number: int, seconds: float, *, ended: bool) -> None:
        """A job has run so long, and has ended or not."""
        self._length_s[number + NEIGHBOURS] = seconds
        self._ended[number + NEIGHBOURS] = ended

    def near(self, number: int) -> range:
        """The jobs that learn from this one, itself among them."""
        return range(max(0, number - NEIGHBOURS), min(self._jobs, number + NEIGHBOURS + 1))

    def effective_left_s(self, numbers: Sequence[int]) -> Floats:
        """What is effectively left of these jobs, which have not ended; same shape."""
        at = np.asarray(numbers, dtype=np.int64)[:, None] + np.arange(2 * NEIGHBOURS + 1)
        return effective_left_s(
            self._length_s[at[:, NEIGHBOURS]], self._length_s[at], self._there[at] * self._weight, self._ended[at]
        )


class Gittins(Struct, frozen=True):
    """Least effective service left first: remaining service where the length is known, else as similar jobs tell.

    A time limit bounds what can be left. Of jobs that have ended those of `Snapshot.ended` tell, by their last report.
    """

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the effective GPU-seconds left of each job."""
        known = [job.known_left_s(snapshot.now_s) for job in snapshot.jobs]
        left_s = snapshot.columns.left_s
        if None in known:
            is_known = np.array([exact is not None for exact in known])
            left_s = np.where(is_known, left_s, np.minimum(self._learnt_s(snapshot), left_s))
        service_gpu_s = left_s * np.maximum(snapshot.columns.gpus, 1)

        def reason(row: int) -> str:
            how = "about, judged by jobs submitted with it" if known[row] is None else "known"
            return f"{service_gpu_s[row]:.0f} GPU-seconds remain ({how})"

        return Ranking(snapshot, -service_gpu_s, reason)

    @staticmethod
    def _learnt_s(snapshot: Snapshot) -> Floats:
        """Effective seconds left of each job as other jobs of its size tell, shape (J,)."""
        row_of = {job.job_id: row for row, job in enumerate(snapshot.jobs)}
        ended = (job for job in snapshot.ended if job.job_id not in row_of and job.points)
        everyone = [*snapshot.jobs, *ended]
        by_size: dict[int, list[Job]] = {}
        for job in sorted(everyone, key=lambda job: (job.submit_s, job.job_id)):
            by_size.setdefault(job.request.total, []).append(job)
        result = np.zeros(len(snapshot.jobs))
        for jobs in by_size.values():
            lengths = Lengths()
            asked: list[tuple[int, int]] = []
            for job in jobs:
                number = lengths.add()
                row = row_of.get(job.job_id)
                if row is None:
                    lengths.ran(number, job.points[-1].gpu_s / max(job.request.total, 1), ended=True)
                else:
                    lengths.ran(number, job.executed_s(snapshot.now_s), ended=False)
                    asked.append((row, number))
            if asked:
                rows: Ints = np.array([row for row, _ in asked], dtype=np.int64)
                result[rows] = lengths.effective_left_s([number for _, number in asked])
        return result
