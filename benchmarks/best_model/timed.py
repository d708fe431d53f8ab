"""A drawn sweep as jobs of the project's simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.best_model.drawn import Curve, DrawnSweep
from sched_policy.model import Exploration, ProgressPoint
from sched_policy.snapshot import Floats
from simulation.traces.learning import Learning, Points
from simulation.traces.trace import Trace, TraceJob

LONGEST_S = 365 * 86400.0


@dataclass(frozen=True, slots=True, eq=False)
class TimedLearning(Learning):
    """A learning curve whose reports come at times of their own. Steps are seconds of training.

    Attributes:
        times_s: run time at each report, shape (R,); `losses` has the same shape.

    """

    times_s: Floats = field(default_factory=lambda: np.empty(0))

    def points_until(self, executed_s: float, gpus: int) -> Points:
        """Reports so far; the same tuple until there is another one."""
        count = self.reports(executed_s)
        known, points = self._newest.get(gpus, (0, ()))
        if known != count:
            fresh = (
                ProgressPoint(max(1, round(time_s)), time_s * gpus, value)
                for time_s, value in zip(
                    self.times_s[known:count].tolist(), self.losses[known:count].tolist(), strict=True
                )
            )
            points = (*points, *fresh) if known < count else points[:count]
            self._newest[gpus] = count, points
        return points

    def reports(self, executed_s: float) -> int:
        """How many reports there are by then. One short of its time by rounding counts."""
        return int(np.searchsorted(self.times_s, executed_s + 1e-6, side="right"))

    def gain(self, executed_s: float) -> float:
        """Not measured here."""
        del executed_s
        return 0.0


def trace(drawn: Sequence[DrawnSweep]) -> Trace:
    """All sweeps submitted at second 0, each by a user of its own, their jobs in turn."""
    jobs = []
    for k, sweep in enumerate(drawn):
        for row, curve in enumerate(sweep.curves):
            jobs.append(_job(row * len(drawn) + k + 1, f"user{k + 1}", curve, sweep))
    return Trace.of(jobs)


def _job(job_id: int, user: str, curve: Curve, sweep: DrawnSweep) -> TraceJob:
    steps = max(1, round(curve.planned_s))
    params = tuple(curve.params.items())
    exploration = Exploration(f"{user}-{sweep.task}", checkpoint_signal="USR1", may_stop=True, params=params)
    learning = TimedLearning(
        losses=curve.values,
        epochs=steps,
        epoch_s=float(np.median(np.diff(curve.times_s, prepend=0.0))),
        best_of_sweep=sweep.best,
        exploration=exploration,
        times_s=curve.times_s,
    )
    return TraceJob(job_id, 0.0, 1, curve.run_s, iterations=steps, time_limit_s=LONGEST_S, user=user, learning=learning)
