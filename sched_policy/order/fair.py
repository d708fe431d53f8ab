"""FAIR, the equal-share baseline of ExplSched (CLUSTER 2023): every job gets the same GPU time, a slice at a time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot


class Fair(Struct, frozen=True):
    """Least attained GPU time first, counted in whole slices; within one slice in order of submission.

    A running job keeps its GPUs before waiting ones that have had as many slices: it finishes its slice first. Needs
    neither durations nor reports.

    Attributes:
        slice_s: GPU-seconds of a slice. The released baseline runs each job on one GPU for 600 s; a gang of g GPUs is
            through with a slice g times as fast, so that the shares of large and small jobs stay equal.

    """

    slice_s: float = 600.0

    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the whole slices a job has had; half a point more for jobs that run."""
        columns = snapshot.columns
        gpus = np.maximum(columns.gpus, 1)
        attained_gpu_s = columns.executed_s * gpus
        # Within 1e-9 of its end counts as through: rounding must not add a slice.
        slices = np.floor(attained_gpu_s / self.slice_s * (1 + 1e-9))
        left_s = np.where(columns.holds, ((slices + 1) * self.slice_s - attained_gpu_s) / gpus, np.inf)
        stable_until_s = snapshot.now_s + float(left_s.min(initial=np.inf))

        def reason(row: int) -> str:
            return f"{slices[row]:.0f} slices of {self.slice_s:.0f} GPU-seconds attained"

        return Ranking(snapshot, -slices + 0.5 * columns.holds, reason, stable_until_s)
