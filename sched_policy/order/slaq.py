"""SLAQ (Zhang et al., SoCC 2017): largest predicted normalised loss reduction per resource first."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.curves import CurveTable
from sched_policy.plan import Ranking
from sched_policy.reported import reported
from sched_policy.snapshot import Snapshot


class Slaq(Struct, frozen=True):
    """Order by the loss reduction that a job's own curve promises for the next scheduling epoch, per GPU-second.

    * Losses of different jobs do not compare, so a job's changes are normalised by the largest change between two of
      its own reports so far (section 3.1). Nothing is learned from other jobs.
    * The prediction fits the two classes of convergence of section 3.2, sublinear and linear (here with
      `sched_policy.curves`, which averages over both in place of choosing one), newer reports weighing more.
    * SLAQ starts from the least share for every job and hands the rest out by predicted reduction (section 3.3). With
      gangs of fixed size that means: a job that has not reported enough for a prediction comes first, so that it can
      report. Jobs that take no part in exploration come last, in order of submission.

    Attributes:
        epoch_s: length of a scheduling epoch.

    """

    epoch_s: float = 600.0

    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Largest changes per GPU-hour; new jobs one more than the best prediction, jobs without a metric -1."""
        taking_part = [(row, job, job.exploration) for row, job in enumerate(snapshot.jobs) if job.exploration]
        said = reported((job.points, exploration.direction) for _, job, exploration in taking_part)
        predicted = [(row, one, one.curve) for (row, _, _), one in zip(taking_part, said, strict=True) if one.curve]
        rows = np.array([row for row, _, _ in predicted], dtype=np.int64)
        spent_gpu_s = np.array([one.spent_gpu_s for _, one, _ in predicted], dtype=np.float64)
        largest = np.array([one.largest for _, one, _ in predicted], dtype=np.float64)
        ahead_gpu_s = self.epoch_s * np.maximum(snapshot.columns.gpus[rows], 1)
        change, _ = CurveTable(curve for _, _, curve in predicted).improvement(spent_gpu_s, spent_gpu_s + ahead_gpu_s)
        normalised = np.divide(change, largest, out=np.zeros_like(change), where=largest > 0)

        new = np.zeros(len(snapshot.jobs), dtype=np.bool_)
        new[[row for row, _, _ in taking_part]] = True
        new[rows] = False
        values = np.full(len(snapshot.jobs), -1.0)
        values[rows] = 3600.0 * normalised / ahead_gpu_s
        values[new] = 1.0 + values.max(initial=0.0)

        def reason(row: int) -> str:
            if new[row]:
                return "has not reported enough for a prediction"
            if values[row] < 0:
                return "reports no progress"
            return f"expected to improve by {values[row]:.3g} times its largest change per GPU-hour"

        return Ranking(snapshot, values, reason)
