"""Which job holds which GPU, and which GPUs others may use."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sched_policy.model import GpuRequest, Job, NodeGpus
from sched_policy.place import Place, Room, place_near
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot

Gpu = tuple[int, int]
"""(node index, GPU index on the node)."""


def by_node(admitted: Bools) -> Ints:
    """The true entries of each row, shape (N,), of (N, G) booleans; much faster than `sum` along a short axis."""
    counted: Ints = np.einsum("ij->i", admitted.astype(np.int64))
    return counted


class GpuMap:
    """Holders of every GPU, as a plan is made. Arrays have shape (N, G), G being the most GPUs a node has.

    Attributes:
        open: whether a job may be put on the GPU: it exists, its node is usable, and no job on it refuses to share. A
            job that does not say which GPUs it holds shares none of them.
        jobs: number of jobs on the GPU.
        first: position in the snapshot of the job that was there first, -1 if the GPU is unused.

    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._nodes = snapshot.nodes
        shape = (len(self._nodes), int(self._nodes.gpus.max(initial=0)))
        exists: Bools = np.arange(shape[1]) < self._nodes.gpus[:, None]
        self._usable: Bools = exists & self.usable("")
        self.open: Bools = self._usable.copy()
        self.jobs: Ints = np.zeros(shape, dtype=np.int64)
        self.first: Ints = np.full(shape, -1, dtype=np.int64)
        self._tasks: Ints = np.zeros(shape[0], dtype=np.int64)
        self._held: dict[int, tuple[Gpu, ...]] = {}
        rows = snapshot.columns.holds.nonzero()[0].tolist()
        for row in sorted(rows, key=lambda row: not any(share.indices for share in snapshot.jobs[row].allocation[:1])):
            gpus = self._gpus_of(snapshot.jobs[row])
            self.hold(row, gpus)
            for node, index in gpus:
                self.open[node, index] &= snapshot.jobs[row].allocation[0].indices != ()

    def gpus(self, row: int) -> tuple[Gpu, ...]:
        """The GPUs of the job at a position of the snapshot."""
        return self._held.get(row, ())

    def hold(self, row: int, gpus: Iterable[Gpu]) -> None:
        """Put a job on GPUs."""
        self._held[row] = tuple(gpus)
        for gpu in self._held[row]:
            self.jobs[gpu] += 1
            self.open[gpu] &= self._snapshot.jobs[row].may_share
            if self.first[gpu] < 0:
                self.first[gpu] = row
        self._tasks[sorted({node for node, _ in self._held[row]})] += 1

    def vacate(self, gpus: Iterable[Gpu]) -> None:
        """Open the GPUs of a job that may be moved, to other jobs and to the job itself."""
        for gpu in gpus:
            self.open[gpu] = self._usable[gpu]

    def usable(self, partition: str) -> Bools:
        """Whether jobs of a partition, or any for "", may be planned on a node now, shape (N, 1)."""
        return (self._nodes.usable(partition) & (self._snapshot.stays_s > 0))[:, None]

    def find(self, request: GpuRequest, partition: str, place: Place, cost: Floats) -> tuple[Gpu, ...] | None:
        """GPUs for a gang: on each chosen node those of least `cost`, shape (N, G); None if it does not fit.

        GPUs with infinite cost are not used.
        """
        admitted = np.isfinite(cost) & self.open & self.usable(partition)
        placed = place_near(place, request, Room(by_node(admitted), self._tasks, self._nodes))
        if placed is None:
            return None
        chosen: list[Gpu] = []
        for node, gpus in placed:
            cheapest = np.argsort(np.where(admitted[node], cost[node], np.inf), kind="stable")[:gpus]
            chosen.extend((node, index) for index in sorted(cheapest.tolist()))
        return tuple(chosen)

    def named(self, gpus: Iterable[Gpu]) -> tuple[NodeGpus, ...]:
        """The same GPUs as the `placement` of a plan."""
        by_node: dict[int, list[int]] = {}
        for node, index in sorted(gpus):
            by_node.setdefault(node, []).append(index)
        return tuple(NodeGpus(self._nodes[node].name, len(found), tuple(found)) for node, found in by_node.items())

    def _gpus_of(self, job: Job) -> list[Gpu]:
        """The GPUs that a running job says it holds; if it does not say, as many of those that no other job holds."""
        found: list[Gpu] = []
        for share in job.allocation:
            node = self._nodes.position.get(share.node)
            if node is not None:
                untaken = np.flatnonzero(self.first[node] < 0)[: share.gpus].tolist()
                found.extend((node, index) for index in share.indices or untaken)
        return found
