"""Orders of arrival: first in, first out, and Slurm's own priority/multifactor (see the plugin's documentation)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.columns import Floats
from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot


class Fifo(Struct, frozen=True):
    """Order of submission."""

    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """The earlier a job was submitted, the higher its score (seconds since then)."""
        since_s = snapshot.now_s - snapshot.columns.submit_s
        return Ranking(snapshot, since_s, lambda row: f"submitted {since_s[row]:.0f} s ago")


class Multifactor(Struct, frozen=True):
    """Age plus fair share plus size, each a factor from 0 to 1 times its weight.

    Fair share is the classic formula, 2^-(U/S): U is the user's share of the GPU-seconds that the jobs of the snapshot
    have used, S the user's share of the cluster, here one part per user. Usage of jobs that have ended is not known
    to a snapshot.

    Attributes:
        age_weight: PriorityWeightAge.
        fairshare_weight: PriorityWeightFairshare.
        size_weight: PriorityWeightJobSize; a job of the whole cluster has factor 1.
        max_age_s: PriorityMaxAge, after which a job does not get older.

    """

    age_weight: float = 1000.0
    fairshare_weight: float = 1000.0
    size_weight: float = 0.0
    max_age_s: float = 7 * 86_400.0
    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Weighted sum of the factors."""
        columns = snapshot.columns
        age = np.clip((snapshot.now_s - columns.submit_s) / self.max_age_s, 0.0, 1.0)
        share = _fair_share(snapshot)
        size = columns.gpus / max(snapshot.nodes.capacity, 1)
        values = self.age_weight * age + self.fairshare_weight * share + self.size_weight * size
        return Ranking(snapshot, values, lambda row: f"age factor {age[row]:.2f}, fair share {share[row]:.2f}")


def _fair_share(snapshot: Snapshot) -> Floats:
    """The factor of each job's user, shape (J,)."""
    if not snapshot.jobs:
        return np.empty(0)
    users, owner = np.unique([job.user for job in snapshot.jobs], return_inverse=True)
    used_gpu_s = np.bincount(owner, weights=snapshot.columns.executed_s * snapshot.columns.gpus)
    total_gpu_s = used_gpu_s.sum()
    used_share = used_gpu_s / total_gpu_s if total_gpu_s > 0 else used_gpu_s
    factor: Floats = np.exp2(-used_share * users.size)
    return factor[owner]
