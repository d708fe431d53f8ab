"""Tiresias-L as Muri's simulator has it: three queues by attained service, GPUs counted without node boundaries."""

from __future__ import annotations

from math import ceil, inf
from operator import attrgetter

from simulation.muri.jobs import MuriJob
from simulation.muri.loop import Merging
from simulation.traces.trace import ClusterShape

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
