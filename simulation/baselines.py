"""Policies that ours are compared with: Slurm's own, FAIR, SLAQ, Themis, Tiresias and the Go scheduler's placements.

FAIR (every job gets the same GPU time, a slice at a time) and SLAQ (Zhang et al., SoCC 2017) are baselines of ExplSched
(CLUSTER 2023); Multifactor is Slurm's priority/multifactor (see the plugin's documentation). Tiresias-L is discretised
two-dimensional least attained service (Gu et al., NSDI 2019, section 3.3). `Simple` and `Balanced` are those of
Pewpenguin/training-scheduler.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.catalog import PolicyOptions
from sched_policy.curves import CurveTable
from sched_policy.improvement import reported
from sched_policy.model import GpuRequest
from sched_policy.order import Fifo
from sched_policy.place import Indexed, Room, enough_memory, smallest_scores
from sched_policy.plan import Ranking
from sched_policy.policies import depth, preemptive, reserving, resizing
from sched_policy.policy import JobData, Need, Policy
from sched_policy.snapshot import Floats, Ints, Snapshot
from simulation.cluster.engine import AS_SLURM
from simulation.finish_time import FinishTimeFair


def slurm(options: PolicyOptions) -> Policy:
    """Slurm's own order and backfill."""
    own_depth = options.reservation_depth
    backfill = AS_SLURM if own_depth is None else replace(AS_SLURM, reservation_depth=own_depth)
    summary = "as Slurm: age, fair share of what present jobs have used, conservative backfill"
    return Policy("slurm", summary, Multifactor(), backfill=backfill, needs=reserving(backfill))


def tiresias(options: PolicyOptions) -> Policy:
    """Two-dimensional least attained service."""
    order = LeastAttainedService(options.las_limits_gpu_s, options.starvation)
    return preemptive("tiresias", "least attained service in few queues (2D-LAS), preemptive", order, options)


def simple(options: PolicyOptions) -> Policy:
    """Idle nodes only."""
    return Policy(
        "simple",
        "order of submission, greedy; one job per node, the idle node with the least to spare",
        Fifo(),
        place=Simple(),
        backfill=depth(options, 0),
        resize=resizing(options),
    )


def balanced(options: PolicyOptions) -> Policy:
    """Spread over the nodes."""
    return Policy(
        "balanced",
        "order of submission, greedy; the node with the fewest jobs and the most free GPUs",
        Fifo(),
        place=Balanced(),
        backfill=depth(options, 0),
        resize=resizing(options),
    )


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
    to a snapshot. A simulation looks at it when a job comes, starts or ends; Slurm does each PriorityCalcPeriod.

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


class Balanced(Struct, frozen=True):
    """Spread tasks over the nodes: few tasks and many free GPUs, both per GPU of the node.

        score = tasks / GPUs of the node - available / GPUs of the node        smallest wins,

    where `available` counts free GPUs with the memory asked for.

    Where we deviate: ties go to the lower node index (the original: random); tasks are counted as of now, also when a
    later time is planned. Requests over several nodes: see `smallest_scores`.
    """

    binds: ClassVar[bool] = True

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """Choose nodes for a gang, None if it does not fit."""
        available = enough_memory(request, room)
        scores = (room.tasks - available) / np.maximum(room.nodes.gpus, 1)

        def score(_taken: Ints | int) -> Floats:
            return scores

        return smallest_scores(request, available, score)


class Simple(Struct, frozen=True):
    """One task per node: only wholly idle nodes, the one with the least to spare.

    A task asks for n GPUs of at least m MiB. With `available` GPUs of that memory on a node,

        score = 0.7 (available - n) + 0.3 (sum of the memory of all available GPUs - m n)        smallest wins.

    The formula is kept as it is, although memory counts in MiB (the original: MB) and therefore swamps the GPU term: in
    effect the node with the least total memory wins, and GPUs decide only between nodes of equal memory.

    Where we deviate: ties go to the lower node index (the original: random); a node is idle if all its GPUs are free,
    so that the rule also answers for a later time; a node of unknown memory is taken to have what is asked; GPUs of one
    node all have the same memory. Requests over several nodes: see `smallest_scores`.
    """

    gpu_weight: float = 0.7
    memory_weight: float = 0.3
    binds: ClassVar[bool] = True

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """Choose idle nodes for a gang, None if it does not fit."""
        available = np.where(room.free == room.nodes.gpus, enough_memory(request, room), 0)
        asked_mib = request.gpu_memory_mib
        memory_mib = np.where(room.nodes.gpu_memory_mib > 0, room.nodes.gpu_memory_mib, asked_mib)

        def score(taken: Ints | int) -> Floats:
            spare_mib = available * memory_mib - asked_mib * taken
            return self.gpu_weight * (available - taken) + self.memory_weight * spare_mib

        return smallest_scores(request, available, score)
