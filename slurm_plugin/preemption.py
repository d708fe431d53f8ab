"""Preemption takes three steps over several passes: checkpoint signal, grace, requeue.

The job answers the signal by saving a checkpoint, reports it (`wrappers.checkpoint`) and goes on training. Only then,
or when the grace period is over, it is requeued. If the daemon dies in between, the job has lost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from sched_policy.model import Job, JobState
from sched_policy.plan import Preemption
from slurm_plugin.client.protocol import Change, RequeueJob, SignalJob
from slurm_plugin.progress import JobProgress

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Underway:
    """A preemption that has been signalled but not finished."""

    signalled_s: float
    restarts: int
    checkpoint_before_s: float | None


class PreemptionDesk:
    """Keeps the preemptions underway and the hourly budget.

    It is memory only: after a restart of the daemon a job that was signalled simply goes on, and the next plan decides
    anew.
    """

    def __init__(self, grace_s: float, most_per_hour: int) -> None:
        self._grace_s = grace_s
        self._most_per_hour = most_per_hour
        self._underway: dict[int, _Underway] = {}
        self._begun_s: deque[float] = deque()

    @property
    def underway(self) -> frozenset[int]:
        """Jobs that have been signalled and not yet requeued."""
        return frozenset(self._underway)

    def limits(self, grace_s: float, most_per_hour: int) -> None:
        """Take new limits (configuration reload); what is underway stays."""
        self._grace_s, self._most_per_hour = grace_s, most_per_hour

    def advance(
        self,
        preemptions: tuple[Preemption, ...],
        jobs: Mapping[int, Job],
        progress: Mapping[int, JobProgress],
        now_s: float,
    ) -> tuple[Change, ...]:
        """The next step of each preemption: requeues of jobs that are ready, signals to new ones."""
        changes: list[Change] = []
        for job_id, step in tuple(self._underway.items()):
            job = jobs.get(job_id)
            if job is None or job.state is not JobState.RUNNING or job.restarts != step.restarts:
                del self._underway[job_id]  # it ended or was requeued by somebody: nothing left to do
            elif progress.get(job_id, JobProgress()).ended:
                del self._underway[job_id]  # its work is done: a requeue would only run it again
            elif self._is_ready(step, progress.get(job_id, JobProgress()), now_s):
                changes.append(RequeueJob(job_id))  # stays underway until it is seen to have left
        for preemption in preemptions:
            job = jobs[preemption.job_id]
            if job.job_id in self._underway or not self._within_budget(now_s):
                continue
            if job.exploration is None or job.exploration.checkpoint_signal is None:
                continue  # never touch a job that did not opt in, whatever a plan says
            reported = progress.get(job.job_id, JobProgress())
            if not _listens(reported, job.restarts):
                continue
            self._underway[job.job_id] = _Underway(now_s, job.restarts, reported.checkpoint_s)
            self._begun_s.append(now_s)
            changes.append(SignalJob(job.job_id, job.exploration.checkpoint_signal))
        return tuple(changes)

    def _is_ready(self, step: _Underway, progress: JobProgress, now_s: float) -> bool:
        saved = progress.checkpoint_s is not None and progress.checkpoint_s != step.checkpoint_before_s
        return saved or now_s - step.signalled_s >= self._grace_s

    def _within_budget(self, now_s: float) -> bool:
        while self._begun_s and now_s - self._begun_s[0] >= _HOUR_S:
            self._begun_s.popleft()
        return len(self._begun_s) < self._most_per_hour


def _listens(progress: JobProgress, restarts: int) -> bool:
    """Whether the job can be expected to have its signal handler in place.

    A job that reports progress has it once it has reported in its present run: before that it is still starting, and a
    signal would end it. Of a job that never reports nothing is known; its quantum has to do.
    """
    return not progress.reports or any(report.restart == restarts for report in progress.reports)
