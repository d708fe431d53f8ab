"""Orders: which job comes first. Here arrival (FIFO), shortest remaining service (SRSF), and the Gittins index.

Gittins (1979): among jobs of unknown length run the one with the largest

    max over d of  P(it ends within d more seconds) / E[seconds that it runs in them],

which for a job of known length is 1 / (what is left), so that known and unknown lengths compare. Its inverse is called
`effective` time left here. Jobs that have ended tell a length, those that have not tell a least one (they count as long
as they were watched, as in Kaplan and Meier's estimate). Where nothing is known, a Pareto tail with
exponent `TAIL` stands in, whose index falls with the service attained: least attained service first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

from sched_policy.plan import Ranking
from sched_policy.snapshot import Bools, Columns, EndedRun, Floats, Ints, Snapshot

NEIGHBOURS = 20
"""Jobs of the same size before and after a job that tell of its length."""
PRIOR = 0.15
"""Weight of the Pareto tail, in neighbours."""
TAIL = 0.6
QUANTUM_S = 600.0
"""What is long and what is short on most clusters: a job is left alone for this time."""
LEAST = 0.1
"""Below so many quanta the tail is flat."""
LIKENESS, LIKENESS_MORE = 1.1, 0.05
"""Alike jobs take about as long: up to so many times what an ended neighbour took, and so many quanta more."""


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


DECAY = 2.0
"""The weight of the k-th neighbour is exp(-k / DECAY)."""


class Gittins(Struct, frozen=True):
    """Least effective service left first: remaining service where the length is known, else as similar jobs tell.

    A time limit bounds what can be left.

    Attributes:
        quantum_s: the time that a job is left alone for, by which long and short are told apart.

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
            return f"{service_gpu_s[row]:.0f} GPU-seconds remain ({how})"

        return Ranking(snapshot, -service_gpu_s, reason)

    def _learnt_s(self, snapshot: Snapshot) -> Floats:
        """Effective seconds left of each job as other jobs of its size tell, shape (J,)."""
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
    """Those of the ended jobs that tell of these jobs, or of the next one of their size that is submitted."""
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
        ran_s: how long each has run, shape (R,).
        length_s: how long each of its M neighbours has run, shape (R, M).
        weight: how much each neighbour counts, 0 where there is none, shape (R, M).
        ended: whether the neighbour has ended; the others run at least so long, shape (R, M).
        prior: weight of the Pareto tail, in neighbours.
        quantum_s: the time below which differences do not count.

    """
    ran = ran_s[:, None]
    length_s = np.where(ended, LIKENESS * length_s + LIKENESS_MORE * quantum_s, length_s)
    weight = np.where(length_s > ran, weight, 0.0)  # who ended earlier says nothing of a job that has come so far
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
    soon = prior * TAIL / base_s[:, 0] / (prior + at_risk[:, 0])  # of an instant in which only the tail ends
    return np.asarray(1.0 / np.maximum(index.max(axis=1, initial=0.0), soon))


def weights_of_neighbours(decay: float) -> Floats:
    """How much each neighbour counts, from the farthest before a job to the farthest after it."""
    distance = np.abs(np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
    return np.where(distance == 0, 0.0, np.exp(-distance / decay))
