"""Leases: reservations that promise waiting jobs a start, known by their names; how long they kept nodes in vain."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_plugin.client.records import SlurmJob, SlurmReservation

LEASE_PREFIX = "explsched_"
_LEASE_NAME = re.compile(rf"{LEASE_PREFIX}(\d+)")


def lease_name(job_id: int) -> str:
    """The name of the reservation that promises `job_id` its start."""
    return f"{LEASE_PREFIX}{job_id}"


def leased_job(name: str) -> int | None:
    """The job a lease is for; None for a reservation that is not ours."""
    match = _LEASE_NAME.fullmatch(name)
    return int(match[1]) if match else None


LONGEST_S = 600.0
"""A lease that has begun keeps nodes for so long in all, renewed and replaced ones counted together. By then something
that is not modelled keeps its job from them, and it is left to Slurm, whose own backfill holds its place."""


HOLD_S = 60.0
"""A lease stays as it is for so long, even if the plan has moved: every change of a reservation disturbs backfill."""


class LeaseUse:
    """Counts per waiting job; forgets it when it no longer waits.

    A daemon that has just started counts a lease from the lease's beginning: so what the last one did is not lost.
    """

    def __init__(self) -> None:
        self._used_s: dict[int, float] = {}
        self._until_s = float("-inf")
        self._since_s: dict[tuple[str, float, tuple[str, ...]], float] = {}

    def fresh(self, now_s: float) -> frozenset[int]:
        """The jobs whose leases have not been as they are for long, as far as `in_vain` has been told of them."""
        recent = (name for (name, _, _), since_s in self._since_s.items() if now_s - since_s < HOLD_S)
        return frozenset(job_id for name in recent if (job_id := leased_job(name)) is not None)

    def in_vain(
        self, jobs: Iterable[SlurmJob], reservations: Iterable[SlurmReservation], now_s: float
    ) -> frozenset[int]:
        """The waiting jobs that may have no lease any more, given what there is at this moment."""
        waiting = {job.job_id for job in jobs if job.state == "PENDING"}
        self._used_s = {job_id: used_s for job_id, used_s in self._used_s.items() if job_id in waiting}
        leases = [lease for lease in reservations if leased_job(lease.name) is not None]
        shapes = [(lease.name, lease.start_s, lease.nodes) for lease in leases]
        self._since_s = {shape: self._since_s.get(shape, now_s) for shape in shapes}
        for lease in leases:
            job_id = leased_job(lease.name)
            if job_id in waiting and lease.start_s < now_s:
                used_s = min(now_s, lease.end_s) - max(lease.start_s, self._until_s)
                self._used_s[job_id] = self._used_s.get(job_id, 0.0) + max(0.0, used_s)
        self._until_s = now_s
        return frozenset(job_id for job_id, used_s in self._used_s.items() if used_s >= LONGEST_S)
