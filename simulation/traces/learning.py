"""The learning curve of a simulated job."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sched_policy.model import Exploration, ProgressPoint
from sched_policy.snapshot import Floats

Points = tuple[ProgressPoint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Learning:
    """The learning curve of one job of a trace. Lower is better.

    Times are the job's own: seconds of training alone on its GPUs, all runs together, restarts not counted.

    Attributes:
        losses: loss before the first epoch and after each one, shape (E + 1,); it ends early where training diverged,
            and nothing is reported from there on.
        epochs: epochs planned.
        epoch_s: seconds of an epoch.
        best_of_sweep: the lowest loss that any job of its sweep reaches when it runs to its end.
        exploration: the exploration options of the job.
        abandoned_at_s: when the owner gives the job up, None if he lets it finish.

    """

    losses: Floats
    epochs: int
    epoch_s: float
    best_of_sweep: float
    exploration: Exploration
    abandoned_at_s: float | None = None
    _newest: dict[int, tuple[int, Points]] = field(default_factory=dict, init=False, repr=False)

    def points_until(self, executed_s: float, gpus: int) -> Points:
        """Reports so far of a job that has trained for `executed_s` on `gpus` GPUs, the one of epoch 0 first.

        The same tuple, not merely an equal one, until the next epoch is through, so that callers can cache by identity.
        """
        count = min(self._epoch(executed_s), len(self.losses) - 1) + 1
        known, points = self._newest.get(gpus, (0, ()))
        if known != count:
            step_gpu_s = self.epoch_s * gpus
            fresh = (ProgressPoint(i, i * step_gpu_s, float(self.losses[i])) for i in range(known, count))
            points = (*points, *fresh) if known < count else points[:count]
            self._newest[gpus] = count, points
        return points

    def gain(self, executed_s: float) -> float:
        """Normalised loss reduction, 0 to 1: (first - best so far) / (first - best of the sweep)."""
        first = float(self.losses[0])
        possible = first - self.best_of_sweep
        if possible <= 0:
            return 0.0
        reached = first - float(np.min(self.losses[: self._epoch(executed_s) + 1]))
        return min(1.0, reached / possible)

    def _epoch(self, executed_s: float) -> int:
        """Epochs finished. An epoch short of its end by rounding counts as finished."""
        return max(0, int(executed_s / self.epoch_s + 1e-6))
