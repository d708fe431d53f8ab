"""The GPUs of a simulated cluster: how many are free on each node, and who shares which."""

from __future__ import annotations

from collections.abc import Iterable

from sched_policy.columns import Ints, Nodes
from sched_policy.model import NodeGpus


class GpuPool:
    """Free GPUs per node (`free`, shape (N,)). A GPU that jobs share is taken once, until the last of them leaves."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.free: Ints = nodes.gpus.copy()
        self._sharers: dict[tuple[str, int], list[int]] = {}

    def take(self, row: int, placement: Iterable[NodeGpus]) -> None:
        """The job of that row gets GPUs."""
        for held in placement:
            node = self._nodes.position[held.node]
            if not held.indices:
                self.free[node] -= held.gpus
            for index in held.indices:
                sharers = self._sharers.setdefault((held.node, index), [])
                self.free[node] -= not sharers
                sharers.append(row)

    def give_back(self, row: int, placement: Iterable[NodeGpus]) -> None:
        """The job of that row leaves its GPUs."""
        for held in placement:
            node = self._nodes.position[held.node]
            if not held.indices:
                self.free[node] += held.gpus
            for index in held.indices:
                sharers = self._sharers[held.node, index]
                sharers.remove(row)
                self.free[node] += not sharers

    def neighbours(self, row: int, placement: Iterable[NodeGpus]) -> tuple[tuple[int, ...], ...]:
        """Who else is on the GPUs of a placement: each different set of rows once, in order."""
        sets = {
            tuple(sorted(other for other in self._sharers[held.node, index] if other != row))
            for held in placement
            for index in held.indices
        }
        return tuple(sorted(sets - {()}))
