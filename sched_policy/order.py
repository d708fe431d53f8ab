"""Orders: which job comes first. Here those by what is known of each job alone.

Arrival (FIFO), shortest remaining time (SRTF) or service (SRSF; Muri's `shortest[-gpu]`), and least attained service in
queues (discretised two-dimensional LAS, Tiresias-L): Gu et al., NSDI 2019, section 3.3.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

from sched_policy.plan import Ranking
from sched_policy.snapshot import Floats, Ints, Snapshot


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
