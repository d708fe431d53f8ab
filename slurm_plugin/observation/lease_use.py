"""How long jobs have had leases, and which may have no more of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from slurm_plugin.client.changes import Change, CreateReservation, SetGres, SetNodeCount
from slurm_plugin.client.records import SlurmJob, SlurmReservation
from slurm_plugin.observation.requirements import Asked
from slurm_plugin.observation.standing import is_in_anothers_lease, lease_name, leased_job

LONGEST_LEASE_S = 600.0
"""Total time for which started leases keep nodes for a job, renewals and replacements included. After that something
that is not modelled must block the job; it is left to Slurm, whose backfill keeps its place."""

HOLD_S = 60.0
"""A lease is not changed for this long, even if the plan changes: every change of a reservation disturbs backfill. Nor
is there another one sooner after it was removed."""


class LeaseUse:
    """The use of leases per pending job; dropped when the job no longer waits.

    A lease that other jobs have been put into counts as used up: with it they would start before everybody's. So does
    one whose job has been changed by its owner: others may be before it on the nodes that it asks for now.

    A daemon that has just started counts a lease from the lease's beginning, so an earlier daemon's use is included.
    """

    def __init__(self) -> None:
        self._used_s: dict[int, float] = {}
        self._until_s = float("-inf")
        self._since_s: dict[tuple[str, float, tuple[str, ...]], float] = {}
        self._gone_s: dict[str, float] = {}
        self._asked: dict[int, Asked] = {}

    def note(self, changes: Sequence[Change], jobs: Mapping[int, SlurmJob]) -> None:
        """Take in what is about to be written: what jobs ask for that get leases, and that we change it."""
        for change in changes:
            if isinstance(change, CreateReservation) and (job_id := leased_job(change.name)) is not None:
                self._asked[job_id] = Asked.of(jobs[job_id])
        for change in changes:  # also for a job that gets its lease in the same pass
            if isinstance(change, SetGres | SetNodeCount):
                self._asked.pop(change.job_id, None)

    def fresh(self, now_s: float) -> frozenset[int]:
        """The jobs whose leases changed or went less than `HOLD_S` ago, by those passed to `in_vain`."""
        changed_s = ((name, since_s) for (name, _, _), since_s in self._since_s.items())
        recent = (name for name, at_s in (*changed_s, *self._gone_s.items()) if now_s - at_s < HOLD_S)
        return frozenset(job_id for name in recent if (job_id := leased_job(name)) is not None)

    def in_vain(
        self, jobs: Iterable[SlurmJob], reservations: Iterable[SlurmReservation], now_s: float
    ) -> frozenset[int]:
        """The pending jobs that may not have a lease any more, given the present leases."""
        jobs = tuple(jobs)
        leases = [lease for lease in reservations if leased_job(lease.name) is not None]
        waiting = {job.job_id for job in jobs if job.state == "PENDING"}
        misused = {leased_job(name) for job in jobs if is_in_anothers_lease(job) for name in job.reservations}
        self._used_s = {job_id: used_s for job_id, used_s in self._used_s.items() if job_id in waiting}
        self._used_s |= dict.fromkeys(waiting & (misused | self._changed(jobs, leases)), LONGEST_LEASE_S)
        shapes = [(lease.name, lease.start_s, lease.nodes) for lease in leases]
        gone = {name for name, *_ in self._since_s} - {lease.name for lease in leases}
        self._gone_s = {name: at_s for name, at_s in self._gone_s.items() if now_s - at_s < HOLD_S}
        self._gone_s |= dict.fromkeys(gone, now_s)
        self._since_s = {shape: self._since_s.get(shape, now_s) for shape in shapes}
        for lease in leases:
            job_id = leased_job(lease.name)
            if job_id in waiting and lease.start_s < now_s:
                used_s = min(now_s, lease.end_s) - max(lease.start_s, self._until_s)
                self._used_s[job_id] = self._used_s.get(job_id, 0.0) + max(0.0, used_s)
        self._until_s = now_s
        return frozenset(job_id for job_id, used_s in self._used_s.items() if used_s >= LONGEST_LEASE_S)

    def _changed(self, jobs: Iterable[SlurmJob], leases: Iterable[SlurmReservation]) -> AbstractSet[int]:
        """The jobs that ask for something else than when they got their leases, or were first seen with them."""
        names = {lease.name for lease in leases}
        asks = {job.job_id: Asked.of(job) for job in jobs if lease_name(job.job_id) in names}
        self._asked = {job_id: self._asked.get(job_id, asked) for job_id, asked in asks.items()}
        return {job_id for job_id, asked in asks.items() if asked != self._asked[job_id]}
