"""Orders decide which job comes first: by arrival (FIFO), shortest remaining service (SRSF), or the Gittins index.

Gittins (1979): among jobs of unknown length run the one with the largest

    max over d of  P(it ends within d more seconds) / E[seconds that it runs in them],

which is 1 / (remaining time) for a job of known length, so that known and unknown lengths compare. Its inverse is
called the `effective` time left here. Ended jobs give a length, others a lower bound (censored observations, as in
Kaplan and Meier's estimate). Without any, a Pareto tail with exponent `TAIL` is assumed, whose index falls with the
attained service: least attained service first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

from sched_policy.plan import Ranking
from sched_policy.snapshot import Bools, Columns, EndedRun, Floats, Ints, Snapshot

NEIGHBOURS = 20
"""Jobs of the same size, before and after a job, from which its length is estimated."""
PRIOR = 0.15
"""Weight of the Pareto tail, in neighbours."""
TAIL = 0.6
QUANTUM_S = 600.0
"""Separates long jobs from short ones on most clusters: a job is not preempted for this time."""
LEAST = 0.1
"""Below this many quanta the tail is flat."""
LIKENESS, LIKENESS_MORE = 1.1, 0.05
"""Similar jobs take about as long: up to this factor times an ended neighbour's time, plus as many quanta."""


class Order(Protocol):
    """Ranks the jobs of a snapshot. `needs_durations`: whether it uses run times."""

    needs_durations: ClassVar[bool]

    def rank(self, snapshot: Snapshot) -> Ranking:
        """All jobs, best first, ties broken by (submit time, job id)."""
        ...


def _left(service_gpu_s: float) -> str:
    return "no time limit" if np.isinf(service_gpu_s) else f"{service_gpu_s:.0f} GPU-seconds remain"


class Srsf(Struct, frozen=True):
    """Service is remaining run time times GPUs; a job of unknown length comes last."""

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the remaining GPU-seconds of each job."""
        service_gpu_s = snapshot.columns.left_s * np.maximum(snapshot.columns.gpus, 1)
        return Ranking(snapshot, -service_gpu_s, lambda row: _left(service_gpu_s[row]))


class Fifo(Struct, frozen=True):
    """Order of submission."""

    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """The earlier a job was submitted, the higher its score (seconds since then)."""
        since_s = snapshot.now_s - snapshot.columns.submit_s
        return Ranking(snapshot, since_s, lambda row: f"submitted {since_s[row]:.0f} s ago")


DECAY = 2.0
"""The weight of the k-th neighbour is exp(-k / DECAY)."""


class Gittins(Struct, frozen=True):
    """Least effective service left first: by the remaining service if the length is known, else by similar jobs.

    A time limit bounds the time left.

    Attributes:
        quantum_s: the time for which a job is not preempted, which separates long jobs from short ones.

    """

    quantum_s: float = QUANTUM_S
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
            return f"{_left(service_gpu_s[row])} ({how})"

        return Ranking(snapshot, -service_gpu_s, reason)

    def _learnt_s(self, snapshot: Snapshot) -> Floats:
        """Effective seconds left of each job, estimated from other jobs of its size, shape (J,)."""
        columns, runs = snapshot.columns, snapshot.ended_runs
        ran_s = np.append(columns.executed_s, [run.run_s for run in runs])
        jobs = columns.gpus.size
        place = _places(
            np.append(columns.gpus, [run.gpus for run in runs]),
            np.append(columns.submit_s, [run.submit_s for run in runs]),
            np.append(columns.job_id, [run.job_id for run in runs]),
        )
        length_s, weight = np.zeros((2, place.max(initial=0) + NEIGHBOURS + 1))
        ended = np.zeros(length_s.size, dtype=np.bool_)
        length_s[place], weight[place], ended[place[jobs:]] = ran_s, 1.0, True
        at = place[:jobs, None] + np.arange(-NEIGHBOURS, NEIGHBOURS + 1)
        return effective_left_s(
            ran_s[:jobs], length_s[at], weight[at] * weights_of_neighbours(DECAY), ended[at], quantum_s=self.quantum_s
        )


def _places(gpus: Ints, submit_s: Floats, job_id: Ints) -> Ints:
    """Places of jobs in the order in which those of a size were submitted, from `NEIGHBOURS` on, by size far apart."""
    in_order = np.lexsort((job_id, submit_s, gpus))
    place = np.empty(gpus.size, dtype=np.int64)
    place[in_order] = np.arange(gpus.size) + NEIGHBOURS * np.cumsum(np.diff(gpus[in_order], prepend=-1) != 0)
    return place


def still_telling(ended: Sequence[EndedRun], columns: Columns) -> tuple[EndedRun, ...]:
    """The ended jobs from which the length of these jobs, or of the next of their size, is estimated."""
    sizes = np.unique(np.array([run.gpus for run in ended], dtype=np.int64))
    place = _places(
        np.concatenate([columns.gpus, sizes, [run.gpus for run in ended]]).astype(np.int64),
        np.concatenate([columns.submit_s, np.full(sizes.size, np.inf), [run.submit_s for run in ended]]),
        np.concatenate([columns.job_id, sizes, [run.job_id for run in ended]]).astype(np.int64),
    )
    who_learns, tells = np.split(place, [columns.gpus.size + sizes.size])
    who_learns.sort()
    after = np.searchsorted(who_learns, tells)  # there is one after each: the next to be submitted
    before = who_learns[np.maximum(after - 1, 0)]
    near = np.minimum(who_learns[after] - tells, np.abs(tells - before)) <= NEIGHBOURS
    return tuple(run for run, is_near in zip(ended, near.tolist(), strict=True) if is_near)


def effective_left_s(
    ran_s: Floats, length_s: Floats, weight: Floats, ended: Bools, prior: float = PRIOR, quantum_s: float = QUANTUM_S
) -> Floats:
    """The inverse Gittins index of R jobs, in seconds, shape (R,).

    Args:
        ran_s: run time of each job so far, shape (R,).
        length_s: run time of each of its M neighbours, shape (R, M).
        weight: weight of each neighbour, 0 if there is none, shape (R, M).
        ended: whether the neighbour has ended; otherwise its length is a lower bound, shape (R, M).
        prior: weight of the Pareto tail, in neighbours.
        quantum_s: differences below this time are ignored.

    """
    ran = ran_s[:, None]
    length_s = np.where(ended, LIKENESS * length_s + LIKENESS_MORE * quantum_s, length_s)
    # A neighbour that ended earlier says nothing about a job that has run longer.
    weight = np.where(length_s > ran, weight, 0.0)
    more_s = np.where(weight > 0, length_s - ran, np.inf)
    by_length = np.argsort(more_s, axis=1)
    more_s, weight, ended = (np.take_along_axis(one, by_length, axis=1) for one in (more_s, weight, ended))
    more_s = np.where(np.isinf(more_s), 0.0, more_s)
    at_risk = weight.sum(axis=1, keepdims=True)
    counted = np.cumsum(weight, axis=1)
    ends = np.cumsum(weight * ended, axis=1)
    spent_s = np.cumsum(weight * more_s, axis=1) + (at_risk - counted) * more_s
    base_s = ran + LEAST * quantum_s
    growth = (base_s + more_s) / base_s
    ends += prior * (1.0 - growth**-TAIL)
    spent_s += prior * base_s / (1.0 - TAIL) * (growth ** (1.0 - TAIL) - 1.0)
    index = np.where(weight * ended > 0, ends / np.maximum(spent_s, 1e-9), 0.0)
    soon = prior * TAIL / base_s[:, 0] / (prior + at_risk[:, 0])  # an instant in which only the tail ends
    return np.asarray(1.0 / np.maximum(index.max(axis=1, initial=0.0), soon))


def weights_of_neighbours(decay: float) -> Floats:
    """The weight of each neighbour, from the farthest before a job to the farthest after it."""
    distance = np.abs(np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
    return np.where(distance == 0, 0.0, np.exp(-distance / decay))
