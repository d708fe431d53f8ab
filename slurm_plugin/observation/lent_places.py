"""Places in the queue that have been used up: a job's age is lent to its owner's other jobs once, not again and again.

Where a policy puts a young job on the place of an old one of the same owner, and it starts, Slurm alone
would have started the old one: the owner is left with the young one's place. Without this the old job's place, which
rises with its age, would be taken by one young job after the other: whoever keeps jobs in the queue that the policy
never prefers would come before other users for good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from sched_policy.model import Job, JobState
from slurm_plugin.client.changes import Change, SetSiteFactor
from slurm_plugin.client.records import SlurmJob


class _Seat(Struct, frozen=True):
    """Where a waiting job stood: among whom, and how much higher than its own place."""

    group: tuple[str, str]
    gain: int


class LentPlaces:
    """Kept in memory: after a restart of the daemon each place can be lent once more."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._seats: dict[int, _Seat] = {}
        self._counted: set[int] = set()

    def used(self, jobs: Iterable[SlurmJob], now_s: float, max_wait_s: float) -> dict[int, int]:
        """By waiting job, how much lower its place is: a negative site factor. None of one that waited too long."""
        return {
            job.job_id: points
            for job in jobs
            if (points := self._used.get(job.job_id, 0))
            if now_s - max(job.submit_s, job.eligible_s or 0.0) <= max_wait_s
        }

    def note(
        self,
        jobs: Iterable[Job],
        records: Mapping[int, SlurmJob],
        not_ours: Mapping[int, int],
        changes: Iterable[Change],
    ) -> None:
        """Take in what a pass sees, and what it is about to change.

        `not_ours` are the parts of site factors that are somebody else's, or used up.
        """
        waiting = {job.job_id: job for job in jobs if job.scope and job.state is JobState.PENDING}
        factors = {job_id: records[job_id].site_factor or 0 for job_id in waiting}
        gains = {job_id: factor - not_ours.get(job_id, 0) for job_id, factor in factors.items()}
        debts = self._debts(waiting.keys(), records)
        self._used = {job_id: points for job_id, points in self._used.items() if job_id in waiting}
        for job_id in sorted(gains, key=lambda job_id: gains[job_id]):
            group = waiting[job_id].scope, waiting[job_id].peers
            points = min(debts.get(group, 0), -gains[job_id])
            if points > 0:
                debts[group] -= points
                self._used[job_id] = self._used.get(job_id, 0) - points
                gains[job_id] += points
        written = {one.job_id: one.site_factor for one in changes if isinstance(one, SetSiteFactor)}
        for job_id in gains.keys() & written.keys():
            gains[job_id] += written[job_id] - factors[job_id]
        self._seats = {job_id: _Seat((job.scope, job.peers), gains[job_id]) for job_id, job in waiting.items()}

    def _debts(self, waiting: Iterable[int], records: Mapping[int, SlurmJob]) -> dict[tuple[str, str], int]:
        """What jobs that wait no more, and tasks that have left their arrays, had above their own places."""
        still = frozenset(waiting)
        left = {job_id: job_id for job_id in self._seats.keys() - still}
        for record in records.values():
            array = record.array_job_id
            if array in self._seats and record.job_id not in still and record.state != "PENDING":
                left[record.job_id] = array
        debts: defaultdict[tuple[str, str], int] = defaultdict(int)
        for job_id, seat in left.items():
            if job_id not in self._counted:
                debts[self._seats[seat].group] += max(0, self._seats[seat].gain)
        self._counted = {job_id for job_id in self._counted | left.keys() if job_id in records}
        return debts
