"""Positions in the queue: the jobs of an owner that may exchange them, and how often each counts.

An old job's position goes to its owner's other jobs only once. If a policy puts a young job on the position of an old
one of the same owner and it starts, Slurm alone would have started the old one; so the owner keeps only the young one's
position. Otherwise the old job's position, which rises with its age, could be taken by one young job after another, and
a user who keeps jobs in the queue that the policy never prefers would come before other users for good. But a job that
would have started from its own position as well has used up nothing: backfill starts small jobs from far back, and
charging for these would leave users who reorder their jobs with fewer GPUs than those who do not.

So the order between users is Slurm's over the remaining positions: those of Slurm's own priorities, less what started
jobs had above their own. Only similar jobs (account, partition, QOS, nice) exchange positions, so only age and size are
ever exchanged; a user never comes earlier than by Slurm's order, and never later than if his jobs had started in order
of submission.

A preempted job waits on the position that it has freed: that of the job which runs instead, or if there is none, the
one from which it had started. Slurm itself would reset its age, and users whose jobs are preempted would have fewer
GPUs than users whose jobs report nothing and are never preempted. Its fair share is that of now, since what its owner
has used meanwhile counts, and so is the site factor that others have set, which Slurm keeps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.model import JobState
from sched_policy.queue_order import assignment
from slurm_plugin.client.changes import Change, RequeueJob, SetSiteFactor
from slurm_plugin.client.records import LEAST_PRIORITY, SlurmJob
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.saved_state import SavedState

FILE = "lent_places.json"
"""Beside the file with our site factors: which positions are used up."""


class _Exchanged(Struct, frozen=True, array_like=True):
    """The position of a pending job: the peer whose own it is, and how much higher that is than the job's own."""

    peer: int
    gain: int


class _Stood(Struct, frozen=True, array_like=True):
    """The priority with which a job has waited, as a job of this kind (`_kind`).

    `varying` is the part of it that counts as it is later: fair share, and the site factor of others. Files of earlier
    releases have none; it then counts as fair share that is unchanged.
    """

    priority: int
    kind: str
    varying: int | None = None


class _Swap(Struct, frozen=True, array_like=True):
    """The priority with which a preempted job waits once the job that needs its GPUs, if there is one, runs.

    It counts while the job is of this `kind`: at a larger --nice the difference to its own would be larger, and its
    owner could take that back. `run` is the job's run that the requeue was to end. `varying` is as in `_Stood`.
    Files of earlier releases have -1, no kind and none.
    """

    beneficiary: int | None
    priority: int
    run: int = -1
    kind: str = ""
    varying: int | None = None


class _Notes(Struct, frozen=True):
    """By job: how much of its position has been used up, and its position if that is not its own.

    `counted` are running jobs whose start has been accounted for. `stood` says how running jobs that may be preempted
    had waited; `swaps` has the jobs that Slurm was told to requeue. Earlier releases
    wrote `began` instead of `stood`.
    """

    used: dict[int, int] = {}
    loans: dict[int, _Exchanged] = {}
    counted: frozenset[int] = frozenset()
    stood: dict[int, _Stood] = {}
    swaps: dict[int, _Swap] = {}
    began: dict[int, int] = {}


class QueuePositions:
    """Who has whose position, and what of each is used up.

    Saved to a file, so that no position is used twice after a restart; starts meanwhile also count. Without the file
    (first start, or a lost disk) each can be used once more.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._file = (
            SavedState(path, _Notes, "queue positions already used for reordering", "may use them once more")
            if path
            else None
        )
        notes = (self._file.read() if self._file else None) or _Notes()
        began = {job_id: _Stood(priority, "") for job_id, priority in notes.began.items()}
        self._notes = self._saved = replace(notes, stood=began | notes.stood, began={})
        self._waited: dict[int, _Stood] = {}
        self._paid: dict[int, _Exchanged] = {}

    @classmethod
    def of_visitor(cls, path: Path) -> Self:
        """For read-only commands: without a file that may be read, no position is used up."""
        return cls(path if os.access(path, os.R_OK) else None)

    def base_factors(
        self, jobs: Sequence[SlurmJob], others_factors: Mapping[int, int], now_s: float, max_wait_s: float
    ) -> dict[int, int]:
        """By pending job, its site factor without our order: the part that others have set, and `used`."""
        used = self.used(jobs, now_s, max_wait_s)
        ids = others_factors.keys() | used.keys()
        return {job_id: others_factors.get(job_id, 0) + used.get(job_id, 0) for job_id in ids}

    def used(self, jobs: Iterable[SlurmJob], now_s: float, max_wait_s: float) -> dict[int, int]:
        """By pending job, how much lower its position is: a negative site factor, positive for a preempted job.

        Overdue jobs are left out.
        """
        return {
            job.job_id: points
            for job in jobs
            if (points := self._notes.used.get(job.job_id, 0))
            if now_s - max(job.submit_s, job.eligible_s or 0.0) <= max_wait_s
        }

    def take_in(self, records: Mapping[int, SlurmJob]) -> None:
        """Account for jobs that have started: what they had above their own positions is taken from their peers'.

        Where the peer itself has started from another job's position, that job is charged for both: so the remaining
        jobs have the positions that Slurm alone would have left them. A job that started below its own position is
        charged nothing more.
        """
        loans, counted = self._notes.loans, self._notes.counted
        waiting = {job_id for job_id, record in records.items() if record.state == "PENDING"}
        left = {job_id: job_id for job_id in loans.keys() - waiting}
        tasks = {  # of arrays, which themselves stay
            record.job_id: record.array_job_id
            for record in records.values()
            if record.array_job_id is not None and record.array_job_id in waiting and record.job_id not in waiting
        }
        left |= {task: array for task, array in tasks.items() if array in loans}
        gone = {entry for job_id, entry in left.items() if job_id not in counted}
        used = {job_id: points for job_id, points in self._notes.used.items() if job_id in waiting}
        takers = {one.peer: job_id for job_id, one in loans.items()}
        self._paid = {}
        for peer in takers.keys() & waiting:
            points, at, started = 0, takers.get(peer), []
            while at in gone:
                points += loans[at].gain
                started.append(at)
                at = None if at in waiting else takers.get(at)
            if points > 0:
                used[peer] = used.get(peer, 0) - points
                for job_id in started:
                    part = min(points, max(0, loans[job_id].gain))
                    self._paid[job_id] = _Exchanged(peer, part)
                    points -= part
        # After a requeue a job may get a position again. A running task started before any position that its array
        # gets from now on.
        begun = counted | left.keys() | tasks.keys()
        counted = frozenset(job_id for job_id in begun if job_id in records and job_id not in waiting)
        settled, swaps = _settled(self._notes.swaps, records)
        stood = self._notes.stood | {job_id: at for job_id, at in self._waited.items() if job_id not in waiting}
        self._notes = _Notes(
            used | settled,
            {job_id: one for job_id, one in loans.items() if job_id not in gone},
            counted,
            {job_id: at for job_id, at in stood.items() if job_id in records and job_id not in waiting},
            swaps,
        )

    @property
    def charged(self) -> frozenset[int]:
        """Jobs whose starts, by the last pass, have used up positions of others."""
        return frozenset(job_id for job_id, one in self._paid.items() if one.gain > 0)

    def give_back(self, needless: Iterable[int]) -> None:
        """Undo the charge of those of `charged` that would have started on their own positions as well."""
        used = dict(self._notes.used)
        for one in (self._paid[job_id] for job_id in needless):
            used[one.peer] += one.gain
        self._notes = replace(self._notes, used=used)

    def note(
        self,
        ranked: Iterable[int],
        seen: Observation,
        changes: Sequence[Change],
        most: int,
        beneficiaries: Mapping[int, int | None],
        unwritten: AbstractSet[int] = frozenset(),
    ) -> None:
        """Record which job gets which position in this pass; `ranked` are the snapshot's jobs in the wanted order.

        A pass writes at most `most` site factors; if it has reached that number, some jobs may keep their old
        positions, as do those whose new site factors are `unwritten`, postponed or refused. `beneficiaries` has the job
        that needs the GPUs, by requeued job. May be called again for the same pass.
        """
        snapshot, records = seen.snapshot, seen.jobs
        row = {job.job_id: i for i, job in enumerate(snapshot.jobs)}
        waiting = [row[job_id] for job_id in ranked if records[job_id].state == "PENDING"]
        ordered = {one.job_id: one.site_factor for one in changes if isinstance(one, SetSiteFactor)}
        is_cut = len(ordered.keys() | unwritten) >= most
        written = {job_id: factor for job_id, factor in ordered.items() if job_id not in unwritten}
        loans = {}
        owners, takers = assignment(np.array(waiting, dtype=np.int64), snapshot)
        for own, given in zip(owners.tolist(), takers.tolist(), strict=True):
            if own == given or not snapshot.jobs[given].scope:
                continue
            peer, job = snapshot.jobs[own], snapshot.jobs[given]
            gain = round(peer.native_priority - job.native_priority)
            if gain > 0 and (is_cut or job.job_id in unwritten):
                factor = written.get(job.job_id, records[job.job_id].site_factor or 0)
                gain = min(gain, max(0, factor - seen.known.base_factors.get(job.job_id, 0)))
            loans[job.job_id] = _Exchanged(peer.job_id, gain)
        served = set(beneficiaries.values())
        stands = {
            job.job_id: _Stood(
                round(job.native_priority) + (loans[job.job_id].gain if job.job_id in loans else 0),
                _kind(records[job.job_id]),
                share + seen.known.others_factors.get(job.job_id, 0),
            )
            for job in snapshot.jobs
            if (job.allows_preemption or job.job_id in served) and job.state is JobState.PENDING
            if (share := records[job.job_id].fair_share) is not None and job.native_priority > LEAST_PRIORITY
        }
        self._waited = stands
        swaps = dict(self._notes.swaps)
        for job_id in (one.job_id for one in changes if isinstance(one, RequeueJob) and one.job_id in records):
            other = beneficiaries.get(job_id)
            cleared = _cleared(records[job_id], records.get(other or 0), self._notes.stood.get(job_id), stands)
            if cleared is not None:
                run = records[job_id].restarts
                swaps[job_id] = _Swap(other, cleared.priority, run, cleared.kind, cleared.varying)
        self._notes = replace(self._notes, loans=loans, swaps=swaps)

    def save(self) -> None:
        """Save the records; call it before the changes are sent to Slurm. A write error stops nothing."""
        if self._file is not None and self._notes != self._saved and self._file.write(self._notes):
            self._saved = self._notes


def _settled(swaps: Mapping[int, _Swap], records: Mapping[int, SlurmJob]) -> tuple[dict[int, int], dict[int, _Swap]]:
    """By requeued job, what it gains now that its beneficiary runs; and the swaps that are still open."""
    settled: dict[int, int] = {}
    left: dict[int, _Swap] = {}
    for job_id, swap in swaps.items():
        job = records.get(job_id)
        other = None if swap.beneficiary is None else records.get(swap.beneficiary)
        if job is None or job.restarts == swap.run:
            continue  # it was not requeued after all (Slurm counts a requeue at once), so it has freed no position
        if job.state == "RUNNING":
            continue  # it started again before it needed a position; its owner may requeue it later
        if swap.beneficiary is not None and (other is None or other.state == "CANCELLED"):
            continue  # the beneficiary does not run, so no position has been freed
        is_free = other is None or other.state != "PENDING"
        if is_free and job.state == "PENDING" and job.fair_share is not None and swap.kind in ("", _kind(job)):
            risen = 0 if swap.varying is None else job.fair_share - swap.varying
            settled[job_id] = max(0, swap.priority + risen - job.priority_with(0))
        else:
            left[job_id] = swap
    return settled, left


def _cleared(
    job: SlurmJob, other: SlurmJob | None, stood: _Stood | None, stands: Mapping[int, _Stood]
) -> _Stood | None:
    """The position that a preempted job has freed; None if there is none for it.

    `other` is the job that runs instead, `stood` the position from which the job had started. If `other` is of another
    kind, its position may be higher than any that the job could have; then the job waits no higher than where it
    started.
    """
    if other is None:
        return stood
    position = stands.get(other.job_id)
    if position is None or (job.user, job.account) != (other.user, other.account):
        return None
    if _kind(job) == _kind(other):
        return position
    if stood is None:
        return None
    # What varies may have changed since the job waited, and is that of later for either position.
    lower = min(position, stood, key=lambda at: at.priority - (at.varying or 0))
    return replace(lower, kind=stood.kind)


def _kind(job: SlurmJob) -> str:
    """A key that is equal for an owner's jobs that may exchange positions, also if one runs and has no priority now.

    Owners may change all of it at any time, and Slurm's priority depends on it.
    """
    return "\x1f".join((job.account, job.partition, job.qos, str(job.nice)))
