"""SRTF and SRSF: at every event the cluster is emptied and filled again by remaining time or service."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from simulation.muri.jobs import MuriJob
from simulation.muri.loop import Merging
from simulation.muri.yarn import Refilling, Yarn
from simulation.traces.trace import ClusterShape

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
