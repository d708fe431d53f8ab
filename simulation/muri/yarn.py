"""The consolidating placement of the family, counted in free GPUs per node."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from simulation.muri.jobs import MuriJob
from simulation.traces.trace import ClusterShape


class Yarn:
    """An empty cluster that is filled job by job.

    Up to a node's GPUs: the first node that has them free. More: wholly idle nodes, lowest first, and the
    remainder on the first other node that has it free. CPUs and memory of the published cluster never bind.
    """

    __slots__ = ("_free", "_per_node")

    def __init__(self, shape: ClusterShape) -> None:
        self._per_node = shape.gpus_per_node
        self._free = [shape.gpus_per_node] * shape.nodes

    def take(self, gpus: int) -> bool:
        """Place a job. False, with nothing changed, if it does not fit; then no larger one fits either."""
        free, per_node = self._free, self._per_node
        if gpus <= per_node:
            for node, have in enumerate(free):
                if have >= gpus:
                    free[node] = have - gpus
                    return True
            return False
        whole, rest = divmod(gpus, per_node)
        nodes = [node for node, have in enumerate(free) if have == per_node][:whole]
        if len(nodes) < whole:
            return False
        if rest:
            last = next((node for node, have in enumerate(free) if have >= rest and node not in nodes), None)
            if last is None:
                return False
            free[last] -= rest
        for node in nodes:
            free[node] = 0
        return True

    def fill(self, order: Iterable[MuriJob]) -> list[MuriJob]:
        """Place jobs greedily in this order and return those that fit. `take` in a loop, made fast."""
        placed: list[MuriJob] = []
        free, per_node = self._free, self._per_node
        left = sum(free)
        first_open = 0  # no node before it has a free GPU
        too_large = left + 1
        for job in order:
            gpus = job.gpus
            if gpus >= too_large:
                continue
            if gpus <= per_node:
                node = first_open
                while node < len(free) and free[node] < gpus:
                    node += 1
                if node < len(free):
                    free[node] -= gpus
                    if node == first_open and not free[node]:
                        first_open += 1
                    fits = True
                else:
                    fits = False
            else:
                fits = self.take(gpus)
            if fits:
                placed.append(job)
                left -= gpus
                if left < too_large:
                    too_large = left + 1
                    if not left:
                        break
            else:
                too_large = gpus
                if gpus == 1:
                    break
        return placed

    @property
    def busy_gpus(self) -> int:
        """GPUs taken."""
        return len(self._free) * self._per_node - sum(self._free)

    @property
    def idle_node_gpus(self) -> int:
        """GPUs of wholly idle nodes."""
        return self._free.count(self._per_node) * self._per_node


class Refilling:
    """A policy that empties the cluster at every event and fills another `Yarn`, which then tells what is in use."""

    wake_s = inf

    def __init__(self, cluster: ClusterShape) -> None:
        self._cluster = cluster
        self._yarn = Yarn(cluster)
        self._running: list[MuriJob] = []

    @property
    def busy_gpus(self) -> int:
        """GPUs that hold jobs."""
        return self._yarn.busy_gpus

    @property
    def idle_node_gpus(self) -> int:
        """GPUs of wholly idle nodes."""
        return self._yarn.idle_node_gpus
