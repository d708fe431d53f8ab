"""Order by attained service: Tiresias' queues.

Discretised two-dimensional least attained service is Tiresias-L (Gu et al., NSDI 2019, section 3.3).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.plan import Ranking
from sched_policy.snapshot import Floats, Ints, Snapshot


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
