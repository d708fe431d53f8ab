"""The daemon's memory between passes (`Memory`): hidden reasons, jobs preempted for in vain, rests, use of leases.

Also `SavedState`, for the little that must survive a daemon and is not in Slurm itself.

None of it is required: a daemon that has just started, or a command, works without it. If jobs were preempted for a
job that did not start, something that is not modelled blocks it; no job is preempted for it again until it has started
by itself. When and for which job another was requeued is recorded in its AdminComment, so this survives the daemon for
as long as the preempted job exists.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from explsched.atomic_file import replace_file_durably
from explsched.log import event
from explsched.preemption_record import PreemptionRecord
from sched_policy.snapshot import EndedRun, Snapshot
from slurm_plugin.client.changes import (
    Change,
    ChangeFailure,
    CreateReservation,
    DelayStart,
    JobChange,
    NotNow,
    SetGres,
    SetNodeCount,
    SetSiteFactor,
    StartAtOnce,
    Unanswered,
)
from slurm_plugin.client.records import SlurmJob, SlurmReservation
from slurm_plugin.observation.pauses import Pauses
from slurm_plugin.observation.requeues import LastRuns
from slurm_plugin.observation.requirements import Asked
from slurm_plugin.observation.standing import (
    exceeds_limit,
    is_in_anothers_lease,
    is_untested,
    lease_name,
    leased_job,
    waits_for_requeue_delay,
)
from slurm_plugin.observation.trainings import GrantedSteps, RunsWithoutReports, SeenTraining, SweepTrainings

_LOG = logging.getLogger("explsched.notes")
_Notes = TypeVar("_Notes")


class SavedState(Generic[_Notes]):
    """State that a restarted daemon reads from a file. An unusable file is logged and ignored.

    `about` names the state, `if_lost` says what a daemon does without it.
    """

    def __init__(self, path: Path, kind: type[_Notes], about: str, if_lost: str) -> None:
        self.path = path
        self._kind = kind
        self._about = about
        self._if_lost = if_lost
        self._is_writable = True

    def read(self) -> _Notes | None:
        """The state that an earlier daemon saved; None if the file is missing or unreadable."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            event(_LOG, logging.WARNING, f"saved {self._about} ignored", why=f"{self.path}: {error}")
            return None

    def write(self, notes: _Notes, *, mode: int | None = None) -> bool:
        """Replace the state; it is on disk when this returns True. A failure is logged once, until it works."""
        try:
            replace_file_durably(self.path, msgspec.json.encode(notes), mode=mode)
        except OSError as error:
            if self._is_writable:
                what = f"{self._about} not saved; a restarted daemon {self._if_lost}"
                event(_LOG, logging.WARNING, what, why=f"{self.path}: {error.strerror}")
            self._is_writable = False
        else:
            self._is_writable = True
        return self._is_writable


class Remembered(Struct, frozen=True):
    """What a daemon knows from earlier passes; all of it is optional.

    Attributes:
        asked_to_leave: jobs that have been asked to save and leave.
        requeue_refused: running jobs that Slurm has refused to requeue.
        served_s: when another job was last requeued for a job, by that job's id.
        leased_in_vain: waiting jobs that did not start in their leases and get no more.
        unreported_s: run time of trainings that ended without a curve, by user.
        trainings: earlier trainings of sweeps, by job id.
        others_factors: the part of waiting jobs' site factors that others have set.
        fresh_leases: jobs whose leases changed, or were removed, too recently to change again.
        refused_leases: jobs that get no lease for now, since Slurm has refused them one, and its words.
        ended_runs: run times of ended jobs.
        rests: jobs whose start the daemon has delayed (that may be over), with the begin time that they had before.
        lasting_runs: (job, run) of runs after which a requeued job may return at once.
        granted_steps: the step at which each training's sweep last let it continue.
        limited_gpus: jobs that a limit has kept from starting, with the smallest size at which it did.
        refused_sizes: jobs whose size Slurm has refused to change.

    """

    asked_to_leave: frozenset[int] = frozenset()
    requeue_refused: frozenset[int] = frozenset()
    served_s: Mapping[int, float] = field(default_factory=dict)
    leased_in_vain: frozenset[int] = frozenset()
    unreported_s: Mapping[str, float] = field(default_factory=dict)
    trainings: Mapping[int, SeenTraining] = field(default_factory=dict)
    others_factors: Mapping[int, int] = field(default_factory=dict)
    fresh_leases: frozenset[int] = frozenset()
    refused_leases: Mapping[int, str] = field(default_factory=dict)
    ended_runs: tuple[EndedRun, ...] = ()
    rests: Mapping[int, float] = field(default_factory=dict)
    lasting_runs: frozenset[tuple[int, int]] = frozenset()
    granted_steps: Mapping[int, float] = field(default_factory=dict)
    limited_gpus: Mapping[int, int] = field(default_factory=dict)
    refused_sizes: frozenset[int] = frozenset()


def served_in_vain(
    jobs: Mapping[int, SlurmJob], served_s: Mapping[int, float], preempted: Iterable[PreemptionRecord]
) -> frozenset[int]:
    """Waiting jobs that have not started since others were last requeued for them.

    `served_s` is what the daemon remembers (see `Remembered`), `preempted` the records in AdminComments.
    """
    latest_s = dict(served_s)
    for record in preempted:
        for one in record.latest:
            if one.beneficiary is not None:
                latest_s[one.beneficiary] = max(one.time_s, latest_s.get(one.beneficiary, one.time_s))
    if not latest_s:
        return frozenset()
    task_start_s: dict[int, float] = {}  # latest start of a task by array: the array's own record remains pending
    for job in jobs.values():
        if job.array_job_id in latest_s and job.state != "PENDING" and job.start_s is not None:
            task_start_s[job.array_job_id] = max(job.start_s, task_start_s.get(job.array_job_id, 0.0))
    return frozenset(
        job_id
        for job_id, time_s in latest_s.items()
        if job_id in jobs and _waits_since(jobs[job_id], time_s) and task_start_s.get(job_id, 0.0) < time_s
    )


def _waits_since(job: SlurmJob, time_s: float) -> bool:
    """Whether the job is pending and has not run since that time (Slurm sets the submission time at a requeue)."""
    has_run = job.restarts > 0 and job.submit_s > time_s
    return job.state == "PENDING" and not has_run


REASON_HOLDS_S = 60.0
"""How long a reason is used after Slurm last gave it: within a minute (the default sched_interval) Slurm tests the job
again and gives a new one."""


class _LastReason(NamedTuple):
    """A job as it was when Slurm last gave a reason for its waiting."""

    record: SlurmJob
    time_s: float
    hidden: bool = False


class HiddenReasons:
    """Reasons of waiting jobs that only our own write of a site factor has hidden.

    At each write Slurm sets the reason to None until it tests the job again. Until then the old reason still holds,
    unless the job has been changed or `REASON_HOLDS_S` have passed.
    """

    def __init__(self) -> None:
        self._last: dict[int, _LastReason] = {}

    def restored(self, jobs: Iterable[SlurmJob], now_s: float) -> tuple[SlurmJob, ...]:
        """The jobs, with the reasons that Slurm gave before our writes."""
        known: dict[int, _LastReason] = {}
        found: list[SlurmJob] = []
        for job in jobs:
            record = job
            if job.state == "PENDING":
                if not is_untested(job):
                    known[job.job_id] = _LastReason(job, now_s)
                elif self._is_hidden(job, now_s):
                    last = known[job.job_id] = self._last[job.job_id]
                    record = replace(job, reason=last.record.reason)
            found.append(record)
        self._last = known
        return tuple(found)

    def note(self, changes: Iterable[Change]) -> None:
        """Take in what is about to be written."""
        for change in changes:
            if isinstance(change, SetSiteFactor) and change.job_id in self._last:
                self._last[change.job_id] = self._last[change.job_id]._replace(hidden=True)

    def _is_hidden(self, job: SlurmJob, now_s: float) -> bool:
        last = self._last.get(job.job_id)
        if last is None or not last.hidden or now_s - last.time_s > REASON_HOLDS_S:
            return False
        return job.priority > 0 and _asks(job) == _asks(last.record)


def _asks(job: SlurmJob) -> SlurmJob:
    """The job's record without the fields that change with its place in the queue and with time."""
    return replace(job, reason="", priority=0, site_factor=None, natives=(), fair_share=None, start_s=None, age_lag=0)


class _Rest(NamedTuple):
    """Until when a job has been delayed, and the begin time that it had before; 0 if none but Slurm's own delay.

    `lifted_s` is when the delay was lifted; then Slurm's begin time becomes the time at which it did so.
    """

    until_s: float
    own_begin_s: float
    lifted_s: float = math.inf

    def explains(self, begin_s: float, now_s: float) -> bool:
        """Whether a job has this begin time because of the rest."""
        return begin_s == self.until_s or self.lifted_s <= begin_s <= now_s


class Rests:
    """Jobs whose start the daemon, and not their owner, has delayed: only such a delay may be lifted early.

    They stay while they have the begin time that came of it, so that the delay counts as waiting.

    In memory: a delay by an earlier daemon that was killed counts as the job's own begin time.
    """

    def __init__(self) -> None:
        self._by_job: dict[int, _Rest] = {}

    def own_begins_s(self, jobs: Iterable[SlurmJob], now_s: float) -> Mapping[int, float]:
        """The former begin time of each job whose present one was set by the daemon."""
        begins_s = {job.job_id: job.eligible_s for job in jobs if job.job_id in self._by_job}
        self._by_job = {
            job_id: _Rest(begin_s, self._by_job[job_id].own_begin_s)
            for job_id, begin_s in begins_s.items()
            if begin_s is not None and self._by_job[job_id].explains(begin_s, now_s)
        }
        return {job_id: rest.own_begin_s for job_id, rest in self._by_job.items()}

    def note(self, changes: Iterable[Change], jobs: Mapping[int, SlurmJob], now_s: float) -> None:
        """Take in what is about to be written."""
        for change in changes:
            if isinstance(change, DelayStart) and (job := jobs.get(change.job_id)) is not None:
                own_s = 0.0 if waits_for_requeue_delay(job, now_s) else job.eligible_s or 0.0
                known = self._by_job.get(job.job_id, _Rest(0.0, own_s))
                self._by_job[job.job_id] = known._replace(until_s=change.until_s)
            elif isinstance(change, StartAtOnce) and (rest := self._by_job.get(change.job_id)) is not None:
                self._by_job[change.job_id] = rest._replace(lifted_s=math.floor(now_s))


LIMIT_HOLDS_S = 3600.0
"""How long a job is not enlarged again to a size for which a limit left no room: others may go on to use it up."""

_STARTED = "no longer pending"
"""What Slurm says of a job that it has started since we looked."""


class SizeLimits:
    """Sizes at which limits of associations, QOS and partitions have kept jobs from starting, and refused sizes."""

    def __init__(self) -> None:
        self._by_job: dict[int, tuple[int, float]] = {}  # GPUs, and when Slurm last said so
        self._refused_s: dict[int, float] = {}

    def gpus(self, jobs: Iterable[SlurmJob], now_s: float) -> Mapping[int, int]:
        """The smallest such size of each job."""
        known = self._by_job
        self._by_job = {}
        for job in jobs:
            gpus, told_s = known.get(job.job_id, (job.gpus, -math.inf))
            if exceeds_limit(job):
                gpus, told_s = min(gpus, job.gpus), now_s
            if now_s - told_s <= LIMIT_HOLDS_S:
                self._by_job[job.job_id] = gpus, told_s
        return {job_id: gpus for job_id, (gpus, _) in self._by_job.items()}

    def note(self, failures: Iterable[ChangeFailure], now_s: float) -> None:
        """Take in which new sizes Slurm has refused, but for jobs that it has started meanwhile."""
        for failure in failures:
            change = failure.change
            is_answer = not isinstance(failure, NotNow) and _STARTED not in failure.message
            if is_answer and isinstance(change, SetGres | SetNodeCount):
                self._refused_s[change.job_id] = now_s

    def refused(self, jobs: Iterable[SlurmJob], now_s: float) -> frozenset[int]:
        """The jobs whose size Slurm has refused to change in the last hour."""
        present = {job.job_id for job in jobs}
        told = self._refused_s.items()
        self._refused_s = {one: at_s for one, at_s in told if one in present and now_s - at_s <= LIMIT_HOLDS_S}
        return frozenset(self._refused_s)


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


class Memory:
    """What the daemon keeps in memory alone, brought up to date by each pass in the order of the methods here."""

    def __init__(self) -> None:
        self._hidden_reasons = HiddenReasons()
        self._lease_use = LeaseUse()
        self._rests = Rests()
        self._last_runs = LastRuns()
        self._size_limits = SizeLimits()
        self._refused_leases = Pauses()
        self._closed = Pauses()
        self._runs_without_reports = RunsWithoutReports()
        self._trainings = SweepTrainings()
        self._granted_steps = GrantedSteps()

    def adopt(self, ended: Mapping[int, SeenTraining]) -> None:
        """Take in trainings that ended before this daemon began."""
        self._trainings.adopt(ended)

    def with_reasons(self, jobs: Iterable[SlurmJob], now_s: float) -> tuple[SlurmJob, ...]:
        """The jobs, with the reasons that our own writes have hidden."""
        return self._hidden_reasons.restored(jobs, now_s)

    def remembered(
        self, jobs: Sequence[SlurmJob], reservations: Iterable[SlurmReservation], now_s: float
    ) -> Remembered:
        """What is known from earlier passes of jobs and reservations as they are now."""
        self._last_runs.note(jobs, now_s)
        return Remembered(
            leased_in_vain=self._lease_use.in_vain(jobs, reservations, now_s),
            unreported_s=self._runs_without_reports.by_user,
            trainings=self._trainings.seen,
            fresh_leases=self._lease_use.fresh(now_s),
            refused_leases=self._refused_leases.at(now_s),
            rests=self.own_begins_s(jobs, now_s),
            lasting_runs=self._last_runs.lasting,
            granted_steps=self._granted_steps.of(jobs),
            limited_gpus=self._size_limits.gpus(jobs, now_s),
            refused_sizes=self._size_limits.refused(jobs, now_s),
        )

    def own_begins_s(self, jobs: Iterable[SlurmJob], now_s: float) -> Mapping[int, float]:
        """The own begin time of each job whose start the daemon has delayed."""
        return self._rests.own_begins_s(jobs, now_s)

    def note_jobs(self, snapshot: Snapshot, uids: Mapping[int, int]) -> None:
        """Take in what a pass has observed."""
        self._runs_without_reports.note(snapshot.jobs, snapshot.now_s)
        self._trainings.note(snapshot.jobs, snapshot.ended, uids, snapshot.now_s)

    def note_failures(self, failures: Iterable[ChangeFailure], now_s: float) -> None:
        """Take in which changes Slurm has refused."""
        answers = [failure for failure in failures if not isinstance(failure, Unanswered)]
        for failure in answers:
            change = failure.change
            if isinstance(change, CreateReservation) and (job_id := leased_job(change.name)) is not None:
                self._refused_leases.begin(job_id, failure.message, now_s)
            elif isinstance(failure, NotNow) and isinstance(change, JobChange):
                self._closed.begin(change.job_id, failure.message, now_s)
        self._size_limits.note(answers, now_s)

    def closed(self, now_s: float) -> frozenset[int]:
        """The jobs that Slurm does not change for now: each try would take it 5 s."""
        return frozenset(self._closed.at(now_s))

    def note_plan(self, snapshot: Snapshot, held_back: Container[int]) -> None:
        """Take in which trainings their sweeps hold back."""
        self._granted_steps.note(snapshot.jobs, held_back)

    def note_changes(self, changes: Sequence[Change], jobs: Mapping[int, SlurmJob], now_s: float) -> None:
        """Take in what is about to be written."""
        self._hidden_reasons.note(changes)
        self._lease_use.note(changes, jobs)
        self._rests.note(changes, jobs, now_s)
