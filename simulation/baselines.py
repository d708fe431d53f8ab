"""Policies that ours are compared with: Slurm's own, FAIR, SLAQ, Themis. Rows of the catalogue.

FAIR (every job gets the same GPU time, a slice at a time) and SLAQ (Zhang et al., SoCC 2017) are baselines of ExplSched
(CLUSTER 2023); Multifactor is Slurm's priority/multifactor (see the plugin's documentation).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.catalog import PolicyOptions
from sched_policy.curves import CurveTable
from sched_policy.improvement import reported
from sched_policy.plan import Ranking
from sched_policy.policies import preemptive, reserving
from sched_policy.policy import JobData, Need, Policy
from sched_policy.snapshot import Floats, Snapshot
from simulation.cluster.engine import AS_SLURM
from simulation.finish_time import FinishTimeFair


def slurm(options: PolicyOptions) -> Policy:
    """Slurm's own order and backfill."""
    own_depth = options.reservation_depth
    backfill = AS_SLURM if own_depth is None else replace(AS_SLURM, reservation_depth=own_depth)
    summary = "Slurm's own: multifactor priority, conservative backfill"
    return Policy("slurm", summary, Multifactor(), backfill=backfill, needs=reserving(backfill))


def fair(options: PolicyOptions) -> Policy:
    """Equal shares of time."""
    summary = "equal GPU time for all jobs, a slice at a time, preemptive"
    return preemptive("fair", summary, Fair(options.quantum_s), options)


def slaq(options: PolicyOptions) -> Policy:
    """Predicted loss reduction."""
    summary = "largest predicted normalised loss reduction per GPU-second first, preemptive"
    need = Need(JobData.LEARNING_CURVES, "jobs that report nothing keep their order of submission")
    return preemptive("slaq", summary, Slaq(options.quantum_s), options, (need,))


def themis(options: PolicyOptions) -> Policy:
    """Finish-time fairness."""
    order = FinishTimeFair()
    need = Need(JobData.RUN_TIMES, f"jobs of unknown length are taken to need {order.unknown_s / 3600:.0f} h more")
    return preemptive("themis", "finish-time fairness (Themis), preemptive", order, options, (need,))


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
