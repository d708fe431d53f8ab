"""The availability profile: free GPUs per node as a step function of time."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from sched_policy.model import GpuRequest, Job, Node, NodeGpus
from sched_policy.place.consolidate import Consolidate

Indexed = tuple[tuple[int, int], ...]


class AvailabilityProfile:
    """Free GPUs of every node from `now_s` on, given when the running jobs end at the latest.

    Row i of the table holds from `_times[i]` until `_times[i + 1]`, the last row for ever. This is the one place
    where planned usage is booked; starts and reservations both go through `take`.
    """

    def __init__(self, now_s: float, nodes: Iterable[Node], running: Iterable[Job]) -> None:
        self._nodes = tuple(nodes)
        self._index = {node.name: i for i, node in enumerate(self._nodes)}
        self._usable = np.array([node.schedulable for node in self._nodes], dtype=bool)
        self._times = [now_s]
        self._free = [np.array([node.gpus for node in self._nodes], dtype=np.int64)]
        for job in running:
            held = tuple((self._index[a.node], a.gpus) for a in job.allocation if a.node in self._index)
            end_s = job.end_s(now_s)
            # A job past its end still holds its GPUs now: it cannot be planned over in this very moment.
            self.take(now_s, end_s if end_s > now_s else np.nextafter(now_s, np.inf), held)

    def free_now(self, partition: str = "") -> NDArray[np.int64]:
        """Free GPUs per node at the profile's start, shape (N,); unusable nodes count 0."""
        return self._masked(self._free[0], partition)

    def take(self, start_s: float, end_s: float, placement: Indexed) -> None:
        """Book GPUs from `start_s` to `end_s` (infinity allowed)."""
        first = self._split(start_s)
        last = len(self._times) if end_s == float("inf") else self._split(end_s)
        for row in self._free[first:last]:
            for node, gpus in placement:
                row[node] -= gpus

    def fits_now(self, request: GpuRequest, duration_s: float, partition: str, place: Consolidate) -> Indexed | None:
        """Where the request fits from now on for `duration_s`, or None."""
        return place.place(request, self._least_free(0, self._times[0] + duration_s, partition))

    def earliest(
        self, request: GpuRequest, duration_s: float, partition: str, place: Consolidate
    ) -> tuple[float, Indexed] | None:
        """The first time at which the request fits for `duration_s`, and where; None if it never does."""
        for row, start_s in enumerate(self._times):
            # A cheap test first: most rows fail on what is free at their very start.
            if place.place(request, self._masked(self._free[row], partition)) is None:
                continue
            placement = place.place(request, self._least_free(row, start_s + duration_s, partition))
            if placement is not None:
                return start_s, placement
        return None

    def booked(self, time_s: float) -> int:
        """GPUs of usable nodes that are taken or promised at a time, over all partitions."""
        row = self._free[bisect.bisect_right(self._times, time_s) - 1]
        total = sum(node.gpus for node in self._nodes if node.schedulable)
        return total - int(self._masked(row, "").sum())

    def named(self, placement: Indexed) -> tuple[NodeGpus, ...]:
        """The same placement with node names."""
        return tuple(NodeGpus(self._nodes[node].name, gpus) for node, gpus in placement)

    def indexed(self, placement: Iterable[NodeGpus]) -> Indexed:
        """The same placement with node indices; nodes that are not in the profile are left out."""
        return tuple((self._index[a.node], a.gpus) for a in placement if a.node in self._index)

    def _masked(self, free: NDArray[np.int64], partition: str) -> NDArray[np.int64]:
        mask = self._usable
        if partition:
            mask = mask & np.array([not n.partitions or partition in n.partitions for n in self._nodes], dtype=bool)
        return np.where(mask, np.maximum(free, 0), 0)

    def _least_free(self, first_row: int, end_s: float, partition: str) -> NDArray[np.int64]:
        last = bisect.bisect_left(self._times, end_s, lo=first_row + 1)
        return self._masked(np.min(self._free[first_row:last], axis=0), partition)

    def _split(self, time_s: float) -> int:
        """Make `time_s` a breakpoint; return its row."""
        row = bisect.bisect_left(self._times, time_s)
        if row == len(self._times) or self._times[row] != time_s:
            self._times.insert(row, time_s)
            self._free.insert(row, self._free[row - 1].copy())
        return row
