"""The jobs of a simulation: how far each has come, as numbers, and as policies see them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from sched_policy.model import MOST_OF_LIMIT, Elastic, Exploration, GpuRequest, Job, JobState, NodeGpus, StageProfile
from sched_policy.snapshot import Columns, Floats, Ints
from simulation.cluster.settings import Estimates, EstimateSource, Settings
from simulation.traces.learning import Learning
from simulation.traces.trace import TraceJob
from slurm_plugin.observation.history import Likeness, of_history

_MAY_STOP = Exploration(checkpoint_signal="USR1", may_stop=True)


NEVER_S = float("inf")


class JobPhase(IntEnum):
    """The phase of a job of the trace."""

    FUTURE = 0
    WAITING = 1
    RUNNING = 2
    SAVING = 3  # saves its checkpoint, holds its GPUs, makes no progress
    ENDED = 4


class JobTable:
    """One entry per job of the trace, in its order; all arrays have shape (J,).

    Attributes:
        job_id, submit_s: as the trace has them.
        gpus: GPUs the job holds, or asks for while it waits.
        scale: its speed with them, alone, against its speed with those of the trace.
        work_s: run time the job needs alone.
        leave_s: run time after which its owner gives it up; `work_s` if he does not.
        learns: whether it reports a learning curve.
        limit_s: time limit of a run, infinity without one.
        expected_s: estimate of its whole run time that policies get, NaN for none.
        phase: a `JobPhase`.
        done_s: work done until `counted_until_s`.
        counted_until_s: moment up to which work is counted.
        loaded_s: when the present run began to make progress.
        loaded_done_s: work that was done then.
        speed: work per second with its GPUs, beside its present neighbours; `scale` alone.
        earlier_s: time it held GPUs in earlier runs.
        start_s: when it got the GPUs it holds, NaN while it holds none.
        first_start_s: when it first got GPUs, NaN before.
        queued_s: when it last joined the queue.
        preemptions: how often it was sent back to the queue.
        held_gpu_s: GPU-seconds it held in earlier runs.
        granted_step: the step of its last report when its sweep last let it continue.

    """

    def __init__(self, jobs: Sequence[TraceJob], settings: Settings) -> None:
        count = len(jobs)
        self.job_id = np.array([job.job_id for job in jobs], dtype=np.int64)
        self.submit_s = np.array([job.submit_s for job in jobs], dtype=np.float64)
        self.gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
        self.scale = np.ones(count)
        self.work_s = np.array([job.run_s for job in jobs], dtype=np.float64)
        self.leave_s = np.minimum(self.work_s, [_leaves_at_s(job) for job in jobs])
        self.learns = np.array([job.learning is not None for job in jobs], dtype=np.bool_)
        self.limit_s = np.array([_or_never(job.time_limit_s) for job in jobs], dtype=np.float64)
        self.expected_s = _estimated_run_s(self.work_s, settings.estimates, settings.seed)
        self.phase = np.full(count, JobPhase.FUTURE, dtype=np.int8)
        self.done_s = np.zeros(count)
        self.counted_until_s = np.zeros(count)
        self.loaded_s = np.zeros(count)
        self.speed = np.ones(count)
        self.loaded_done_s = np.zeros(count)
        self.earlier_s = np.zeros(count)
        self.start_s = np.full(count, np.nan)
        self.first_start_s = np.full(count, np.nan)
        self.queued_s = self.submit_s.copy()
        self.preemptions = np.zeros(count, dtype=np.int64)
        self.held_gpu_s = np.zeros(count)
        self.granted_step = np.zeros(count)
        self.predicted: list[tuple[bool, bool] | None] = []
        self._run_times = None
        if settings.estimates.source is EstimateSource.LEARNT:
            self._run_times = of_history((_likeness(job), job.run_s) for job in settings.history)
            self._number = np.zeros(count, dtype=np.int64)

    def submit(self, row: int, job: TraceJob) -> None:
        """The job joins the queue."""
        self.phase[row] = JobPhase.WAITING
        if self._run_times is not None:
            self._number[row] = number = self._run_times.add(_likeness(job))
            found = self._run_times.judged(number, job.run_s)
            self.predicted.append(found and (found.within_twice, found.within_quantiles))

    def start(self, row: int, now_s: float, restart_s: float) -> None:
        """The job gets GPUs; if it has run before it loads its checkpoint for `restart_s`."""
        self.phase[row] = JobPhase.RUNNING
        self.start_s[row] = now_s
        self.loaded_s[row] = self.counted_until_s[row] = now_s + (restart_s if self.preemptions[row] > 0 else 0.0)
        self.loaded_done_s[row] = self.done_s[row]
        if np.isnan(self.first_start_s[row]):
            self.first_start_s[row] = now_s

    def save(self, row: int, now_s: float) -> None:
        """The job stops working and saves its checkpoint."""
        self.advance(row, now_s)
        self.phase[row] = JobPhase.SAVING

    def release(self, row: int, now_s: float) -> None:
        """The job's GPUs are free."""
        self.earlier_s[row] += now_s - self.start_s[row]
        self.held_gpu_s[row] += (now_s - self.start_s[row]) * self.gpus[row]
        self.start_s[row] = np.nan

    def requeue(self, row: int, now_s: float, cost_s: float) -> None:
        """The job, whose GPUs are free, waits again; to save and load takes `cost_s` of its run time."""
        self.phase[row] = JobPhase.WAITING
        self.queued_s[row] = now_s
        self.preemptions[row] += 1
        self.expected_s[row] += cost_s

    def end(self, row: int) -> None:
        """The job has left: its run time tells of others."""
        self.phase[row] = JobPhase.ENDED
        if self._run_times is not None and self.earlier_s[row] > 0:
            self._run_times.ended(int(self._number[row]), float(self.earlier_s[row]))

    def judge(self, rows: Ints, now_s: float) -> Ints:
        """Estimate the run times of these jobs anew where they are learnt; the rows that have another estimate now."""
        if self._run_times is None:
            return rows[:0]
        run_s = np.where(np.isnan(self.start_s[rows]), 0.0, now_s - self.start_s[rows])
        executed_s = self.earlier_s[rows] + run_s
        left_s = np.minimum(self._run_times.left_s(self._number[rows], executed_s), self.limit_s[rows] - run_s)
        fresh_s = executed_s + left_s
        before_s = self.expected_s[rows]
        changed = ~(np.isnan(fresh_s) | (np.abs(fresh_s - before_s) <= 1.0))
        self.expected_s[rows[changed]] = fresh_s[changed]
        return rows[changed]

    def job(self, row: int, job: TraceJob, held: tuple[NodeGpus, ...], gpus_per_node: int) -> Job:
        """The job as policies see it at this moment, with the GPUs that it holds."""
        learning, holds = job.learning, self.phase[row] in (JobPhase.RUNNING, JobPhase.SAVING)
        has_run = holds or self.preemptions[row] > 0
        return Job(
            job_id=job.job_id,
            request=_request(int(self.gpus[row]), gpus_per_node),
            submit_s=job.submit_s,
            user=job.user,
            state=JobState.RUNNING if holds else JobState.PENDING,
            start_s=float(self.start_s[row]) if holds else None,
            first_report_s=self._first_report_s(row, learning) if learning and holds else None,
            queued_s=float(self.queued_s[row]),
            time_limit_s=job.time_limit_s,
            expected_s=None if np.isnan(self.expected_s[row]) else float(self.expected_s[row]),
            earlier_s=float(self.earlier_s[row]),
            allocation=held,
            exploration=learning.exploration if learning else _MAY_STOP,
            total_steps=learning.total_steps if learning else None,
            points=learning.points_until(float(self.done_s[row]), job.gpus) if learning and has_run else (),
            restarts=int(self.preemptions[row]),
            profile=_profile(job),
            guaranteed=job.priority == 0,
            asked_to_leave=self.phase[row] == JobPhase.SAVING,
            elastic=_elastic(job, gpus_per_node),
            granted_step=float(self.granted_step[row]),
        )

    def _first_report_s(self, row: int, learning: Learning) -> float | None:
        """When the job first reported in its present run; a report that it had made before is not made again.

        A curve that has ended says nothing of the job any more: it is taken to be at work once it makes progress.
        """
        loaded_s, began_s, done_s = (float(s[row]) for s in (self.loaded_s, self.loaded_done_s, self.done_s))
        known = learning.reports(began_s) if began_s > 0 else 0
        if known == learning.times_s.size:
            return loaded_s if done_s > began_s else None
        if learning.reports(done_s) == known:
            return None
        return loaded_s + max(0.0, float(learning.times_s[known]) - began_s)

    def columns(self, rows: Ints, now_s: float) -> Columns:
        """What `Columns.of` would compute from the jobs of these rows, without building them."""
        phase = self.phase[rows]
        holds = (phase == JobPhase.RUNNING) | (phase == JobPhase.SAVING)
        start_s = np.where(holds, self.start_s[rows], now_s)
        run_s = now_s - start_s
        executed_s = self.earlier_s[rows] + run_s
        slowed_s = np.maximum(0.0, now_s - self.counted_until_s[rows]) * (1.0 - self.speed[rows] / self.scale[rows])
        expected_s = self.expected_s[rows] + np.where(phase == JobPhase.RUNNING, slowed_s, 0.0)
        planned_s = np.where(
            np.isfinite(self.limit_s[rows]) | np.isnan(expected_s),
            self.limit_s[rows],
            np.maximum(1.0, expected_s - self.earlier_s[rows]),
        )
        earlier_s, unknown_s = self.earlier_s[rows], np.maximum(0.0, self.limit_s[rows] - run_s)
        unknown_s = np.where(earlier_s < MOST_OF_LIMIT * unknown_s, unknown_s - earlier_s, unknown_s)
        return Columns(
            job_id=self.job_id[rows],
            submit_s=self.submit_s[rows],
            gpus=self.gpus[rows],
            holds=holds,
            waits=phase == JobPhase.WAITING,
            executed_s=executed_s,
            run_s=run_s,
            waited_s=start_s - self.queued_s[rows],
            left_s=np.where(np.isnan(expected_s), unknown_s, np.maximum(0.0, expected_s - executed_s)),
            end_s=np.where(holds, np.maximum(now_s, start_s + planned_s), np.inf),
        )

    def advance(self, row: int, now_s: float) -> None:
        """Count the work a running job has done until now."""
        worked_s = max(0.0, now_s - self.counted_until_s[row])
        self.done_s[row] += worked_s * self.speed[row]
        self.counted_until_s[row] += worked_s
        self.expected_s[row] += worked_s * (
            1.0 - self.speed[row] / self.scale[row]
        )  # sharing a GPU takes longer than estimated

    def resize(self, row: int, gpus: int, scale: float) -> None:
        """A waiting job will run with so many GPUs, `scale` times as fast as with those of the trace."""
        left_s = self.expected_s[row] - self.earlier_s[row]
        self.expected_s[row] += left_s * (self.scale[row] / scale - 1.0)
        self.gpus[row], self.scale[row] = gpus, scale

    def end_s(self, row: int) -> float:
        """When the job will end: its work is done, or its time is up."""
        left_s = (self.leave_s[row] - self.done_s[row]) / self.speed[row]
        return float(min(self.counted_until_s[row] + left_s, self.start_s[row] + self.limit_s[row]))

    def is_through(self, row: int) -> bool:
        """Whether the job has done all it will ever do."""
        # Rounding: the last moment of work is a sum of many.
        return bool(self.done_s[row] >= self.leave_s[row] * (1 - 1e-9) - 1e-6)


def _likeness(job: TraceJob) -> Likeness:
    """Traces have the name of the model where sacct has that of the job."""
    return Likeness(job.gpus, job.queue, job.user, job.model)


def _or_never(limit_s: float | None) -> float:
    return NEVER_S if limit_s is None else limit_s


def _leaves_at_s(job: TraceJob) -> float:
    """Run time after which the owner gives the job up."""
    return _or_never(job.learning.abandoned_at_s if job.learning else None)


def _estimated_run_s(work_s: Floats, estimates: Estimates, seed: int) -> Floats:
    """Estimates of run times that policies get, shape (J,); NaN where they get none."""
    if estimates.source in (EstimateSource.LIMIT, EstimateSource.LEARNT):
        return np.full_like(work_s, np.nan)
    noise = np.random.default_rng(seed).normal(0.0, estimates.sigma, work_s.size)
    return work_s * np.exp(noise)


def _elastic(job: TraceJob, gpus_per_node: int) -> Elastic | None:
    """On one node if the job is submitted so, else by whole nodes."""
    if job.least_gpus is None or job.most_gpus is None:
        return None
    if job.gpus <= gpus_per_node:
        return Elastic(job.least_gpus, min(job.most_gpus, gpus_per_node))
    least, most = -(-job.least_gpus // gpus_per_node), job.most_gpus // gpus_per_node
    return Elastic(least * gpus_per_node, most * gpus_per_node, gpus_per_node) if least < most else None


def _profile(job: TraceJob) -> StageProfile | None:
    if job.stages is None:
        return None
    return StageProfile(job.iteration_s, job.stages.io_s, job.stages.gpu_s, job.stages.net_s)


def _request(gpus: int, gpus_per_node: int) -> GpuRequest:
    """A gang as users ask for it: on one node if it fits there, else whole nodes and a rest wherever it finds room."""
    if gpus <= gpus_per_node:
        return GpuRequest.on_each(1, gpus)
    if gpus % gpus_per_node == 0:
        return GpuRequest.on_each(gpus // gpus_per_node, gpus_per_node)
    return GpuRequest(gpus, nodes=-(-gpus // gpus_per_node))
