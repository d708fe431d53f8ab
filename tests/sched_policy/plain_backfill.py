"""Backfill as plainly as it can be said: a list of bookings, looked at again for every question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sched_policy.model import GpuRequest, Job, JobState, Node, NodeGpus
from sched_policy.place import Indexed, Place, Room
from sched_policy.snapshot import Nodes, Snapshot


@dataclass(frozen=True)
class Booking:
    start_s: float
    end_s: float
    node: int
    gpus: int


@dataclass
class PlainBackfill:
    """Starts and promises as {job: [placements]} and {job: (start, placement)}."""

    snapshot: Snapshot
    place: Place
    depth: int
    bookings: list[Booking] = field(default_factory=list)
    starts: list[tuple[int, Indexed]] = field(default_factory=list)
    promises: dict[int, tuple[float, Indexed]] = field(default_factory=dict)

    def run(self) -> PlainBackfill:
        now_s, nodes = self.snapshot.now_s, self.snapshot.nodes
        for job in self.snapshot.running:
            # Whoever should be gone already is there in this very moment.
            end_s = max(job.end_s(now_s), math.nextafter(now_s, math.inf))
            self.book(-math.inf, end_s, tuple((nodes.position[held.node], held.gpus) for held in job.allocation))
        for job in sorted(self.snapshot.jobs, key=lambda job: (job.submit_s, job.job_id)):
            if job.state is JobState.PENDING and job.eligible:
                self._queue(job, now_s)
        return self

    def book(self, start_s: float, end_s: float, placement: Indexed) -> None:
        self.bookings += [Booking(start_s, end_s, node, gpus) for node, gpus in placement]

    def _queue(self, job: Job, now_s: float) -> None:
        left = job.array_tasks
        while left:
            here = self.fits(now_s, job)
            if here is None:
                break
            self.book(now_s, now_s + job.planned_s, here)
            self.starts.append((job.job_id, here))
            left -= 1
        if not left or job.array_tasks > 1 or len(self.promises) >= self.depth:
            return
        for time_s in sorted({now_s} | {b.end_s for b in self.bookings if now_s < b.end_s < math.inf}):
            there = self.fits(time_s, job)
            if there is not None:
                self.book(time_s, time_s + job.planned_s, there)
                self.promises[job.job_id] = (time_s, there)
                return

    def fits(self, time_s: float, job: Job) -> Indexed | None:
        moments = {time_s} | {b.start_s for b in self.bookings if time_s < b.start_s < time_s + job.planned_s}
        least = np.min([self.free(moment, job.partition) for moment in sorted(moments)], axis=0)
        return self.place.place(job.request, self._room(least))

    def free(self, time_s: float, partition: str) -> list[int]:
        nodes = self.snapshot.nodes
        held = [0] * len(nodes)
        for booking in self.bookings:
            if booking.start_s <= time_s < booking.end_s:
                held[booking.node] += booking.gpus
        usable = [
            node.schedulable and (not partition or not node.partitions or partition in node.partitions)
            for node in nodes
        ]
        return [max(0, n.gpus - h) if ok else 0 for n, h, ok in zip(nodes, held, usable, strict=True)]

    def _room(self, free: Sequence[int]) -> Room:
        return Room(np.array(free), np.zeros(len(free), dtype=np.int64), self.snapshot.nodes)


def _left(node: Node, held: int, partition: str) -> int:
    usable = node.schedulable and (not partition or not node.partitions or partition in node.partitions)
    return max(0, node.gpus - held) if usable else 0


def most_held(bookings: Sequence[tuple[float, float, tuple[NodeGpus, ...]]], nodes: Nodes) -> list[int]:
    """The most GPUs held at one time on each node."""
    most = [0] * len(nodes)
    for moment in sorted({start_s for start_s, _, _ in bookings}):
        held = [0] * len(nodes)
        for start_s, end_s, placement in bookings:
            if start_s <= moment < end_s:
                for share in placement:
                    held[nodes.position[share.node]] += share.gpus
        most = [max(a, b) for a, b in zip(most, held, strict=True)]
    return most


def whole(request: GpuRequest, placement: tuple[NodeGpus, ...]) -> bool:
    """Whether a placement is all of a gang, in the shape it asked for."""
    distinct = len({share.node for share in placement}) == len(placement)
    if request.per_node is not None:
        return distinct and [share.gpus for share in placement] == [request.per_node] * request.nodes
    return distinct and len(placement) >= request.nodes and sum(share.gpus for share in placement) == request.total
