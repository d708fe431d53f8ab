"""Trainings between passes: those that have ended, that reported nothing, and that their sweeps let continue."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from sched_policy.curves import MIN_POINTS
from sched_policy.model import LARGEST_VALUE, Direction, Job, JobState, ProgressPoint
from sched_policy.sweep.trials import oriented
from slurm_plugin.client.records import SlurmJob


class SeenTraining(NamedTuple):
    """A training of a sweep as it was last seen, when that was, and its owner's uid, by which its reports are known."""

    job: Job
    uid: int
    last_s: float


FADES_S = 86_400.0
"""After this time a second without reports counts 1/e: about one quantum per day is forgiven."""

_LEAST_S = 1.0


class RunsWithoutReports:
    """Run time of trainings that ended without enough reports for a curve, by user, fading with `FADES_S`.

    In memory: a restarted daemon grants each user one more quantum.
    """

    def __init__(self) -> None:
        self._unreported_s: dict[str, float] = {}
        self._running_s: dict[int, tuple[str, float]] = {}
        self._now_s: float | None = None

    @property
    def by_user(self) -> Mapping[str, float]:
        """Run time without reports by user, in seconds."""
        return self._unreported_s

    def note(self, jobs: Iterable[Job], now_s: float) -> None:
        """Take in all jobs that wait or run in a pass, with what they have reported."""
        elapsed_s = 0.0 if self._now_s is None else max(0.0, now_s - self._now_s)
        self._now_s = now_s
        faded = math.exp(-elapsed_s / FADES_S)
        unreported_s = {
            user: faded * past_s for user, past_s in self._unreported_s.items() if faded * past_s >= _LEAST_S
        }
        present = {job.job_id: job for job in jobs}
        for job_id, (user, ran_s) in self._running_s.items():
            if job_id not in present:
                unreported_s[user] = unreported_s.get(user, 0.0) + ran_s
        self._unreported_s = unreported_s
        before = self._running_s
        # The largest run time seen counts: one that its owner requeues does not begin anew.
        self._running_s = {
            job.job_id: (job.user, max(job.executed_s(now_s), before.get(job.job_id, ("", 0.0))[1]))
            for job in present.values()
            if job.is_of_sweep and len(job.points) < MIN_POINTS
        }


LASTS_S = 86_400.0
"""So long after the last of its trainings was there a sweep goes on: a search may wait for the queue, or be resumed the
next day. A name that is used again later is another sweep's, as its metric may mean something else by then."""

MOST_ENDED = 4096
"""Largest number of ended trainings kept per sweep; beyond it the latest half and the best one are kept. Each pass
reads and evaluates all of them, which would take too long in a sweep that runs for weeks. Of all sweeps of a user of
which none is there, as many together are kept, and the best of each."""


class SweepTrainings:
    """All trainings, ended ones included, of sweeps that have had some waiting or running within `LASTS_S`.

    The curves of ended trainings predict what the others of the sweep can reach, and their best value is the one to
    beat. While none of a sweep is there only the best point of each curve is kept: they are read again once one is. A
    restarted daemon reads what has ended from the record of the last one (`sweep_record.ended_before`).
    """

    def __init__(self) -> None:
        self._seen: dict[int, SeenTraining] = {}

    def adopt(self, ended: Mapping[int, SeenTraining]) -> None:
        """Take in trainings that ended before this daemon began."""
        self._seen = {**ended, **self._seen}

    @property
    def seen(self) -> Mapping[int, SeenTraining]:
        """The trainings as last seen, by job id."""
        return self._seen

    def note(self, jobs: Iterable[Job], ended: Iterable[Job], uids: Mapping[int, int], now_s: float) -> None:
        """Take in the jobs that wait or run in a pass, and ended trainings with all that they have reported.

        `uids` are of all jobs that wait or run, also of those that policies do not see.
        """
        present = {job.job_id: SeenTraining(job, uids[job.job_id], now_s) for job in jobs if job.is_of_sweep}
        there = {_sweep(training.job) for training in present.values()}
        reported = {job.job_id: job for job in ended}
        gone = {
            job_id: one._replace(job=reported.get(job_id, one.job))
            for job_id, one in self._seen.items()
            if job_id not in uids
        }
        last_s: defaultdict[_Sweep, float] = defaultdict(lambda: -math.inf, dict.fromkeys(there, now_s))
        for one in gone.values():
            last_s[_sweep(one.job)] = max(last_s[_sweep(one.job)], one.last_s)
        kept = {
            job_id: one if _sweep(one.job) in there else one._replace(job=_with_best_point(one.job))
            for job_id, one in gone.items()
            if last_s[_sweep(one.job)] >= now_s - LASTS_S
        }
        stopped = {job_id: _stopped(training, now_s) for job_id, training in present.items()}
        self._seen = {**_latest(kept, there), **stopped}


class GrantedSteps:
    """The progress of each training when its sweep last let it continue: later reports have not been judged yet.

    Kept in memory only: trainings that run when a daemon starts count as allowed to continue, paused ones do not.
    """

    def __init__(self) -> None:
        self._steps: dict[int, float] | None = None

    def of(self, jobs: Iterable[SlurmJob]) -> Mapping[int, float]:
        """The step by job, as of the last pass; newer jobs have 0."""
        if self._steps is None:
            return {job.job_id: math.inf if job.state != "PENDING" else 0.0 for job in jobs}
        return {job.job_id: self._steps.get(job.job_id, 0.0) for job in jobs}

    def note(self, jobs: Iterable[Job], held_back: Container[int]) -> None:
        """Record a pass's decisions."""
        self._steps = {job.job_id: granted_step(job, held_back) for job in jobs}


def granted_step(job: Job, held_back: Container[int]) -> float:
    """`Job.granted_step` after a pass; a training that does not allow preemption continues in any case."""
    last = float(job.points[-1].step) if job.points else 0.0
    if job.job_id in held_back and job.allows_preemption:
        return min(job.granted_step, math.nextafter(last, 0.0))
    return last if math.isinf(job.granted_step) else max(job.granted_step, last)


_Sweep = tuple[str, str | None]
"""A sweep's user and name."""


def _sweep(job: Job) -> _Sweep:
    return job.user, job.exploration.sweep if job.exploration else None


def _objective(job: Job) -> tuple[object, ...]:
    """What the job's values are comparable within."""
    told = job.exploration
    return *_sweep(job), *((told.metric, told.direction) if told else ())


def _latest(ended: Mapping[int, SeenTraining], there: Container[_Sweep]) -> Mapping[int, SeenTraining]:
    """The ended trainings that are kept; `ended` is in order of their ends, `there` are sweeps with others."""
    together: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for job_id, one in ended.items():
        together[_objective(one.job) if _sweep(one.job) in there else (one.job.user,)].append(job_id)
    dropped: set[int] = set()
    for job_ids in together.values():
        if len(job_ids) > MOST_ENDED:
            best_last = sorted(job_ids, key=lambda job_id: _best(ended[job_id].job), reverse=True)
            best = set({_objective(ended[job_id].job): job_id for job_id in best_last}.values())
            dropped.update(job_ids[: -MOST_ENDED // 2])
            dropped.difference_update([job_id for job_id in job_ids if job_id in best][-MOST_ENDED // 2 :])
    return {job_id: one for job_id, one in ended.items() if job_id not in dropped}


def has_diverged(points: Iterable[ProgressPoint], direction: Direction) -> bool:
    """Whether a training has diverged, so that the values that it reported before count for nothing."""
    reported = tuple(points)
    _, judged = oriented(reported, direction)
    return any(math.isfinite(point.value) for point in reported) and bool(judged.min() == LARGEST_VALUE)


def _best(job: Job) -> float:
    """The best finite value of a training, lower is better."""
    return min((_loss(job, point) for point in job.points if math.isfinite(point.value)), default=math.inf)


def _loss(job: Job, point: ProgressPoint) -> float:
    return -point.value if job.exploration and job.exploration.direction is Direction.MAX else point.value


def _with_best_point(job: Job) -> Job:
    """The training without its curve but for its best point, or without any point if it has diverged."""
    if len(job.points) <= 1 or job.exploration is None:
        return job
    points = () if has_diverged(job.points, job.exploration.direction) else job.points
    finite = (point for point in points if math.isfinite(point.value))
    best = min(finite, key=lambda point: _loss(job, point), default=None)
    return replace(job, points=(best,) if best else ())


def _stopped(training: SeenTraining, now_s: float) -> SeenTraining:
    """The training as if it ended now, with its run time so far, and the GPUs that it had."""
    job = training.job
    return training._replace(job=replace(job, state=JobState.PENDING, start_s=None, earlier_s=job.executed_s(now_s)))
