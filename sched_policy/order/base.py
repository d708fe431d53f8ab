"""What every order has in common, and the plain ones: arrival (FIFO), shortest remaining time (SRTF) or service (SRSF).

SRTF and SRSF: Gu et al., Tiresias, NSDI 2019; Muri's `shortest[-gpu]`.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot


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
