"""Orders: which job comes first. Here those by how long jobs have run, will run, or are expected to run.

Arrival (FIFO), shortest remaining time (SRTF) or service (SRSF; Muri's `shortest[-gpu]`), least attained service in
queues (discretised two-dimensional LAS, Tiresias-L: Gu et al., NSDI 2019, section 3.3), and the Gittins index, learnt
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

from sched_policy.plan import Ranking
from sched_policy.snapshot import Bools, Columns, EndedRun, Floats, Ints, Snapshot


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


class LeastAttainedService(Struct, frozen=True):
    """A few queues by attained service (run time x GPUs); first in, first out inside a queue. Needs no durations.

    A running job is not displaced by a waiting one of its own queue.

    Attributes:
        limits_gpu_s: attained service at which a job falls from each queue into the next; one queue more than limits.
        starvation: a job that has waited `starvation` times as long as it had run before counts as new, until it has
            attained a queue's limit again. 0 switches this off.

    """

    limits_gpu_s: tuple[float, ...] = (3250.0, 7200.0)
    starvation: float = 0.0
    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the number of the queue; half a point more for jobs that run."""
        columns = snapshot.columns
        gpus = np.maximum(columns.gpus, 1)
        counted_s = self._counted_s(snapshot)
        queue = self._queue(counted_s * gpus)
        values = -queue + 0.5 * columns.holds

        def reason(row: int) -> str:
            return (
                f"queue {queue[row]} of {len(self.limits_gpu_s)}, {counted_s[row] * gpus[row]:.0f} GPU-seconds attained"
            )

        return Ranking(snapshot, values, reason, self._stable_until_s(snapshot, counted_s, queue))

    def _queue(self, service_gpu_s: Floats) -> Ints:
        """The queue of each job. Within 1e-9 of a limit counts as reached: rounding must not put a demotion off."""
        limits = np.asarray(self.limits_gpu_s) * (1 - 1e-9)
        return np.searchsorted(limits, service_gpu_s, side="right").astype(np.int64)

    def _counted_s(self, snapshot: Snapshot) -> Floats:
        """Run time that counts: all of it, or only the present run's after a wait that was too long."""
        columns = snapshot.columns
        if self.starvation <= 0:
            return columns.executed_s
        earlier_s = columns.executed_s - columns.run_s
        starved = (earlier_s > 0) & (columns.waited_s >= self.starvation * earlier_s)
        return np.where(starved, columns.run_s, columns.executed_s)

    def _stable_until_s(self, snapshot: Snapshot, counted_s: Floats, queue: Ints) -> float:
        """When the next job changes its queue, if no job starts or ends before."""
        columns = snapshot.columns
        limits = np.append(np.asarray(self.limits_gpu_s), np.inf)
        until_s = np.where(columns.holds, limits[queue] / np.maximum(columns.gpus, 1) - counted_s, np.inf)
        if self.starvation > 0:
            waits = columns.waits & (columns.executed_s > 0) & (counted_s > 0)
            until_s = np.where(waits, self.starvation * columns.executed_s - columns.waited_s, until_s)
        return snapshot.now_s + float(until_s.min(initial=np.inf))


NEIGHBOURS = 20
"""Jobs of the same size before and after a job that tell of its length."""
DECAY = 2.0
_DISTANCE = np.abs(np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
WEIGHTS: Floats = np.where(_DISTANCE == 0, 0.0, np.exp(-_DISTANCE / DECAY))
"""The weight of the k-th neighbour is exp(-k / DECAY)."""
PRIOR = 0.15
"""Weight of the Pareto tail, in neighbours."""
TAIL = 0.6
QUANTUM_S = 600.0
"""What is long and what is short on most clusters: a job is left alone for this time."""
LEAST = 0.1
"""Below so many quanta the tail is flat."""
LIKENESS, LIKENESS_MORE = 1.1, 0.05
"""Alike jobs take about as long: up to so many times what an ended neighbour took, and so many quanta more."""


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
        return effective_left_s(ran_s[:jobs], length_s[at], weight[at] * WEIGHTS, ended[at], quantum_s=self.quantum_s)


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
