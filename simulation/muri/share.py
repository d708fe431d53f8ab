"""`explsched-share` under the conventions of Muri's simulator: at every event the groups of most worth."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter

import numpy as np

from sched_policy.group.worth import Packer, SizeBucket, worth_of
from sched_policy.order import DECAY, NEIGHBOURS, effective_left_s, weights_of_neighbours
from sched_policy.snapshot import Bools, Floats
from simulation.muri.interleaved import Interleaved
from simulation.muri.loop import Merging, MuriJob
from simulation.muri.preemptive import Refilling, Yarn, remaining_gpu_s
from simulation.traces.trace import ClusterShape

_KEY = attrgetter("key")


class Lengths:
    """Run times of jobs of one size, in order of submission."""

    def __init__(self) -> None:
        self._jobs = 0
        # A margin of neighbours that are not there at either end.
        self._length_s: Floats = np.zeros(2 * NEIGHBOURS)
        self._there: Floats = np.zeros(2 * NEIGHBOURS)
        self._ended: Bools = np.zeros(2 * NEIGHBOURS, dtype=np.bool_)
        self._weight = weights_of_neighbours(DECAY)

    def add(self) -> int:
        """The next job submitted; its number, counted from 0."""
        if self._jobs + 2 * NEIGHBOURS >= self._length_s.size:
            more = self._length_s.size
            self._length_s = np.append(self._length_s, np.zeros(more))
            self._there = np.append(self._there, np.zeros(more))
            self._ended = np.append(self._ended, np.zeros(more, dtype=np.bool_))
        self._there[self._jobs + NEIGHBOURS] = 1.0
        self._jobs += 1
        return self._jobs - 1

    def ran(self, number: int, seconds: float, *, ended: bool) -> None:
        """A job has run so long, and has ended or not."""
        self._length_s[number + NEIGHBOURS] = seconds
        self._ended[number + NEIGHBOURS] = ended

    def near(self, number: int) -> range:
        """The jobs that learn from this one, itself among them."""
        return range(max(0, number - NEIGHBOURS), min(self._jobs, number + NEIGHBOURS + 1))

    def effective_left_s(self, numbers: Sequence[int]) -> Floats:
        """What is effectively left of these jobs, which have not ended; same shape."""
        at = np.asarray(numbers, dtype=np.int64)[:, None] + np.arange(2 * NEIGHBOURS + 1)
        return effective_left_s(
            self._length_s[at[:, NEIGHBOURS]], self._length_s[at], self._there[at] * self._weight, self._ended[at]
        )


class KnownLengths:
    """What Muri-S knows: the service that each job needs until it ends."""

    own = 1.0

    def arrive(self, job: MuriJob) -> None:
        """A job is submitted."""
        job.key = remaining_gpu_s(job)

    def leave(self, job: MuriJob) -> None:
        """A job has ended."""

    def update(self, running: list[MuriJob]) -> None:
        """Set the keys of jobs, the service they effectively need, after these have run."""
        for job in running:
            job.key = remaining_gpu_s(job)


class LearntLengths:
    """What Muri-L knows: how far each job has come. Lengths are learnt from those that have ended (`order.Gittins`)."""

    own = 3.0
    """Learnt lengths tell less of who is behind whom. Chosen on trace1, trace1_pr and parts of Philly."""

    def __init__(self) -> None:
        self._lengths: dict[int, Lengths] = {}
        self._jobs: dict[int, list[MuriJob]] = {}
        self._number: dict[int, int] = {}
        self._changed: dict[int, set[int]] = {}

    def arrive(self, job: MuriJob) -> None:
        """A job is submitted."""
        lengths = self._lengths.setdefault(job.gpus, Lengths())
        number = self._number[job.index] = lengths.add()
        self._jobs.setdefault(job.gpus, []).append(job)
        self._changed.setdefault(job.gpus, set()).add(number)

    def leave(self, job: MuriJob) -> None:
        """A job has ended: its neighbours learn how long it was."""
        lengths, number = self._lengths[job.gpus], self._number[job.index]
        lengths.ran(number, _total_s(job), ended=True)
        self._changed.setdefault(job.gpus, set()).update(lengths.near(number))

    def update(self, running: list[MuriJob]) -> None:
        """Set the keys of jobs, the service they effectively need, after these have run.

        What is learnt of a job changes when it runs itself and when a neighbour ends; that other neighbours have come
        further is taken in with the next such change.
        """
        for job in running:
            if job.running:
                number = self._number[job.index]
                self._lengths[job.gpus].ran(number, _total_s(job) - job.left * job.iteration_s, ended=False)
                self._changed.setdefault(job.gpus, set()).add(number)
        for gpus, numbers in self._changed.items():
            jobs = self._jobs[gpus]
            there = [number for number in sorted(numbers) if jobs[number].end_s == np.inf]
            if there:
                left_s = self._lengths[gpus].effective_left_s(there)
                for number, seconds in zip(there, left_s.tolist(), strict=True):
                    jobs[number].key = seconds * gpus
        self._changed = {}


def _total_s(job: MuriJob) -> float:
    return max(float(job.trace.iterations), 1.0) * job.iteration_s


class Share(Refilling):
    """At every event: the service that each job needs, as far as it is known, then the groups of most worth."""

    merging = Merging(mixed_rel=1e-9, mixed_s=1e-4)

    def __init__(self, cluster: ClusterShape, lengths: KnownLengths | LearntLengths, max_members: int) -> None:
        super().__init__(cluster)
        self._lengths = lengths
        self._packer = Packer(max_members)
        self._kind: dict[int, int] = {}
        self._active: list[MuriJob] = []

    def arrive(self, job: MuriJob) -> None:
        """To the end of the list."""
        self._lengths.arrive(job)
        self._kind[job.index] = self._packer.kind(job.profile)
        self._active.append(job)

    def leave(self, job: MuriJob) -> None:
        """Out of the list."""
        self._lengths.leave(job)
        self._active.remove(job)

    def schedule(self, now_s: float) -> list[MuriJob]:  # noqa: ARG002  the keys hold all that matters
        """Sort, choose groups, place the largest first."""
        self._lengths.update(self._running)
        self._active.sort(key=_KEY)
        shapes: dict[tuple[int, bool], list[MuriJob]] = {}
        for job in self._active:
            shapes.setdefault((job.gpus, job.may_be_grouped), []).append(job)
        ordered = [job for jobs in shapes.values() for job in jobs]
        kinds = [tuple([self._kind[job.index] for job in jobs]) for jobs in shapes.values()]
        worths = worth_of(
            np.array([job.key for job in ordered]),
            np.array([job.gpus for job in ordered]),
            np.concatenate([np.empty(0), *[self._packer.prices(theirs) for theirs in kinds]]),
            self._cluster.gpus,
            self._lengths.own,
        ).tolist()
        ends = accumulate(map(len, kinds))
        buckets = [
            SizeBucket(gpus, theirs, tuple(worths[end - len(theirs) : end]), may_share=may_be_grouped)
            for (gpus, may_be_grouped), theirs, end in zip(shapes, kinds, ends, strict=True)
        ]
        groups: list[Interleaved] = []
        packed = self._packer.pack(buckets, self._cluster.gpus)
        for jobs, bucket, found in zip(shapes.values(), buckets, packed, strict=True):
            for group in found:
                iteration_s = self._packer.iteration_s([bucket.kinds[position] for position in group])
                members = tuple([jobs[position] for position in group])
                groups.append(Interleaved(members, iteration_s, sum([job.overhead_s for job in members])))
        self._running = self._place(groups)
        return self._running

    def _place(self, groups: list[Interleaved]) -> list[MuriJob]:
        self._yarn = Yarn(self._cluster)
        running: list[MuriJob] = []
        for group in sorted(groups, key=lambda group: -group.gpus):
            if self._yarn.take(group.gpus):
                for job in group.members:
                    job.grouped_iteration_s = group.grouped_iteration_s
                    job.group_overhead_s = group.group_overhead_s
                    running.append(job)
        return running
