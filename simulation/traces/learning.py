"""The learning curve of a simulated job."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sched_policy.model import Exploration, ProgressPoint
from sched_policy.snapshot import Floats, Ints

Points = tuple[ProgressPoint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Learning:
    """The learning curve of one job of a trace. Lower is better.

    Times are the job's own: seconds of training alone on its GPUs, all runs together, restarts not counted.

    Attributes:
        losses: what it reports, shape (R,). A curve that ends before its job is of a training that diverged or was
            stopped: nothing is reported from there on.
        times_s: when it does, not falling, shape (R,).
        steps: the step of each report, shape (R,).
        total_steps: steps planned, None if unknown.
        best_of_sweep: the lowest loss that any job of its sweep reaches when it runs to its end.
        exploration: the exploration options of the job.
        abandoned_at_s: when the owner gives the job up, None if he lets it finish.

    """

    losses: Floats
    times_s: Floats
    steps: Ints
    total_steps: int | None
    best_of_sweep: float
    exploration: Exploration
    abandoned_at_s: float | None = None
    _newest: dict[int, tuple[int, Points]] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of_epochs(
        cls,
        losses: Floats,
        epochs: int,
        epoch_s: float,
        best_of_sweep: float,
        exploration: Exploration,
        abandoned_at_s: float | None = None,
    ) -> Learning:
        """A curve with a report before the first of `epochs` epochs, and one after each of them, `epoch_s` apart."""
        steps = np.arange(len(losses))
        times_s = steps.astype(np.float64) * epoch_s
        return cls(losses, times_s, steps, epochs, best_of_sweep, exploration, abandoned_at_s)

    def reports(self, executed_s: float) -> int:
        """How many reports there are by then. One short of its time by rounding counts."""
        return int(np.searchsorted(self.times_s, executed_s * (1 + 1e-9) + 1e-6, side="right"))

    def points_until(self, executed_s: float, gpus: int) -> Points:
        """Reports so far of a job that has trained for `executed_s` on `gpus` GPUs.

        The same tuple, not merely an equal one, until there is another report, so that callers can cache by identity.
        """
        count = self.reports(executed_s)
        known, points = self._newest.get(gpus, (0, ()))
        if known != count:
            new = slice(known, count)
            columns = (self.steps[new].tolist(), (self.times_s[new] * gpus).tolist(), self.losses[new].tolist())
            points = (*points, *map(ProgressPoint, *columns)) if known < count else points[:count]
            self._newest[gpus] = count, points
        return points

    def gain(self, executed_s: float) -> float:
        """Normalised loss reduction, 0 to 1: (first - best so far) / (first - best of the sweep)."""
        count = self.reports(executed_s)
        possible = float(self.losses[0]) - self.best_of_sweep
        if not count or not possible > 0:  # nor if the first is not a number
            return 0.0
        return min(1.0, float(self.losses[0] - np.fmin.reduce(self.losses[:count])) / possible)
