"""Which job holds which GPU, what is left for whom, and Dilu's placement of jobs that ask for parts of one GPU.

Dilu (Lv et al., ASPLOS 2025): a job may start on a GPU on which requests sum up to at most omega, limits to at most
gamma, and memory to the GPU's. Of those the one wins of which least is left, alpha of the score for requests and beta
for memory; GPUs in use before unused ones. `simulation.colocation` replays the rules for instances of every kind,
several GPUs and splits included.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from msgspec import Struct

from sched_policy.model import GpuRequest, Job, NodeGpus
from sched_policy.place import Place, Room
from sched_policy.plan import Group, Plan, Ranking, Start
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot

Gpu = tuple[int, int]
"""(node index, GPU index on the node)."""


class GpuMap:
    """Holders of every GPU, as a plan is made. Arrays have shape (N, G), G being the most GPUs a node has.

    Attributes:
        open: whether jobs may share the GPU: it exists, its node is usable, and nobody holds it who shares with none.
            A job that does not say which GPUs it holds shares none of them.
        guaranteed: guaranteed jobs on the GPU.
        opportunistic: opportunistic jobs on the GPU.
        first: position in the snapshot of the job that came first, -1 where there is none.

    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = snapshot.nodes
        shape = (len(self._nodes), int(self._nodes.gpus.max(initial=0)))
        exists: Bools = np.arange(shape[1]) < self._nodes.gpus[:, None]
        self._usable: Bools = exists & self._nodes.schedulable[:, None]
        self.open: Bools = self._usable.copy()
        self.guaranteed: Ints = np.zeros(shape, dtype=np.int64)
        self.opportunistic: Ints = np.zeros(shape, dtype=np.int64)
        self.first: Ints = np.full(shape, -1, dtype=np.int64)
        self._tasks: Ints = np.zeros(shape[0], dtype=np.int64)
        self._held: dict[int, tuple[Gpu, ...]] = {}
        rows = snapshot.columns.holds.nonzero()[0].tolist()
        says = [bool(share.indices) for row in rows for share in snapshot.jobs[row].allocation[:1]]
        for row, _ in sorted(zip(rows, says, strict=False), key=lambda pair: not pair[1]):
            gpus = self._gpus_of(snapshot.jobs[row])
            self.hold(row, gpus)
            for node, index in gpus:
                self.open[node, index] &= snapshot.jobs[row].allocation[0].indices != ()

    @property
    def jobs(self) -> Ints:
        """Jobs on each GPU."""
        return self.guaranteed + self.opportunistic

    def gpus(self, row: int) -> tuple[Gpu, ...]:
        """The GPUs of the job at a position of the snapshot."""
        return self._held.get(row, ())

    def hold(self, row: int, gpus: Iterable[Gpu]) -> None:
        """Put a job on GPUs."""
        self._held[row] = tuple(gpus)
        job = self._snapshot.jobs[row]
        counts = self.guaranteed if job.guaranteed else self.opportunistic
        for gpu in self._held[row]:
            counts[gpu] += 1
            self.open[gpu] &= job.may_share
            if self.first[gpu] < 0:
                self.first[gpu] = row
        self._tasks[sorted({node for node, _ in self._held[row]})] += 1

    def vacate(self, gpus: Iterable[Gpu]) -> None:
        """Open the GPUs of a job that can go: to others, and to the job itself if it may stay."""
        for gpu in gpus:
            self.open[gpu] = self._usable[gpu]

    def find(self, request: GpuRequest, partition: str, place: Place, cost: Floats) -> tuple[Gpu, ...] | None:
        """GPUs for a gang: of each chosen node those of least `cost`, shape (N, G); infinity keeps a GPU out of it.

        None if the gang does not fit.
        """
        admitted = np.isfinite(cost) & self.open & self._nodes.usable(partition)[:, None]
        placed = place.place(request, Room(admitted.sum(axis=1), self._tasks, self._nodes))
        if placed is None:
            return None
        chosen: list[Gpu] = []
        for node, gpus in placed:
            cheapest = np.argsort(np.where(admitted[node], cost[node], np.inf), kind="stable")[:gpus]
            chosen.extend((node, index) for index in sorted(cheapest.tolist()))
        return tuple(chosen)

    def named(self, gpus: Iterable[Gpu]) -> tuple[NodeGpus, ...]:
        """The same GPUs as a placement."""
        by_node: dict[int, list[int]] = {}
        for node, index in sorted(gpus):
            by_node.setdefault(node, []).append(index)
        return tuple(NodeGpus(self._nodes[node].name, len(found), tuple(found)) for node, found in by_node.items())

    def _gpus_of(self, job: Job) -> list[Gpu]:
        """The GPUs a running job says it holds, or as many as it holds from those that nobody else does."""
        found: list[Gpu] = []
        for share in job.allocation:
            node = self._nodes.position.get(share.node)
            if node is not None:
                untaken = np.flatnonzero(self.first[node] < 0)[: share.gpus].tolist()
                found.extend((node, index) for index in share.indices or untaken)
        return found


OMEGA, GAMMA = 1.0, 1.5
"""The sums of requests and of limits that no GPU exceeds."""

ALPHA, BETA = 0.6, 0.4
"""What a GPU's free share, and its free memory, count."""

_ROUNDING = 1e-9
_Value = TypeVar("_Value", float, Floats)


def left_over(requests: _Value, memory: _Value) -> _Value:
    """The score of GPUs, given the shares of them that would be requested and filled: the smallest wins."""
    return ALPHA * (1.0 - requests) + BETA * (1.0 - memory)


class Complementary(Struct, frozen=True):
    """Jobs that ask for a part of one GPU go where they fit best, in the order of the ranking; others stay alone.

    Non-preemptive. What a job does not say of its share of time is taken to be its share of memory.
    """

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Starts of all that fit, and who will be beside whom."""
        gpus, taken = GpuMap(snapshot), _Taken(snapshot)
        starts: list[Start] = []
        groups: list[Group] = []
        for row in ranking.rows[snapshot.columns.waits[ranking.rows]].tolist():
            job = snapshot.jobs[row]
            found = None
            for cost in taken.costs(job, gpus):
                found = found or gpus.find(job.request, job.partition, place, cost)
            if found is None:
                continue
            beside = tuple(snapshot.jobs[other].job_id for other in sorted(taken.rows_on(found[0])))
            gpus.hold(row, found)
            taken.add(row, found)
            if beside:
                groups.append(Group((*beside, job.job_id), "their requests, limits and memory fit on one GPU"))
            starts.append(Start(job.job_id, gpus.named(found), f"shares with {len(beside)} job(s), by complementarity"))
        return Plan(starts=tuple(starts), groups=tuple(groups))


class _Taken:
    """What is requested, allowed and filled of every GPU, shape (N, G), and by whom."""

    def __init__(self, snapshot: Snapshot) -> None:
        shape = (len(snapshot.nodes), int(snapshot.nodes.gpus.max(initial=0)))
        self._snapshot = snapshot
        self._request, self._limit, self._memory = (np.zeros(shape) for _ in range(3))
        self._rows: dict[tuple[int, int], list[int]] = {}
        holding = GpuMap(snapshot)
        for row in snapshot.columns.holds.nonzero()[0].tolist():
            self.add(row, holding.gpus(row))

    def add(self, row: int, gpus: tuple[tuple[int, int], ...]) -> None:
        part = self._snapshot.jobs[row].part
        for gpu in gpus:
            self._request[gpu] += part.request if part else OMEGA
            self._limit[gpu] += part.limit if part else GAMMA
            self._memory[gpu] += part.memory if part else 1.0
            self._rows.setdefault(gpu, []).append(row)

    def rows_on(self, gpu: tuple[int, int]) -> list[int]:
        return self._rows.get(gpu, [])

    def costs(self, job: Job, gpus: GpuMap) -> tuple[Floats, ...]:
        """Scores of the GPUs in use that can take the job, then of the unused ones; infinity where it cannot go."""
        unused: Bools = gpus.jobs == 0
        alone: Floats = np.where(unused, 0.0, np.inf)
        part = job.part
        if part is None or not job.may_share or job.request.total != 1:
            return (alone,)
        fits = self._request + part.request <= OMEGA + _ROUNDING
        fits &= self._limit + part.limit <= GAMMA + _ROUNDING
        fits &= self._memory + part.memory <= 1.0 + _ROUNDING
        score = left_over(self._request + part.request, self._memory + part.memory)
        used = fits & ~unused
        best: Floats = np.where(used & (score <= score[used].min()), score, np.inf) if used.any() else alone
        return (best, alone)
