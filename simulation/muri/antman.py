"""AntMan as Muri's simulator has it: guaranteed jobs reserve GPUs, opportunistic ones share them.

No job is preempted or changes its class, and a guaranteed job may hold idle GPUs for long.
"""

from __future__ import annotations

from math import inf

from simulation.interference import opportunistic_iteration_s
from simulation.muri.loop import Merging, MuriJob
from simulation.traces.trace import ClusterShape

_OPPORTUNISTIC = 0.9  # utilisation that an opportunistic job adds to each of its GPUs
_GUARANTEED = 0.1
_STARTED = 0.01  # the part of `_GUARANTEED` that is added only when the job starts
_SHAREABLE = 0.8  # opportunistic jobs go to GPUs below this


class AntMan:
    """GPUs in order of (node, index). Utilisations are summed as the original does: their rounding breaks ties."""

    merging = Merging(completion_s=1e-4)
    wake_s = inf

    def __init__(self, cluster: ClusterShape) -> None:
        self._per_node = cluster.gpus_per_node
        self._nodes = cluster.nodes
        self._guaranteed: list[MuriJob | None] = [None] * cluster.gpus
        self._opportunistic: list[MuriJob | None] = [None] * cluster.gpus
        self._utilisation = [0.0] * cluster.gpus
        self._open = [cluster.gpus_per_node] * cluster.nodes  # GPUs of each node without a guaranteed job
        self._waiting: tuple[list[MuriJob], list[MuriJob]] = ([], [])  # guaranteed jobs, opportunistic jobs
        self._running: list[MuriJob] = []
        self._held: dict[int, list[int]] = {}
        self._home: dict[int, int] = {}  # the node on which a guaranteed job collects its (remaining) GPUs

    @property
    def busy_gpus(self) -> int:
        """GPUs on which a job runs; reserved ones on which nothing runs yet are not busy."""
        busy: set[int] = set()
        for job in self._running:
            busy.update(self._held[job.index])
        return len(busy)

    @property
    def idle_node_gpus(self) -> int:
        """GPUs of nodes that hold no job and no reservation."""
        idle = 0
        for node in range(self._nodes):
            if self._open[node] == self._per_node:
                idle += all(self._opportunistic[gpu] is None for gpu in self._gpus_of(node))
        return idle * self._per_node

    def arrive(self, job: MuriJob) -> None:
        """To the end of its class. Jobs arrive in order of (submit, index)."""
        self._held[job.index] = []
        self._waiting[0 if job.trace.priority == 0 else 1].append(job)

    def leave(self, job: MuriJob) -> None:
        """Release its GPUs."""
        self._running.remove(job)
        guaranteed = job.trace.priority == 0
        holders = self._guaranteed if guaranteed else self._opportunistic
        for gpu in self._held.pop(job.index):
            holders[gpu] = None
            if guaranteed:
                self._open[gpu // self._per_node] += 1
            self._utilisation[gpu] -= _GUARANTEED if guaranteed else _OPPORTUNISTIC

    def schedule(self, now_s: float) -> list[MuriJob]:  # noqa: ARG002  nothing here depends on the time
        """Start what fits, let guaranteed jobs reserve, and set the iteration times of opportunistic jobs."""
        guaranteed, opportunistic = self._waiting
        started: list[MuriJob] = []
        for job in guaranteed:
            if not any(self._open):
                break
            if self._reserve(job):
                started.append(job)
        too_large = 1 << 62
        for job in opportunistic:
            if job.gpus < too_large:
                if self._share(job):
                    started.append(job)
                else:
                    too_large = job.gpus  # sharing only ever fills GPUs in this loop
        if started:
            now_running = {job.index for job in started}
            for waiting in self._waiting:
                waiting[:] = [job for job in waiting if job.index not in now_running]
            self._running = sorted([*self._running, *started], key=_rank)
        for job in self._running:
            if job.trace.priority != 0:
                job.grouped_iteration_s = self._slowed_iteration_s(job)
        return self._running.copy()

    def _share(self, job: MuriJob) -> bool:
        """The least used GPUs of the cluster, all or nothing, wherever they are."""
        open_gpus = [gpu for gpu, used in enumerate(self._utilisation) if used < _SHAREABLE]
        if len(open_gpus) < job.gpus:
            return False
        taken = sorted(open_gpus, key=self._utilisation.__getitem__)[: job.gpus]
        for gpu in taken:
            self._opportunistic[gpu] = job
            self._utilisation[gpu] += _OPPORTUNISTIC
        self._held[job.index] = taken
        return True

    def _reserve(self, job: MuriJob) -> bool:
        """Take what is free of what the job still lacks; true if it then has all and starts.

        Up to a node's GPUs: on the first node that has them all, else on the node with most of them, where the job
        stays. More: wholly free nodes as they come, then the remainder at once: jobs that held a part of it could wait
        for each other for ever, each for a whole node of which the other has some GPUs.
        """
        held, per_node = self._held[job.index], self._per_node
        whole, rest = divmod(job.gpus - len(held), per_node) if job.gpus > per_node else (0, job.gpus - len(held))
        if whole:
            for node in [node for node, count in enumerate(self._open) if count == per_node][:whole]:
                self._hold(job, list(self._gpus_of(node)))
        if rest and len(held) + rest == job.gpus:
            home = self._home.get(job.index)
            if home is None:
                home = self._collecting_node(rest)
            if home is not None and self._open[home] >= (rest if job.gpus > per_node else 1):
                self._home[job.index] = home
                self._hold(job, [gpu for gpu in self._gpus_of(home) if self._guaranteed[gpu] is None][:rest])
        if len(held) < job.gpus:
            return False
        for gpu in held:
            self._utilisation[gpu] += _STARTED
        return True

    def _collecting_node(self, gpus: int) -> int | None:
        """The first node with that many free GPUs, else the first of those with most; None if nothing is free."""
        best, most = None, 0
        for node, free in enumerate(self._open):
            if free >= gpus:
                return node
            if free > most:
                best, most = node, free
        return best

    def _hold(self, job: MuriJob, gpus: list[int]) -> None:
        for gpu in gpus:
            self._guaranteed[gpu] = job
            self._open[gpu // self._per_node] -= 1
            self._utilisation[gpu] += _GUARANTEED - _STARTED
        self._held[job.index].extend(gpus)

    def _slowed_iteration_s(self, job: MuriJob) -> float:
        """Slowed down by the worst of the guaranteed jobs that run on any of its GPUs."""
        grouped_iteration_s = job.iteration_s
        seen: set[int] = set()
        for gpu in self._held[job.index]:
            other = self._guaranteed[gpu]
            if other is not None and other.index not in seen:
                seen.add(other.index)
                if len(self._held[other.index]) == other.gpus:
                    grouped_iteration_s = max(grouped_iteration_s, _beside_s(job, other))
        return grouped_iteration_s

    def _gpus_of(self, node: int) -> range:
        return range(node * self._per_node, (node + 1) * self._per_node)


def _beside_s(job: MuriJob, guaranteed: MuriJob) -> float:
    """The iteration time that `pairs.Guarantee` takes for it, also where stage times are not known."""
    if job.trace.stages is None or guaranteed.trace.stages is None:
        return 2.0 * job.iteration_s
    return opportunistic_iteration_s(job.profile, guaranteed.profile)


def _rank(job: MuriJob) -> tuple[int, int]:
    return job.trace.priority, job.index
