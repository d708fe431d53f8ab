"""Orders: which job comes first. Here those by how long jobs have run, will run, or are expected to run.

Arrival (FIFO), shortest remaining service (SRSF), and the Gittins index, learnt from similar jobs.

Gittins (1979): among jobs of unknown length run the one with the largest

    max over d of  P(it ends within d more seconds) / E[seconds that it runs in them],

which for a job of known length is 1 / (what is left), so that known and unknown lengths compare. Its inverse is called
`effective` time left here. Lengths are learnt from jobs of the same number of GPUs that were submitted just before and
after: users submit alike trainings together. Those that have ended tell a length, those that have not tell a least one
(they count as long as they were watched, as in Kaplan and Meier's estimate). Where nothing is known, a Pareto tail with
exponent `TAIL` stands in, whose index falls with the service attained: least attained service first.
"""

from __future__ import annotations

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


def weights_of_neighbours(decay: float) -> Floats:
    """How much each neighbour counts, from the farthest before a job to the farthest after it."""
    distance = np.abs(np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
    return np.where(distance == 0, 0.0, np.exp(-distance / decay))


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
            rows: Ints = np.array([row_of.get(job.job_id, -1) for job in jobs], dtype=np.int64)
            length_s = [
                job.executed_s(snapshot.now_s) if row >= 0 else job.points[-1].gpu_s / max(job.request.total, 1)
                for job, row in zip(jobs, rows.tolist(), strict=True)
            ]
            asked = np.flatnonzero(rows >= 0)
            # A margin of neighbours that are not there at either end.
            ran_s, ended_, there = (np.pad(one, NEIGHBOURS) for one in (length_s, rows < 0, np.ones(len(jobs))))
            near = asked[:, None] + np.arange(2 * NEIGHBOURS + 1)
            weight = there[near] * weights_of_neighbours(DECAY)
            result[rows[asked]] = effective_left_s(ran_s[asked + NEIGHBOURS], ran_s[near], weight, ended_[near])
        return result
