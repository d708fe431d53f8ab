"""Policies of Muri's simulator that preempt and share nothing: SRTF, SRSF and Tiresias-L, and how jobs are placed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, inf
from operator import attrgetter

from simulation.muri.loop import Merging, MuriJob
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
    """A policy that empties the cluster at every event and fills a new `Yarn`, which then holds what is in use."""

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


_KEY = attrgetter("key")


def remaining_s(job: MuriJob) -> float:
    """Remaining time alone: SRTF."""
    return job.left * job.iteration_s


def remaining_gpu_s(job: MuriJob) -> float:
    """Remaining service: SRSF."""
    return job.left * job.iteration_s * job.gpus


class Shortest(Refilling):
    """The active jobs in the order of a key that only running jobs change.

    The sort is stable and in place: equal keys keep the order of the last event, and new jobs come last.
    """

    merging = Merging()

    def __init__(self, cluster: ClusterShape, key: Callable[[MuriJob], float]) -> None:
        super().__init__(cluster)
        self._key = key
        self._active: list[MuriJob] = []

    def arrive(self, job: MuriJob) -> None:
        """To the end of the list."""
        job.key = self._key(job)
        self._active.append(job)

    def leave(self, job: MuriJob) -> None:
        """Out of the list."""
        self._active.remove(job)

    def schedule(self, now_s: float) -> list[MuriJob]:  # noqa: ARG002  the key holds all that matters
        """Sort by key, fill an empty cluster."""
        key = self._key
        for job in self._running:
            job.key = key(job)
        self._active.sort(key=_KEY)
        self._yarn = Yarn(self._cluster)
        self._running = self._yarn.fill(self._active)
        return self._running


QUEUE_LIMITS_GPU_S = (3250, 7200)  # attained service at which a job leaves the first, the second queue
_INDEX = attrgetter("index")


class Tiresias:
    """Queues in order; inside a queue the running jobs first, then the pending ones, each in order of entry.

    A running job that has reached its queue's limit goes to the end of the next queue, one queue per event. A job
    runs if as many GPUs are free as it wants, wherever they are.
    """

    merging = Merging(completion_rel=0.0)

    def __init__(self, cluster: ClusterShape) -> None:
        self._cluster = cluster
        self._queues: list[list[MuriJob]] = [[] for _ in range(len(QUEUE_LIMITS_GPU_S) + 1)]
        self._level: dict[int, int] = {}
        self._running: list[MuriJob] = []
        self._free = cluster.gpus
        self.wake_s = inf

    @property
    def busy_gpus(self) -> int:
        """GPUs that hold jobs."""
        return self._cluster.gpus - self._free

    @property
    def idle_node_gpus(self) -> int:
        """Free GPUs in whole nodes: the policy has no node boundaries, so the densest packing is assumed."""
        return self._free - self._free % self._cluster.gpus_per_node

    def arrive(self, job: MuriJob) -> None:
        """To the end of the first queue."""
        self._level[job.index] = 0
        self._queues[0].append(job)

    def leave(self, job: MuriJob) -> None:
        """Out of its queue."""
        self._queues[self._level.pop(job.index)].remove(job)

    def schedule(self, now_s: float) -> list[MuriJob]:
        """Demote, then scan the queues."""
        self._demote()
        self._running = self._scan()
        self.wake_s = self._next_demotion_s(now_s)
        return self._running

    def _demote(self) -> None:
        for job in sorted(self._running, key=_INDEX):
            level = self._level.get(job.index)
            if level is not None and level < len(QUEUE_LIMITS_GPU_S) and self._reached(job, level):
                self._queues[level].remove(job)
                self._queues[level + 1].append(job)
                self._level[job.index] = level + 1

    @staticmethod
    def _reached(job: MuriJob, level: int) -> bool:
        """Within 1e-9 of the limit counts: otherwise rounding can make a demotion its own successor for ever."""
        return job.executed_s * job.gpus >= QUEUE_LIMITS_GPU_S[level] * (1 - 1e-9)

    def _scan(self) -> list[MuriJob]:
        free = self._cluster.gpus
        running: list[MuriJob] = []
        for level, queue in enumerate(self._queues):
            runs: list[MuriJob] = []
            waits: list[MuriJob] = []
            for place, job in enumerate(queue):
                if job.gpus <= free:
                    free -= job.gpus
                    runs.append(job)
                    if not free:
                        waits.extend(queue[place + 1 :])
                        break
                else:
                    waits.append(job)
            running.extend(runs)
            if runs:
                self._queues[level] = runs + waits
            if not free:
                break
        self._free = free
        return running

    def _next_demotion_s(self, now_s: float) -> float:
        """The original rounds the run time at which a limit is reached up to whole seconds."""
        wake_s = inf
        for job in self._running:
            level = self._level[job.index]
            if level < len(QUEUE_LIMITS_GPU_S):
                wake_s = min(wake_s, ceil(QUEUE_LIMITS_GPU_S[level] / job.gpus) - job.executed_s + now_s)
        return wake_s
