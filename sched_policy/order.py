"""Orders: which job comes first. Here arrival (FIFO), shortest remaining service (SRSF), and the Gittins index."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

from explsched.run_times import NEIGHBOURS, effective_left_s, weights_of_neighbours
from sched_policy.model import Job
from sched_policy.plan import Ranking
from sched_policy.snapshot import Floats, Ints, Snapshot


class Order(Protocol):
    """Ranks the jobs of a snapshot. `needs_durations` tells whether it looks at how long jobs will run."""

    needs_durations: ClassVar[bool]

    def rank(self, snapshot: Snapshot) -> Ranking:
        """All jobs, best first, ties broken by (submit time, job id)."""
        ...


class Srsf(Struct, frozen=True):
    """Service is remaining run time times GPUs; a job of unknown length comes last."""

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the remaining GPU-seconds of each job."""
        service_gpu_s = snapshot.columns.left_s * np.maximum(snapshot.columns.gpus, 1)
        return Ranking(snapshot, -service_gpu_s, lambda row: f"{service_gpu_s[row]:.0f} GPU-seconds remain")


class Fifo(Struct, frozen=True):
    """Order of submission."""

    needs_durations: ClassVar[bool] = False

    def rank(self, snapshot: Snapshot) -> Ranking:
        """The earlier a job was submitted, the higher its score (seconds since then)."""
        since_s = snapshot.now_s - snapshot.columns.submit_s
        return Ranking(snapshot, since_s, lambda row: f"submitted {since_s[row]:.0f} s ago")


DECAY = 2.0
"""The weight of the k-th neighbour is exp(-k / DECAY)."""


class Gittins(Struct, frozen=True):
    """Least effective service left first: remaining service where the length is known, else as similar jobs tell.

    A time limit bounds what can be left. Of jobs that have ended those of `Snapshot.ended` tell, by their last report.
    """

    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Minus the effective GPU-seconds left of each job."""
        known = [job.known_left_s(snapshot.now_s) for job in snapshot.jobs]
        left_s = snapshot.columns.left_s
        if None in known:
            is_known = np.array([exact is not None for exact in known])
            left_s = np.where(is_known, left_s, np.minimum(self._learnt_s(snapshot), left_s))
        service_gpu_s = left_s * np.maximum(snapshot.columns.gpus, 1)

        def reason(row: int) -> str:
            how = "about, judged by jobs submitted with it" if known[row] is None else "known"
            return f"{service_gpu_s[row]:.0f} GPU-seconds remain ({how})"

        return Ranking(snapshot, -service_gpu_s, reason)

    @staticmethod
    def _learnt_s(snapshot: Snapshot) -> Floats:
        """Effective seconds left of each job as other jobs of its size tell, shape (J,)."""
        row_of = {job.job_id: row for row, job in enumerate(snapshot.jobs)}
        ended = (job for job in snapshot.ended if job.job_id not in row_of and job.points)
        everyone = [*snapshot.jobs, *ended]
        by_size: dict[int, list[Job]] = {}
        for job in sorted(everyone, key=lambda job: (job.submit_s, job.job_id)):
            by_size.setdefault(job.request.total, []).append(job)
        result = np.zeros(len(snapshot.jobs))
        for jobs in by_size.values():
            rows: Ints = np.array([row_of.get(job.job_id, -1) for job in jobs], dtype=np.int64)
            length_s = [
                job.executed_s(snapshot.now_s) if row >= 0 else job.points[-1].gpu_s / max(job.request.total, 1)
                for job, row in zip(jobs, rows.tolist(), strict=True)
            ]
            asked = np.flatnonzero(rows >= 0)
            # A margin of neighbours that are not there at either end.
            ran_s, ended_, there = (np.pad(one, NEIGHBOURS) for one in (length_s, rows < 0, np.ones(len(jobs))))
            near = asked[:, None] + np.arange(2 * NEIGHBOURS + 1)
            weight = there[near] * weights_of_neighbours(DECAY)
            result[rows[asked]] = effective_left_s(ran_s[asked + NEIGHBOURS], ran_s[near], weight, ended_[near])
        return result
