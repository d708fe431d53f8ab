"""The order of the waiting jobs: which of them a policy may reorder, and the order that Slurm is given. Pure.

The resource manager's own priority (fair share, age, QOS, nice, partition) gives each waiting job a position in the
queue. A policy only permutes the positions of jobs that are peers. So which user is next stays the resource manager's
decision, and users' reports matter only among their own jobs. With one scope, one kind of peers and one priority, the
order is the policy's own. No job starves: overdue jobs come first among their peers, in order of submission.

Slurm must then get an order in which it starts what the plan would start. Its backfill plans a start for every
blocked job and keeps later jobs from delaying it. A policy that reserves nothing for a blocked job (greedy backfill)
means the opposite: any job that fits may go ahead. Slurm does the same if such a job comes after all those for which
the next release of GPUs makes room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from sched_policy.model import GpuRequest
from sched_policy.order import Order
from sched_policy.plan import Plan, Ranking
from sched_policy.snapshot import Bools, Ints, Snapshot
from sched_policy.sweep.choice import Wish

HEAD = 100
"""The number of jobs that Slurm's main scheduler tests (default_queue_depth)."""


def by_wishes(wishes: Mapping[int, Wish], others: Order, snapshot: Snapshot) -> Ranking:
    """Jobs of sweeps by their rank; the other jobs by another order, spread evenly among them.

    Spreading keeps either kind from starving the other, in each scope by itself. Scores are ranks counted from the end:
    they compare only within one ranking and scope.
    """
    if not wishes:
        return others.rank(snapshot)
    of_sweep = [wishes.get(job_id) for job_id in snapshot.columns.job_id.tolist()]
    is_other: Bools = np.array([wish is None for wish in of_sweep], dtype=np.bool_)
    # Ranked without the jobs of sweeps: ranking these as well would take as long and is not needed.
    other_rows = is_other.nonzero()[0]
    rest = others.rank(snapshot.only(other_rows))
    place = np.full(len(of_sweep), np.inf)  # those that should not run now
    place[other_rows[rest.rows]] = np.arange(other_rows.size)
    wanted = [(row, wish.place) for row, wish in enumerate(of_sweep) if wish and wish.place is not None]
    place[[row for row, _ in wanted]] = [nth for _, nth in wanted]
    values = np.zeros(len(of_sweep))
    for members in snapshot.rows_by_scope:
        runs = members[np.isfinite(place[members])]
        for queue in (runs[is_other[runs]], runs[~is_other[runs]]):
            in_order = queue[np.argsort(place[queue])]
            values[in_order] = 1.0 + len(members) * (1.0 - (np.arange(queue.size) + 0.5) / queue.size)

    def reason(row: int) -> str:
        wish = of_sweep[row]
        return rest[int(place[row])].reason if wish is None else wish.reason

    return Ranking(snapshot, values, reason, rest.stable_until_s)


def within_scopes(ranking: Ranking, snapshot: Snapshot) -> Ranking:
    """The ranking with waiting jobs in the positions of their peers, and running ones in order of submission by scope.

    Scores are unchanged, so they decrease only within one scope.
    """
    if snapshot.standing.is_plain:
        return ranking
    rows = ranking.rows
    is_waiting = ~snapshot.columns.holds[rows]
    arranged = rows.copy()
    arranged[is_waiting] = places(rows[is_waiting], snapshot)
    others = rows[~is_waiting]
    arranged[~is_waiting] = _permuted(np.sort(others), others, snapshot.standing.scopes)
    return ranking if np.array_equal(arranged, rows) else ranking.in_order(snapshot, arranged)


def places(preferred: Ints, snapshot: Snapshot) -> Ints:
    """Waiting jobs (positions in the snapshot, all of them, in a wanted order) in the order they may have."""
    return assignment(preferred, snapshot)[1]


def assignment(preferred: Ints, snapshot: Snapshot) -> tuple[Ints, Ints]:
    """For each position in the queue, the highest first: the job that owns it, and the peer that gets it.

    `preferred` are waiting jobs (positions in the snapshot, all of them, in a wanted order).
    """
    standing = snapshot.standing
    overdue = standing.is_overdue[preferred]
    # A snapshot is in order of (submit time, job id).
    best_first = np.concatenate([np.sort(preferred[overdue]), preferred[~overdue]])
    by_place = np.sort(preferred)
    by_place = by_place[np.argsort(-standing.native_priority[by_place], kind="stable")]
    return by_place, _permuted(by_place, best_first, standing.peers)


def _permuted(by_place: Ints, best_first: Ints, group: Ints) -> Ints:
    """The rows in the positions of their group (by row), the best of a group in its first position."""
    result = np.empty_like(by_place)
    result[np.argsort(group[by_place], kind="stable")] = best_first[np.argsort(group[best_first], kind="stable")]
    return result


def queue_order(plan: Plan, snapshot: Snapshot) -> tuple[int, ...]:
    """Ids of the snapshot's jobs in the order in which Slurm should consider them.

    That is the plan's order, but jobs for which the plan reserves nothing, and for which not even the end of the
    largest running job would make room, come last. Only the head of a partition's queue is searched: further back such
    jobs delay no other, and the head changes with every job that starts or ends.
    """
    near = _Reach(snapshot)
    reserved = {start.job_id for start in plan.starts} | {reservation.job_id for reservation in plan.reservations}
    jobs = {job.job_id: job for job in snapshot.jobs}
    kept: list[int] = []
    far: list[int] = []
    counted: Counter[str] = Counter()
    scores = plan.scores
    ranked = scores.job_ids if isinstance(scores, Ranking) else [score.job_id for score in scores]
    for job_id in ranked:
        job = jobs.get(job_id)
        if job is not None and not job.holds_gpus and counted[job.partition] < HEAD:
            may_wait = job.job_id not in reserved and not job.is_overdue
            if may_wait and not near.allows(job.request, job.partition):
                far.append(job.job_id)
                continue
            counted[job.partition] += 1
        kept.append(job_id)
    return (*kept, *far)


class _Reach:
    """Which requests fit on the free GPUs, or on these and the GPUs of one running job.

    GPUs that are being freed (a job that has been asked to leave, or whose node cleans up) count as free.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._nodes = snapshot.nodes
        self._free = snapshot.nodes.gpus.copy()
        holdings: list[tuple[int, int, int]] = []
        for number, job in enumerate(snapshot.running):
            leaves = job.asked_to_leave or job.end_s(snapshot.now_s) <= snapshot.now_s
            for share in job.allocation:
                node = snapshot.nodes.position.get(share.node)
                if node is not None and not leaves:
                    self._free[node] -= share.gpus
                    holdings.append((number, node, share.gpus))
        np.maximum(self._free, 0, out=self._free)  # jobs may share GPUs
        self._holder, self._node, self._gpus = np.array(holdings, dtype=np.int64).reshape(-1, 3).T
        self._known: dict[tuple[GpuRequest, str], bool] = {}

    def allows(self, request: GpuRequest, partition: str) -> bool:
        """Whether the request fits now, or once a single running job has ended."""
        shape = (request, partition)
        if shape not in self._known:
            self._known[shape] = self._is_near(request, partition)
        return self._known[shape]

    def _is_near(self, request: GpuRequest, partition: str) -> bool:
        usable = self._nodes.usable(partition)
        each = 1 if request.per_node is None else request.per_node
        wide_enough = usable & (self._free >= each)
        nodes = int(wide_enough.sum())
        gpus = int(self._free[usable].sum())
        # GPUs that the end of each job would add.
        counted = usable[self._node]
        opened = counted & ~wide_enough[self._node] & (self._free[self._node] + self._gpus >= each)
        jobs = int(self._holder.max()) + 1 if self._holder.size else 1
        more_nodes = np.bincount(self._holder, weights=opened, minlength=jobs)
        more_gpus = np.bincount(self._holder, weights=self._gpus * counted, minlength=jobs)
        return bool(np.any((nodes + more_nodes >= request.nodes) & (gpus + more_gpus >= request.total)))
