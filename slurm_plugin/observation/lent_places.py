"""Places in the queue that have been used up: a job's age is lent to its owner's other jobs once, not again and again.

Where a policy puts a young job on the place of an old one of the same owner, and it starts, Slurm alone
would have started the old one: the owner is left with the young one's place. Without this the old job's place, which
rises with its age, would be taken by one young job after the other: whoever keeps jobs in the queue that the policy
never prefers would come before other users for good.

So the order between users is Slurm's over the places that are left: those of Slurm's own priorities, less what started
jobs had above their own. Only jobs that are alike (account, partition, QOS, nice) lend to each other, so nothing but
age and size is ever lent; nobody stands higher than Slurm would put him, and no lower than if his jobs had started in
order of submission.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from explsched.atomic_file import atomic_write
from explsched.log import event
from sched_policy.queue_order import assignment
from slurm_plugin.client.changes import Change, SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.observe import Observation

_LOG = logging.getLogger("explsched.lent_places")


class _Loan(Struct, frozen=True, array_like=True):
    """Where a waiting job stands: on the place of which of its peers, and how much higher than on its own."""

    lender: int
    gain: int


class _Notes(Struct, frozen=True):
    """By job: how much of its place has been used up, and where it stands if that is not its own place.

    `counted` are jobs that run, and whose start has been taken in.
    """

    used: dict[int, int] = {}
    loans: dict[int, _Loan] = {}
    counted: frozenset[int] = frozenset()


class LentPlaces:
    """Kept in a file as well, so that a restart lends no place twice; what starts meanwhile counts, too.

    Without the file (the first start, or a disk that was lost) each place can be lent once more.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._notes = self._saved = _read(path) if path else _Notes()
        self._is_writable = True

    def used(self, jobs: Iterable[SlurmJob], now_s: float, max_wait_s: float) -> dict[int, int]:
        """By waiting job, how much lower its place is: a negative site factor. None of one that waited too long."""
        return {
            job.job_id: points
            for job in jobs
            if (points := self._notes.used.get(job.job_id, 0))
            if now_s - max(job.submit_s, job.eligible_s or 0.0) <= max_wait_s
        }

    def take_in(self, records: Mapping[int, SlurmJob]) -> None:
        """See which jobs wait no more: what they had above their own places is missing from those of their lenders.

        Where a lender itself has left from somebody's place, that one pays for both: so those that are left have the
        places that Slurm alone would have left them. Who started on a place below his own has used up no more.
        """
        loans, counted = self._notes.loans, self._notes.counted
        waiting = {job_id for job_id, record in records.items() if record.state == "PENDING"}
        left = {job_id: job_id for job_id in loans.keys() - waiting}
        for record in records.values():  # tasks that have left an array, which itself stays
            if record.array_job_id in loans and record.job_id not in waiting:
                left[record.job_id] = record.array_job_id
        gone = {loan for job_id, loan in left.items() if job_id not in counted}
        used = {job_id: points for job_id, points in self._notes.used.items() if job_id in waiting}
        borrower = {loan.lender: job_id for job_id, loan in loans.items()}
        for lender in borrower.keys() & waiting:
            points, at = 0, borrower.get(lender)
            while at in gone:
                points += loans[at].gain
                at = None if at in waiting else borrower.get(at)
            if points > 0:
                used[lender] = used.get(lender, 0) - points
        # One that waits again, after a requeue, may stand on a lent place again.
        counted = frozenset(job_id for job_id in counted | left.keys() if job_id in records and job_id not in waiting)
        self._notes = _Notes(used, {job_id: loan for job_id, loan in loans.items() if job_id not in gone}, counted)

    def note(self, ranked: Iterable[int], seen: Observation, changes: Iterable[Change], most: int) -> None:
        """Write down who is given whose place in this pass; `ranked` are the snapshot's jobs in the wanted order.

        A pass writes `most` site factors: where it has written as many, some may have only what they had before.
        """
        snapshot, records = seen.snapshot, seen.jobs
        row = {job.job_id: i for i, job in enumerate(snapshot.jobs)}
        waiting = [row[job_id] for job_id in ranked if records[job_id].state == "PENDING"]
        written = {one.job_id: one.site_factor for one in changes if isinstance(one, SetSiteFactor)}
        loans = {}
        owners, borrowers = assignment(np.array(waiting, dtype=np.int64), snapshot)
        for own, given in zip(owners.tolist(), borrowers.tolist(), strict=True):
            if own == given or not snapshot.jobs[given].scope:
                continue
            lender, job = snapshot.jobs[own], snapshot.jobs[given]
            gain = round(lender.native_priority - job.native_priority)
            if gain > 0 and len(written) >= most:
                factor = written.get(job.job_id, records[job.job_id].site_factor or 0)
                gain = min(gain, max(0, factor - seen.others_factors.get(job.job_id, 0)))
            loans[job.job_id] = _Loan(lender.job_id, gain)
        self._notes = _Notes(self._notes.used, loans, self._notes.counted)

    def save(self) -> None:
        """Write the notes down, before Slurm is asked for what they say. Without a file all goes on."""
        if self._path is None or self._notes == self._saved:
            return
        text = msgspec.json.encode(self._notes)
        try:
            atomic_write(self._path, lambda file: file.write(text))
        except OSError as error:
            if self._is_writable:
                why = f"{self._path}: {error.strerror}"
                event(_LOG, logging.WARNING, "lent places not noted; a restarted daemon lends them again", why=why)
            self._is_writable = False
        else:
            self._saved, self._is_writable = self._notes, True


def _read(path: Path) -> _Notes:
    """The notes of an earlier daemon; none where there is no file that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Notes)
    except FileNotFoundError:
        return _Notes()
    except (OSError, msgspec.DecodeError) as error:
        event(_LOG, logging.WARNING, "notes of lent places ignored", why=f"{path}: {error}")
        return _Notes()
