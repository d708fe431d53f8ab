"""Muri-S and Muri-L as Muri's simulator has them: groups of interleaved jobs in place of single jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from msgspec import Struct

from sched_policy.group.interleave import CONTENTION
from sched_policy.group.rounds import Group
from simulation.muri.loop import Merging, MuriJob
from simulation.muri.matching import Bucket, Grouper
from simulation.muri.preemptive import Refilling, Yarn, remaining_gpu_s
from simulation.traces.trace import ClusterShape

_FOUR = 4
_CONTENTION_OF_FOUR = 1.3 / 1.015
"""What four jobs cost without matching, in the published simulator; with matching it is `CONTENTION[3]`."""


class InOrder(Grouper):
    """Each `max_members` jobs that follow each other are a group, as long as there are more jobs than GPUs for them."""

    def iteration_s(self, kinds: Iterable[int]) -> float:
        """As with matching, but four jobs cost less."""
        members = tuple(kinds)
        factor = _CONTENTION_OF_FOUR / CONTENTION[_FOUR - 1] if len(members) == _FOUR else 1.0
        return super().iteration_s(members) * factor

    def groups(self, buckets: Sequence[Bucket], capacity_gpus: int) -> list[list[Group]]:
        """The groups of each bucket, in the order of the buckets; every job is taken to be alone before."""
        surplus = sum(bucket.gpus * len(bucket.kinds) for bucket in buckets) - capacity_gpus
        result: list[list[Group]] = []
        for bucket in buckets:
            groups: list[Group] = []
            for start in range(0, len(bucket.kinds), self.max_members):
                places = tuple(range(start, min(start + self.max_members, len(bucket.kinds))))
                joining = min(len(places) - 1, max(0, -(-surplus // bucket.gpus)))
                surplus -= joining * bucket.gpus
                groups += [places[: joining + 1], *((place,) for place in places[joining + 1 :])]
            result.append(groups)
        return result


_KEY = attrgetter("key")
_GPUS = attrgetter("gpus")


class Sorting(Struct, frozen=True):
    """What jobs are sorted by: `first` before a job's first run, `then` from the event after its first start."""

    first: Callable[[MuriJob], float]
    then: Callable[[MuriJob], float]


def _declared_gpu_s(job: MuriJob) -> float:
    declared_s = job.trace.declared_s
    return (job.trace.run_s if declared_s is None else declared_s) * job.gpus


def _attained_gpu_s(job: MuriJob) -> float:
    return job.executed_s * job.gpus


MURI_S = Sorting(_declared_gpu_s, remaining_gpu_s)
MURI_L = Sorting(_attained_gpu_s, _attained_gpu_s)


class Interleaved(Struct, frozen=True):
    """Jobs that share their GPUs: one iteration of each takes `grouped_iteration_s`; each is charged all overheads."""

    members: tuple[MuriJob, ...]
    grouped_iteration_s: float
    group_overhead_s: int

    @property
    def gpus(self) -> int:
        """GPUs that the members share."""
        return self.members[0].gpus

    @property
    def key(self) -> float:
        """That of its first member in the order of the policy."""
        return min(job.key for job in self.members)


Packing = Callable[[Sequence[Interleaved], ClusterShape], Sequence[Interleaved]]


def keep_all(groups: Sequence[Interleaved], _cluster: ClusterShape) -> Sequence[Interleaved]:
    """Every group as it is: what the published figures were made with."""
    return groups


def autopack(groups: Sequence[Interleaved], cluster: ClusterShape) -> Sequence[Interleaved]:
    """Split groups that are slower than their members in turn, then keep what fits in the order of the policy."""
    split: list[Interleaved] = []
    for group in groups:
        if group.grouped_iteration_s > sum(job.iteration_s for job in group.members):
            split.extend(Interleaved((job,), job.iteration_s, job.overhead_s) for job in group.members)
        else:
            split.append(group)
    split.sort(key=_KEY)
    yarn = Yarn(cluster)
    return [group for group in split if yarn.take(group.gpus)]


class Muri(Refilling):
    """At every event: choose candidates, group them, place the groups, largest first."""

    merging = Merging(mixed_rel=1e-9, mixed_s=1e-4)

    def __init__(
        self,
        cluster: ClusterShape,
        sorting: Sorting,
        packing: Packing,
        grouper: Grouper,
    ) -> None:
        super().__init__(cluster)
        self._sorting = sorting
        self._packing = packing
        self._grouper = grouper
        self._kind: dict[int, int] = {}
        self._active: list[MuriJob] = []

    def arrive(self, job: MuriJob) -> None:
        """To the end of the list."""
        job.key = self._sorting.first(job)
        self._kind[job.index] = self._grouper.kind(job.profile)
        self._active.append(job)

    def leave(self, job: MuriJob) -> None:
        """Out of the list."""
        self._active.remove(job)

    def schedule(self, now_s: float) -> list[MuriJob]:  # noqa: ARG002  the keys hold all that matters
        """Sort, choose candidates, group, place."""
        for job in self._running:
            job.key = self._sorting.then(job)
        self._active.sort(key=_KEY)
        groups = self._packing(self._group(self._candidates()), self._cluster)
        self._running = self._place(groups)
        return self._running

    def _candidates(self) -> list[list[MuriJob]]:
        """Of each number of GPUs, the first jobs: as many groups as fit when the cluster is filled in order.

        Each slot that fits admits the next `max_members` jobs of its size, which need no slot of their own, or one that
        may not be grouped.
        """
        shapes: dict[tuple[int, bool], list[MuriJob]] = {}
        admitted: dict[tuple[int, bool], int] = {}
        yarn = Yarn(self._cluster)
        too_large = 1 << 62
        for job in self._active:
            shape = job.gpus, job.may_be_grouped
            bucket = shapes.setdefault(shape, [])
            bucket.append(job)
            if len(bucket) > admitted.get(shape, 0) and job.gpus < too_large:
                if yarn.take(job.gpus):
                    admitted[shape] = admitted.get(shape, 0) + (self._grouper.max_members if job.may_be_grouped else 1)
                else:
                    too_large = job.gpus
        return [bucket[: admitted[shape]] for shape, bucket in shapes.items() if shape in admitted]

    def _group(self, candidates: Sequence[Sequence[MuriJob]]) -> list[Interleaved]:
        alone = [job for jobs in candidates for job in jobs if not job.may_be_grouped]
        result = [Interleaved((job,), job.iteration_s, job.overhead_s) for job in alone]
        others = [jobs for jobs in candidates if jobs[0].may_be_grouped]
        buckets = [Bucket(jobs[0].gpus, tuple(self._kind[job.index] for job in jobs)) for jobs in others]
        grouped = self._grouper.groups(buckets, self._cluster.gpus - sum(job.gpus for job in alone))
        for jobs, bucket, groups in zip(others, buckets, grouped, strict=True):
            for group in groups:
                grouped_iteration_s = self._grouper.iteration_s([bucket.kinds[place] for place in group])
                members = tuple([jobs[place] for place in group])
                result.append(Interleaved(members, grouped_iteration_s, sum([job.overhead_s for job in members])))
        return result

    def _place(self, groups: Sequence[Interleaved]) -> list[MuriJob]:
        """Largest first; the list of jobs stays in that order until the next event, which matters for ties."""
        group_of = {job.index: group for group in groups for job in group.members}
        self._active.sort(key=_GPUS, reverse=True)
        self._yarn = Yarn(self._cluster)
        placed: dict[int, bool] = {}
        running: list[MuriJob] = []
        for job in self._active:
            group = group_of.get(job.index)
            if group is None:
                continue
            leader = group.members[0].index
            if leader not in placed:
                placed[leader] = self._yarn.take(group.gpus)
            if placed[leader]:
                job.grouped_iteration_s = group.grouped_iteration_s
                job.group_overhead_s = group.group_overhead_s
                running.append(job)
        return running
