"""Two jobs on a GPU: a guaranteed and an opportunistic one (AntMan), or any two that gain by it (SJF-BSBF, Gandiva).

Baselines, like `simulation.baselines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.catalog import PolicyOptions
from sched_policy.group.gpus import Gpu, GpuMap, by_node
from sched_policy.model import GpuPart, GpuRequest, Job, StageProfile
from sched_policy.order import Fifo
from sched_policy.place import Place
from sched_policy.plan import Group, Plan, Ranking, Start
from sched_policy.policies import SHORTEST_FIRST, preemptive
from sched_policy.policy import JobData, Need, Policy, SchedulingPolicy
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot
from simulation.interference import Guarantee, Interference, Interleaving

_ROUNDING = 1e-9
_PAIRED = Need(JobData.STAGE_TIMES, "a pair is taken to run half as fast")

PartnerCost = Callable[["Floats", "Floats", "Floats", "Floats"], Floats]
"""(t_a, t_b, xi_a, xi_b) -> cost for job a of sharing with each running job b, infinity where it does not pay.

`t` are remaining run times alone in seconds, `xi` the factors by which sharing slows each job; all of shape (B,)."""


def first_fit(t_a: Floats, t_b: Floats, xi_a: Floats, xi_b: Floats) -> Floats:  # noqa: ARG001
    """SJF-FFS: every partner pays; the first one costs least."""
    return np.arange(1.0, t_b.size + 1)


def best_benefit(t_a: Floats, t_b: Floats, xi_a: Floats, xi_b: Floats) -> Floats:
    """SJF-BSBF: the pair's mean completion time when sharing, infinity where one after the other is no worse.

    Sharing slows both (`xi`, at least 1) until the first ends; the other then runs alone. One after the other, the new
    job waits for the running one. These times are t_con and t_seq of the paper's benefit test.
    """
    s_a, s_b = xi_a * t_a, xi_b * t_b
    a_is_longer = s_a >= s_b
    longer_s, xi = np.where(a_is_longer, t_a, t_b), np.where(a_is_longer, xi_a, xi_b)
    with np.errstate(invalid="ignore"):  # infinite run times: nothing is known, nothing pays
        together_s = longer_s / 2 + (1 - 0.5 / xi) * np.minimum(s_a, s_b)
        pays = together_s < t_b + t_a / 2
    return np.where(pays, together_s, np.inf)


def packing(t_a: Floats, t_b: Floats, xi_a: Floats, xi_b: Floats) -> Floats:  # noqa: ARG001
    """Gandiva (OSDI 2018, section 3.3): the partner with the highest joint throughput, if it is more than one's alone.

    Gandiva packs jobs, and undoes it if the throughput has fallen; here interference is known before.
    """
    throughput = 1.0 / xi_a + 1.0 / xi_b
    return np.where(throughput > 1.0, 2.0 - throughput, np.inf)


class Pairs(Struct, frozen=True):
    """SJF-FFS and SJF-BSBF (Luo et al., IWQoS 2024, arXiv 2407.13088).

    At most two jobs per GPU, and only if there are not enough unused GPUs for the new job. Non-preemptive.

    Attributes:
        cost: the cost of each partner: `first_fit`, `best_benefit`, or `packing` for Gandiva.

    """

    cost: PartnerCost = best_benefit

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Waiting jobs in the order of `ranking` on unused GPUs, else beside running jobs that are alone."""
        gpus = GpuMap(snapshot)
        slowdowns = _Slowdowns(snapshot.jobs)
        memory = _GpuMemory(snapshot, gpus)
        partners = _Partners(gpus, len(snapshot.jobs))
        left_s = snapshot.columns.left_s
        crowded: set[tuple[GpuRequest, str]] = set()  # shapes for which too few unused GPUs are left
        fits: dict[tuple[GpuRequest, str], bool] = {}  # whether a shape fits if every partner pays, until a job starts
        starts: list[Start] = []
        groups: list[Group] = []
        for row in ranking.rows[snapshot.columns.waits[ranking.rows]].tolist():
            job = snapshot.jobs[row]
            shape = (job.request, job.partition)
            found = None if shape in crowded else gpus.find(*shape, place, partners.unused)
            if found is None:
                crowded.add(shape)
                if not job.may_share or not fits.get(shape, True):
                    continue
                others = partners.rows
                xi_a, xi_b = slowdowns.between(row, others)
                cost = self.cost(np.full(others.size, left_s[row]), left_s[others], xi_a, xi_b)
                if partners.usable_gpus(cost) >= job.request.total:
                    found = cheapest(gpus, job, place, partners.gpu_cost(cost) + memory.shortage(job))
                if found is None and shape not in fits:
                    fits[shape] = gpus.find(*shape, place, partners.gpu_cost(np.zeros(others.size))) is not None
            if found is None:
                continue
            beside = sorted({int(gpus.first[gpu]) for gpu in found} - {-1})
            gpus.hold(row, found)
            memory.hold(job, found)
            partners.joined(found)
            fits.clear()
            if beside:
                members = tuple(snapshot.jobs[other].job_id for other in beside)
                groups.append(Group((*members, job.job_id), "sharing now ends both earlier than one after the other"))
            starts.append(Start(job.job_id, gpus.named(found), f"shares with {len(beside)} job(s)"))
        return Plan(starts=tuple(starts), groups=tuple(groups))


def cheapest(gpus: GpuMap, job: Job, place: Place, cost: Floats) -> tuple[Gpu, ...] | None:
    """GPUs for a job such that the largest cost of any of them is least, on any node; `cost` as in `GpuMap.find`.

    `place` alone would take the first node that fits, and the best GPUs only there.
    """
    least = _least_limit(job.request, np.where(gpus.open & gpus.usable(job.partition), cost, np.inf))
    if np.isinf(least):
        return None
    found = gpus.find(job.request, job.partition, place, np.where(cost <= least, cost, np.inf))
    if found is not None:
        return found
    limits = np.unique(cost[np.isfinite(cost) & (cost > least)])
    low, high = 0, limits.size
    while low < high:  # a job that fits within a limit fits within every higher one
        middle = (low + high) // 2
        within_limit = np.where(cost <= limits[middle], cost, np.inf)
        fitting = gpus.find(job.request, job.partition, place, within_limit)
        if fitting is None:
            low = middle + 1
        else:
            found, high = fitting, middle
    return found


def _least_limit(request: GpuRequest, cost: Floats) -> float:
    """A lower bound of the largest cost in a gang, by counting GPUs; infinity if the gang cannot fit."""
    each = 1 if request.per_node is None else request.per_node
    if each > cost.shape[1] or not cost.size:
        return np.inf
    lowest = float(cost.min())
    cheapest = by_node(cost <= lowest)
    if np.count_nonzero(cheapest >= each) >= request.nodes >= 1 and int(cheapest.sum()) >= request.total:
        return lowest  # the usual case: many GPUs have the lowest cost
    dearest = np.partition(cost, each - 1, axis=1)[:, each - 1]  # where a node's share of the gang is affordable
    if not 1 <= request.nodes <= dearest.size:
        return np.inf
    limit = float(np.partition(dearest, request.nodes - 1)[request.nodes - 1])
    if request.per_node is None and request.total <= cost.size:
        limit = max(limit, float(np.partition(cost, request.total - 1, axis=None)[request.total - 1]))
    return limit


class _Partners:
    """Unused GPUs, and possible partners: jobs alone on some of their GPUs (`rows` of the snapshot, shape (B,))."""

    def __init__(self, gpus: GpuMap, jobs: int) -> None:
        self._gpus = gpus
        self.unused: Floats = np.where(gpus.jobs == 0, 0.0, np.inf)
        self._alone: Bools = gpus.open & (gpus.jobs == 1)
        self._alone_gpus: Ints = np.bincount(gpus.first[self._alone], minlength=jobs)
        self._by_row: Floats = np.empty(jobs)
        self.rows: Ints = np.flatnonzero(self._alone_gpus)

    def joined(self, gpus: Iterable[Gpu]) -> None:
        """A job has been put on these GPUs."""
        for gpu in gpus:
            was_alone = self._alone[gpu]
            is_alone = self._gpus.open[gpu] and self._gpus.jobs[gpu] == 1
            self._alone_gpus[self._gpus.first[gpu]] += int(is_alone) - int(was_alone)
            self._alone[gpu] = is_alone
            self.unused[gpu] = np.inf
        self.rows = np.flatnonzero(self._alone_gpus)

    def usable_gpus(self, cost: Floats) -> int:
        """Number of unused GPUs and those of partners of finite cost; 0 if no partner has one."""
        pays = self.rows[np.isfinite(cost)]
        return int(self._alone_gpus[pays].sum() + np.isfinite(self.unused).sum()) if pays.size else 0

    def gpu_cost(self, cost: Floats) -> Floats:
        """Cost of each GPU, shape (N, G): 0 for unused ones, 1 + `cost` of the partner for others."""
        self._by_row[self.rows] = 1.0 + cost
        return np.where(self._alone, self._by_row[self._gpus.first], self.unused)


class _GpuMemory:
    """The fraction of each GPU's memory that is taken, by jobs that say how much they need (by shards).

    Jobs that do not say, such as those of traces, count as needing none.
    """

    def __init__(self, snapshot: Snapshot, gpus: GpuMap) -> None:
        self._taken: Floats = np.zeros(gpus.first.shape)
        for row in snapshot.columns.holds.nonzero()[0].tolist():
            self.hold(snapshot.jobs[row], gpus.gpus(row))

    def hold(self, job: Job, gpus: Iterable[Gpu]) -> None:
        """Take the job's part of some GPUs."""
        for gpu in gpus:
            self._taken[gpu] += job.part.memory if job.part else 0.0

    def shortage(self, job: Job) -> Floats:
        """Infinity where the memory left by other jobs is too small, else 0; shape (N, G) or (1,)."""
        needed = job.part.memory if job.part else 0.0
        if needed <= 1.0 and not self._taken.any():
            return np.zeros(1)  # no memory is known to be taken
        return np.where(self._taken + needed > 1.0 + _ROUNDING, np.inf, 0.0)


class _Slowdowns:
    """Interference ratios of pairs, cached: they depend on the jobs' profiles alone, of which there are few."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        kinds: dict[StageProfile | None, int] = {}
        self._kind: Ints = np.array([kinds.setdefault(job.profile, len(kinds)) for job in jobs], dtype=np.int64)
        self._typical = [jobs[int(np.argmax(self._kind == kind))] for kind in range(len(kinds))]
        self._ratios: Floats = np.full((len(kinds), len(kinds)), np.nan)
        self._known: set[int] = set()

    def between(self, row: int, others: Ints) -> tuple[Floats, Floats]:
        """Factors by which each of the others slows the job, and by which the job slows each; shape (B,) both."""
        mine, theirs = int(self._kind[row]), self._kind[others]
        if mine not in self._known:
            self._known.add(mine)
            for other in range(len(self._typical)):
                self._ratios[mine, other] = self._ratio(mine, other)
                self._ratios[other, mine] = self._ratio(other, mine)
        return self._ratios[mine, theirs], self._ratios[theirs, mine]

    def _ratio(self, kind: int, other: int) -> float:
        return Interleaving().slowdown(self._typical[kind], (self._typical[other],))


class Opportunistic(Struct, frozen=True):
    """At most one guaranteed and one opportunistic job per GPU (AntMan, OSDI 2020). Non-preemptive.

    A guaranteed job takes GPUs without another guaranteed one, unused ones first; an opportunistic job takes GPUs
    without another opportunistic one, the least used first. In the original a guaranteed job that does not fit collects
    GPUs one by one as they become idle. Plans start gangs as a whole, so here it waits without a reservation.
    """

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Guaranteed jobs first, each class in the order of `ranking`; whatever fits starts."""
        gpus = GpuMap(snapshot)
        memory = _GpuMemory(snapshot, gpus)
        classes = _Classes(snapshot, gpus)
        waits = snapshot.columns.waits
        queue = [row for row in ranking.rows.tolist() if waits[row]]
        queue.sort(key=lambda row: not snapshot.jobs[row].guaranteed)
        starts: list[Start] = []
        groups: list[Group] = []
        too_large: set[tuple[GpuRequest, str, bool, bool, GpuPart | None]] = (
            set()
        )  # free GPUs only become fewer within a plan
        for row in queue:
            job = snapshot.jobs[row]
            shape = (job.request, job.partition, job.guaranteed, job.may_share, job.part)
            if shape in too_large:
                continue
            found = cheapest(gpus, job, place, classes.cost(job) + memory.shortage(job))
            if found is None:
                too_large.add(shape)
                continue
            beside = sorted({int(gpus.first[gpu]) for gpu in found} - {-1})
            gpus.hold(row, found)
            memory.hold(job, found)
            classes.hold(job, found)
            if beside:
                neighbours = tuple(snapshot.jobs[other].job_id for other in beside)
                groups.append(Group((*neighbours, job.job_id), "an opportunistic job in the gaps of a guaranteed one"))
            kind = "guaranteed" if job.guaranteed else "opportunistic"
            starts.append(Start(job.job_id, gpus.named(found), f"{kind}; shares with {len(beside)} job(s)"))
        return Plan(starts=tuple(starts), groups=tuple(groups))


class _Classes:
    """How many guaranteed and opportunistic jobs are on each GPU."""

    def __init__(self, snapshot: Snapshot, gpus: GpuMap) -> None:
        self._jobs: dict[bool, Ints] = {kind: np.zeros(gpus.first.shape, dtype=np.int64) for kind in (False, True)}
        self._cost: dict[bool, Floats] = {kind: np.zeros(gpus.first.shape) for kind in self._jobs}
        for row in snapshot.columns.holds.nonzero()[0].tolist():
            self.hold(snapshot.jobs[row], gpus.gpus(row))

    def hold(self, job: Job, gpus: Iterable[Gpu]) -> None:
        """Put the job on some GPUs."""
        for gpu in gpus:
            self._jobs[job.guaranteed][gpu] += 1
            self._cost[job.guaranteed][gpu] = np.inf
            self._cost[not job.guaranteed][gpu] += 1.0

    def cost(self, job: Job) -> Floats:
        """Jobs on each GPU, infinity where one is of the same class, or any if the job may not share; shape (N, G)."""
        if not job.may_share:
            return np.where(self._jobs[True] + self._jobs[False] > 0, np.inf, 0.0)
        return self._cost[job.guaranteed]


def antman(_options: PolicyOptions) -> Policy:
    """AntMan: guaranteed and opportunistic jobs."""
    summary = "opportunistic jobs in the gaps of guaranteed ones (AntMan), in order of submission"
    classes = Need(JobData.PRIORITIES, "all jobs are guaranteed, and none shares a GPU")
    stages = Need(JobData.STAGE_TIMES, "an opportunistic job is taken to run half as fast beside another")
    return Policy("antman", summary, Fifo(), sharing=Opportunistic(), needs=(classes, stages))


def gandiva(_options: PolicyOptions) -> Policy:
    """Gandiva: packing."""
    summary = "order of submission, pairs share GPUs where together they get more done (Gandiva)"
    return Policy("gandiva", summary, Fifo(), sharing=Pairs(packing), needs=(_PAIRED,))


class Srtf(Struct, frozen=True):
    """The less run time a job has left, the earlier it runs; a job of unknown length comes last."""

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the remaining seconds of each job."""
        left_s = snapshot.columns.left_s
        return Ranking(snapshot, -left_s, lambda row: f"{left_s[row]:.0f} seconds remain")


def srtf(options: PolicyOptions) -> Policy:
    """Shortest remaining time first."""
    return preemptive("srtf", "shortest remaining time first, preemptive", Srtf(), options, (SHORTEST_FIRST,))


def sjf_ffs(_options: PolicyOptions) -> Policy:
    """SJF-FFS: pairs by first fit."""
    summary = "shortest job first, pairs share GPUs first-fit"
    return Policy("sjf-ffs", summary, Srtf(), sharing=Pairs(first_fit), needs=(SHORTEST_FIRST, _PAIRED))


def sjf_bsbf(_options: PolicyOptions) -> Policy:
    """SJF-BSBF: pairs by best benefit."""
    summary = "shortest job first, pairs share GPUs where both gain by it"
    unknown = Need(JobData.RUN_TIMES, "jobs of unknown length come last, in order of submission, and share no GPU")
    return Policy("sjf-bsbf", summary, Srtf(), sharing=Pairs(best_benefit), needs=(unknown, _PAIRED))


def interference_of(policy: SchedulingPolicy) -> Interference:
    """The mechanism that a policy's groups rely on."""
    by_class = isinstance(policy, Policy) and isinstance(policy.sharing, Opportunistic)
    return Guarantee() if by_class else Interleaving()
