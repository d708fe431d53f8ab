"""The daemon's memory between passes (`Memory`), and what of it a pass is given (`Remembered`).

None of it is required: a daemon that has just started, or a command, works without it. If jobs were preempted for a
job that did not start, something that is not modelled blocks it; no job is preempted for it again until it has started
by itself. When and for which job another was requeued is recorded in its AdminComment, so this survives the daemon for
as long as the preempted job exists.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from explsched.preemption_record import PreemptionRecord
from sched_policy.snapshot import EndedRun, Snapshot
from slurm_plugin.client.changes import Change, ChangeFailure, CreateReservation, JobChange, NotNow, Unanswered
from slurm_plugin.client.records import SlurmJob, SlurmReservation
from slurm_plugin.client.wait_reason import LIMITS
from slurm_plugin.observation.hidden_reasons import HiddenReasons
from slurm_plugin.observation.lease_use import LeaseUse
from slurm_plugin.observation.refusals import Refusals
from slurm_plugin.observation.requeue_delay import LastRuns
from slurm_plugin.observation.size_limits import LIMIT_HOLDS_S, SizeLimits
from slurm_plugin.observation.standing import leased_job, limits_of
from slurm_plugin.observation.trainings import GrantedSteps, RunsWithoutReports, SeenTraining, SweepTrainings

_SCRONTAB = "Cannot modify scrontab jobs"
"""Slurm's words for each update of such a job, also by root."""


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
        base_factors: waiting jobs' site factors without our order: the part that others have set, less what of the
            job's position is used up.
        throttled_factors: the site factors that the daemon has given to arrays of which no further task may run now.
        tested_anew: of arrays the number of waiting tasks with which the daemon has last let Slurm test them again.
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
    base_factors: Mapping[int, int] = field(default_factory=dict)
    throttled_factors: Mapping[int, int] = field(default_factory=dict)
    tested_anew: Mapping[int, int] = field(default_factory=dict)
    fresh_leases: frozenset[int] = frozenset()
    refused_leases: Mapping[int, str] = field(default_factory=dict)
    ended_runs: tuple[EndedRun, ...] = ()
    rests: Mapping[int, float] = field(default_factory=dict)
    lasting_runs: frozenset[tuple[int, int]] = frozenset()
    granted_steps: Mapping[int, float] = field(default_factory=dict)
    limited_gpus: Mapping[int, int] = field(default_factory=dict)
    refused_sizes: frozenset[int] = frozenset()


def served_in_vain(
    jobs: Mapping[int, SlurmJob],
    served_s: Mapping[int, float],
    preempted: Iterable[PreemptionRecord],
    since_s: float = -math.inf,
) -> frozenset[int]:
    """Waiting jobs that have not started since others were last requeued for them, if that was after `since_s`.

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
        if time_s > since_s and job_id in jobs and _waits_since(jobs[job_id], time_s)
        if task_start_s.get(job_id, 0.0) < time_s
    )


def served_first(
    jobs: Mapping[int, SlurmJob], known: Remembered, preempted: Iterable[PreemptionRecord], now_s: float
) -> frozenset[tuple[str, str, str]]:
    """The `limits_of` jobs that a limit keeps waiting though others were requeued for them, within the hour.

    It would keep their like waiting, too: Slurm does not say so while no GPU is free.
    """
    served = served_in_vain(jobs, known.served_s, preempted, now_s - LIMIT_HOLDS_S)
    return frozenset(limits_of(jobs[job_id]) for job_id in served if jobs[job_id].waits_for in LIMITS)


def _waits_since(job: SlurmJob, time_s: float) -> bool:
    """Whether the job is pending and has not run since that time (Slurm sets the submission time at a requeue)."""
    has_run = job.restarts > 0 and job.submit_s > time_s
    return job.state == "PENDING" and not has_run


class Memory:
    """What the daemon keeps in memory alone, brought up to date by each pass in the order of the methods here."""

    def __init__(self) -> None:
        self._hidden_reasons = HiddenReasons()
        self._lease_use = LeaseUse()
        self._last_runs = LastRuns()
        self._size_limits = SizeLimits()
        self._refused_leases = Refusals()
        self._closed = Refusals()
        self._scrontab: set[int] = set()
        self._runs_without_reports = RunsWithoutReports()
        self._trainings = SweepTrainings()
        self._granted_steps = GrantedSteps()

    def adopt(self, ended: Mapping[int, SeenTraining]) -> None:
        """Take in trainings that ended before this daemon began."""
        self._trainings.adopt(ended)

    def completed(self, jobs: Iterable[SlurmJob], now_s: float) -> tuple[SlurmJob, ...]:
        """The jobs, with the reasons that our own writes have hidden, and those of scrontab marked, as far as known."""
        found = self._hidden_reasons.restored(jobs, now_s)
        if not self._scrontab:
            return found
        self._scrontab &= {job.job_id for job in found}
        cron = self._scrontab
        return tuple(replace(job, is_scrontab=True, site_factor=None) if job.job_id in cron else job for job in found)

    def remembered(
        self, jobs: Sequence[SlurmJob], reservations: Iterable[SlurmReservation], now_s: float
    ) -> Remembered:
        """What is known from earlier passes of jobs and reservations as they are now."""
        self._last_runs.note(jobs, now_s)
        return Remembered(
            leased_in_vain=self._lease_use.in_vain(jobs, reservations, now_s),
            unreported_s=self._runs_without_reports.by_user,
            trainings=self._trainings.seen,
            tested_anew=dict(self._hidden_reasons.tested_anew),
            fresh_leases=self._lease_use.fresh(now_s),
            refused_leases=self._refused_leases.at(now_s),
            lasting_runs=self._last_runs.lasting,
            granted_steps=self._granted_steps.of(jobs),
            limited_gpus=self._size_limits.gpus(jobs, now_s),
            refused_sizes=self._size_limits.refused(jobs, now_s),
        )

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
                self._refused_leases.note(job_id, failure.message, now_s)
            elif isinstance(change, JobChange) and _SCRONTAB in failure.message:
                self._scrontab.add(change.job_id)
            elif isinstance(failure, NotNow) and isinstance(change, JobChange):
                self._closed.note(change.job_id, failure.message, now_s)
        self._size_limits.note(answers, now_s)

    def closed(self, now_s: float) -> frozenset[int]:
        """The jobs that Slurm does not change for now, as each try would take it 5 s, and those that it never does."""
        return frozenset(self._closed.at(now_s)) | self._scrontab

    def note_plan(self, snapshot: Snapshot, held_back: Container[int]) -> None:
        """Take in which trainings their sweeps hold back."""
        self._granted_steps.note(snapshot.jobs, held_back)

    def note_changes(self, changes: Sequence[Change], jobs: Mapping[int, SlurmJob]) -> None:
        """Take in what is about to be written."""
        self._hidden_reasons.note(changes, jobs)
        self._lease_use.note(changes, jobs)
