"""Parts of GPUs that together use them well: Dilu's placement (Lv et al., ASPLOS 2025), for jobs of a resource manager.

A job may start on a GPU on which requests sum up to at most omega, limits to at most gamma, and memory to the GPU's. Of
those the one wins of which least is left, alpha of the score for requests and beta for memory; GPUs in use before
unused ones. `simulation.colocation` replays the rules for instances of every kind, several GPUs and splits included.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from msgspec import Struct

from sched_policy.group.gpus import GpuMap
from sched_policy.model import Job
from sched_policy.place import Place
from sched_policy.plan import Group, Plan, Ranking, Start
from sched_policy.snapshot import Bools, Floats, Snapshot

OMEGA, GAMMA = 1.0, 1.5
"""The sums of requests and of limits that no GPU exceeds."""

ALPHA, BETA = 0.6, 0.4
"""What a GPU's free share, and its free memory, count."""

_ROUNDING = 1e-9
_Value = TypeVar("_Value", float, Floats)


def left_over(requests: _Value, memory: _Value) -> _Value:
    """The score of GPUs, given the shares of them that would be requested and filled: the smallest wins."""
    return ALPHA * (1.0 - requests) + BETA * (1.0 - memory)


class Complementary(Struct, frozen=True):
    """Jobs that ask for a part of one GPU go where they fit best, in the order of the ranking; others stay alone.

    Non-preemptive. What a job does not say of its share of time is taken to be its share of memory.
    """

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Starts of all that fit, and who will be beside whom."""
        gpus, taken = GpuMap(snapshot), _Taken(snapshot)
        starts: list[Start] = []
        groups: list[Group] = []
        for row in ranking.rows[snapshot.columns.waits[ranking.rows]].tolist():
            job = snapshot.jobs[row]
            found = None
            for cost in taken.costs(job, gpus):
                found = found or gpus.find(job.request, job.partition, place, cost)
            if found is None:
                continue
            beside = tuple(snapshot.jobs[other].job_id for other in sorted(taken.rows_on(found[0])))
            gpus.hold(row, found)
            taken.add(row, found)
            if beside:
                groups.append(Group((*beside, job.job_id), "their requests, limits and memory fit on one GPU"))
            starts.append(Start(job.job_id, gpus.named(found), f"shares with {len(beside)} job(s), by complementarity"))
        return Plan(starts=tuple(starts), groups=tuple(groups))


class _Taken:
    """What is requested, allowed and filled of every GPU, shape (N, G), and by whom."""

    def __init__(self, snapshot: Snapshot) -> None:
        shape = (len(snapshot.nodes), int(snapshot.nodes.gpus.max(initial=0)))
        self._snapshot = snapshot
        self._request, self._limit, self._memory = (np.zeros(shape) for _ in range(3))
        self._rows: dict[tuple[int, int], list[int]] = {}
        holding = GpuMap(snapshot)
        for row in snapshot.columns.holds.nonzero()[0].tolist():
            self.add(row, holding.gpus(row))

    def add(self, row: int, gpus: tuple[tuple[int, int], ...]) -> None:
        part = self._snapshot.jobs[row].part
        for gpu in gpus:
            self._request[gpu] += part.request if part else OMEGA
            self._limit[gpu] += part.limit if part else GAMMA
            self._memory[gpu] += part.memory if part else 1.0
            self._rows.setdefault(gpu, []).append(row)

    def rows_on(self, gpu: tuple[int, int]) -> list[int]:
        return self._rows.get(gpu, [])

    def costs(self, job: Job, gpus: GpuMap) -> tuple[Floats, ...]:
        """Scores of the GPUs in use that can take the job, then of the unused ones; infinity where it cannot go."""
        unused: Bools = gpus.jobs == 0
        alone: Floats = np.where(unused, 0.0, np.inf)
        part = job.part
        if part is None or not job.may_share or job.request.total != 1:
            return (alone,)
        fits = self._request + part.request <= OMEGA + _ROUNDING
        fits &= self._limit + part.limit <= GAMMA + _ROUNDING
        fits &= self._memory + part.memory <= 1.0 + _ROUNDING
        score = left_over(self._request + part.request, self._memory + part.memory)
        used = fits & ~unused
        best: Floats = np.where(used & (score <= score[used].min()), score, np.inf) if used.any() else alone
        return (best, alone)
