"""The trainings of a sweep, those that are over too: from Slurm, from their reports and from the daemon's notes."""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from explsched.preemption_record import PreemptionRecord
from sched_policy.model import Direction, Job, JobState, Parameter, ProgressPoint
from slurm_plugin import job_options
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.squeue import with_whole_nodes
from slurm_plugin.observation.gpu_hours import gpus_of, held_gpus, saved_gpu_hours, whole_s
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.policy_job import Params, all_params, options_of, policy_job
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requirements import gpu_request, gpus_had, most_shards_per_gpu
from slurm_plugin.observation.spool import ProgressSpool, submitted_s
from slurm_plugin.observation.sweep_record import Note
from slurm_plugin.observation.trainings import has_diverged

_COMPLETED = "COMPLETED"


class CurvePoint(NamedTuple):
    """One report: after how many steps and how many seconds of run time, all runs together."""

    step: int
    run_s: float
    value: float


class SweepTraining(Struct, frozen=True):
    """One training of a sweep.

    `state` is waiting, paused, running, done (it ended by itself), stopped (by explsched), ended (anything else), or
    over where nothing tells how. `gpu_h` of one that is no longer there is None where no reports of it can be read.
    `held_gpus` are its `gpus`, or the parts of them that it has by its shards. `run_s` is the run time of all runs.
    `step` is the last that it reported; NaN and infinite values are not in `curve`. `saved_gpu_h` is what a stopped
    training would have run on for, as far as its steps, or the run times of others that are done, tell. `diverged`: its
    `best` does not count, as its sweep ranks it last.
    """

    job: int
    state: str
    gpus: int
    held_gpus: float
    submit_s: float
    run_s: float
    gpu_h: float | None
    step: int | None
    total_steps: int | None
    best: float | None
    restarts: int
    params: Params
    params_changed: int
    malformed: int
    saved_gpu_h: float
    reason: str
    curve: tuple[CurvePoint, ...]
    diverged: bool = False

    @property
    def told_s(self) -> float | None:
        """Run time to its last step, as far as its steps tell."""
        run_s = self.curve[-1].run_s if self.curve else 0.0
        return whole_s(self.total_steps, (point.step for point in self.curve), run_s)


class SweepResults(Struct, frozen=True):
    """Trainings of one user and sweep that report the same metric, best first."""

    sweep: str
    user: str
    metric: str
    direction: Direction
    trainings: tuple[SweepTraining, ...]

    @property
    def best(self) -> SweepTraining | None:
        """The training with the best value so far, of those that have not diverged."""
        return next((one for one in self.trainings[:1] if one.best is not None and not one.diverged), None)

    @property
    def gpu_h(self) -> float | None:
        """GPU-hours that all of them have had, as far as they are known; None if of none."""
        known = [training.gpu_h for training in self.trainings if training.gpu_h is not None]
        return sum(known) if known else None

    @property
    def saved_gpu_h(self) -> float:
        """GPU-hours that stopping has saved."""
        return sum(training.saved_gpu_h for training in self.trainings)

    def varied(self) -> tuple[str, ...]:
        """Names of the parameters that differ between trainings; all, if one training only tells any."""
        seen: dict[str, set[Parameter | None]] = {name: set() for t in self.trainings for name, _ in t.params}
        telling = [training for training in self.trainings if training.params]
        for training in telling:
            told = dict(training.params)
            for name, values in seen.items():
                values.add(told.get(name))
        return tuple(name for name, values in sorted(seen.items()) if len(values) > 1 or len(telling) == 1)


class _Member(NamedTuple):
    """A training, as the daemon's notes or Slurm name it."""

    user: str
    uid: int
    sweep: str
    metric: str
    direction: Direction
    gpus: int
    held_gpus: float
    submit_s: float
    params: Params


def results(
    seen: Observation,
    why: Mapping[int, str],
    notes: Sequence[Note],
    spool: ProgressSpool,
    recent: Sequence[SlurmJob] = (),
    wanted: Container[tuple[str, str]] | None = None,
) -> tuple[SweepResults, ...]:
    """The `wanted` sweeps (user, name), None: all that Slurm or the notes name; one for each objective reported.

    `recent` are jobs that Slurm remembers although they may have ended, which no daemon need have noted. `why` says of
    jobs in Slurm why the policy ranks them where it does. Reports of others that we may not read are told as the
    training's reason.
    """
    members, live, ended = _trainings(seen, notes, recent)
    if wanted is not None:
        members = {job_id: one for job_id, one in members.items() if (one.user, one.sweep) in wanted}
    now_s = seen.snapshot.now_s
    over = {job_id: one.uid for job_id, one in members.items() if job_id not in live}
    past = spool.read(over, now_s, submitted_s(ended.values()))
    last_words = _last_words(notes)
    groups: dict[tuple[str, str, str, Direction], list[SweepTraining]] = {}
    for job_id, one in members.items():
        progress = (seen.progress if job_id in live else past).get(job_id, JobProgress())
        told = why.get(job_id, "") if job_id in live else ended[job_id].state if job_id in ended else ""
        told_by = live.get(job_id), seen, told, last_words.get((job_id, one.uid, one.sweep))
        training = _training(job_id, one, progress, *told_by)
        groups.setdefault((one.user, one.sweep, one.metric, one.direction), []).append(training)
    return tuple(
        SweepResults(sweep, user, metric, direction, tuple(_with_savings(trainings, direction)))
        for (user, sweep, metric, direction), trainings in sorted(groups.items())
    )


def _last_words(notes: Sequence[Note]) -> dict[tuple[int, int, str], Note]:
    """Why trainings were last paused or stopped, without what was said of earlier ones with the same number."""
    since_s = {note.training: note.submit_s for note in notes if note.what == "joined"}
    told = (note for note in notes if note.what != "joined" and note.submit_s >= since_s.get(note.training, 0.0))
    return {note.training: note for note in told}


def names(seen: Observation, notes: Sequence[Note], recent: Sequence[SlurmJob] = ()) -> frozenset[tuple[str, str]]:
    """User and name of every sweep of `results`, for which no report is read."""
    return frozenset((one.user, one.sweep) for one in _trainings(seen, notes, recent)[0].values())


def _trainings(
    seen: Observation, notes: Sequence[Note], recent: Sequence[SlurmJob]
) -> tuple[dict[int, _Member], dict[int, Job], dict[int, SlurmJob]]:
    """All trainings; of them those that wait or run; and those that Slurm remembers after their end.

    A job of no sweep that has the number of a noted training, was submitted later and never requeued is another: a
    slurmctld installed anew counts from 1.
    """
    noted = {note.training: _of_note(note) for note in notes if note.what == "joined"}
    members = {job_id: one for (job_id, _, _), one in noted.items()}
    sizes = {node.name: node.gpus for node in seen.nodes.values()}
    past = {record.job_id: with_whole_nodes(record, sizes) for record in recent if record.job_id not in seen.jobs}
    ended: dict[int, SlurmJob] = {}
    per_gpu = most_shards_per_gpu(seen.nodes.values())
    for job_id, record in past.items():
        if (one := _of_record(record, per_gpu)) is not None:
            ended[job_id] = record
            known = noted.get((job_id, one.uid, one.sweep))
            members[job_id] = _with_held_gpus(_first_submitted(one, known, record.restarts), known)
    live = _live(seen, per_gpu, {(job_id, uid): one for (job_id, uid, _), one in noted.items()})
    for job in live.values():
        told = job.exploration
        if told is not None and told.sweep is not None:
            uid = seen.jobs[job.job_id].uid
            what = told.sweep, told.metric, told.direction
            one = _Member(job.user, uid, *what, gpus_of(job), held_gpus(job), job.submit_s, told.params)
            members[job.job_id] = _first_submitted(one, noted.get((job.job_id, uid, told.sweep)), job.restarts)
    return members, live, ended


def _live(seen: Observation, per_gpu: int, noted: Mapping[tuple[int, int], _Member]) -> dict[int, Job]:
    """Those that wait or run. No policy sees trainings without GPUs, nor all of partitions that are not steered."""

    def is_training(job: Job) -> bool:
        known = noted.get((job.job_id, seen.jobs[job.job_id].uid))
        is_noted = known is not None and (job.restarts > 0 or not known.submit_s or job.submit_s <= known.submit_s)
        return job.is_of_sweep or is_noted  # its owner may have changed its comment since

    found = {job.job_id: job for job in seen.snapshot.jobs if is_training(job)}
    for job_id, record in seen.jobs.items():
        if job_id not in found and (options := _options(record)) is not None:
            found[job_id] = policy_job(record, seen.progress.get(job_id, JobProgress()), options, None, per_gpu)
    return found


def _options(record: SlurmJob) -> job_options.JobOptions | None:
    """None for a job of no sweep, and for one whose options cannot be understood."""
    try:
        options = options_of(record)
    except job_options.JobOptionError:
        return None
    return options if options and options.exploration and options.exploration.sweep else None


def _of_record(record: SlurmJob, per_gpu: int) -> _Member | None:
    """None for a job of no sweep, one whose options cannot be understood, and an array that never started."""
    options = _options(record)
    told = options.exploration if options else None
    if told is None or told.sweep is None or record.array_tasks > 1:
        return None
    held = gpus_had(record, per_gpu)
    gpus = max(gpu_request(record, per_gpu).total, int(held))
    what = told.sweep, told.metric, told.direction
    return _Member(record.user, record.uid, *what, gpus, held, record.submit_s, told.params)


def _with_held_gpus(training: _Member, noted: _Member | None) -> _Member:
    """With the GPUs that the daemon saw: Slurm's record has those that it asked for."""
    return training if noted is None else training._replace(gpus=noted.gpus, held_gpus=noted.held_gpus)


def _first_submitted(training: _Member, noted: _Member | None, restarts: int) -> _Member:
    """With the time of its submission: once it has been requeued Slurm tells when that was instead."""
    if noted is None or not noted.submit_s or not restarts:
        return training
    return training._replace(submit_s=min(training.submit_s, noted.submit_s))


def _of_note(note: Note) -> _Member:
    what, held = (note.sweep, note.metric, note.direction), note.held_gpus or note.gpus
    return _Member(note.user, note.uid, *what, max(note.gpus, int(held)), held, note.submit_s, note.params)


def _training(
    job_id: int,
    member: _Member,
    progress: JobProgress,
    job: Job | None,
    seen: Observation,
    why: str,
    last_word: Note | None,
) -> SweepTraining:
    own = [report for report in progress.reports if report.metric == member.metric]
    behind = zip(own, progress.run_s(own), strict=True)
    curve = tuple(CurvePoint(report.step, run_s, report.value) for report, run_s in behind if isfinite(report.value))
    values = [point.value for point in curve]
    diverged = has_diverged((ProgressPoint(report.step, 0.0, report.value) for report in own), member.direction)
    reported_s = sum(run.end_s - run.start_s for run in progress.runs)
    reported_gpu_h = member.held_gpus * reported_s / 3600 if progress.runs else None
    if job is None:
        is_stopped = last_word is not None and last_word.what == "stopped"
        is_done = why == _COMPLETED or (not why and progress.is_done)
        state = "stopped" if is_stopped else "done" if is_done else "ended" if why or progress.runs else "over"
        reason = last_word.reason if last_word and is_stopped else "" if is_done else _why_it_ended(progress, why)
    elif job.state is JobState.PENDING:
        state = "paused" if job.restarts else "waiting"
        reason = _why_it_waits(job.restarts, seen.preempted.get(job_id), last_word, why)
        record = seen.jobs[job_id]
        reason = f"held: Slurm says {record.reason}" if record.is_held else reason
        reason = f"{job.array_tasks} tasks; {reason}" if job.array_tasks > 1 else reason
    else:
        state, reason = "running", why
    words = "diverged" * diverged, progress.refused or reason, _forgotten(progress, member.metric)
    return SweepTraining(
        job_id,
        state,
        member.gpus,
        member.held_gpus,
        member.submit_s,
        reported_s if job is None else job.executed_s(seen.snapshot.now_s),
        reported_gpu_h if job is None else seen.gpu_hours(job),
        own[-1].step if own else None,
        progress.total_steps,
        (min if member.direction is Direction.MIN else max)(values, default=None),
        max((run.restart for run in progress.runs), default=0),
        all_params(member.params, progress),
        len(progress.parameters.changed),
        progress.malformed + progress.not_finite,
        0.0,
        "; ".join(filter(None, words)),
        curve,
        diverged,
    )


def _why_it_waits(restarts: int, past: PreemptionRecord | None, last_word: Note | None, why: str) -> str:
    """Why we preempted its last run, as the record or, without one, a note says; else `why`, and who requeued it."""
    ours = past.of_run(restarts - 1) if past and past.latest else last_word
    if ours is None and restarts:
        return "; ".join(filter(None, ("requeued by Slurm or its owner", why)))
    return (ours.reason if ours else "") or why


def _why_it_ended(progress: JobProgress, why: str) -> str:
    """What its last run and Slurm tell of a training that neither came to its end nor was stopped by us."""
    return "; ".join(filter(None, (progress.failure, f"Slurm says {why}" if why else "")))


def _forgotten(progress: JobProgress, metric: str) -> str:
    """Of a training whose reports count for nothing: the sweep asks for another metric."""
    names = progress.instead_of(metric)
    return f"it reports {', '.join(names)}, but no {metric}: choose with --metric" if names else ""


def _with_savings(trainings: Iterable[SweepTraining], direction: Direction) -> list[SweepTraining]:
    """In order, best first, with what stopping has saved."""
    found = list(trainings)
    usual_s = statistics.median([t.run_s for t in found if t.state == "done"] or [0.0])
    told = [
        replace(one, saved_gpu_h=saved_gpu_hours(one.held_gpus, one.run_s, one.told_s, usual_s))
        if one.state == "stopped"
        else one
        for one in found
    ]
    sign = 1 if direction is Direction.MIN else -1
    return sorted(told, key=lambda t: (t.best is None, t.diverged, sign * (t.best or 0.0), t.job))
