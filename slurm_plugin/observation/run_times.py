"""Run times learnt from sacct: what jobs like a present one took.

sacct is asked in a thread of its own, now and then: a slow or absent slurmdbd delays no pass, and jobs keep what was
learnt before, or nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from msgspec.structs import replace

from explsched.errors import SlurmError
from explsched.log import event
from sched_policy.model import Job
from sched_policy.run_times import Likeness, PastJob, RunTimes, of_history
from slurm_plugin.client.spelling import gpus_of

FIELDS = ("JobIDRaw", "User", "Partition", "Submit", "End", "ElapsedRaw", "State", "AllocTRES", "JobName")
"""sacct's fields; JobName, which is free text, stands last."""

Accounting = Callable[[Sequence[str], float, float], list[list[str]]]
"""Gives sacct's rows of a period: fields, since, until. Raises `SlurmError`."""

_LOG = logging.getLogger("explsched.run_times")
_NOT_ENDED = frozenset({"PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "RESIZING", "COMPLETING", "CONFIGURING"})
_DAY_S = 86_400.0


def past_jobs(rows: Iterable[Sequence[str]]) -> tuple[list[PastJob], int]:
    """The jobs of sacct's rows that have ended and held GPUs, in order of submission; and how many rows are unreadable.

    A requeued job has a row for each run: together they are its run time.
    """
    runs: dict[int, list[tuple[float, float, float, str, Likeness]]] = {}
    left_out = 0
    for row in rows:
        try:
            job_id, user, queue, submitted, ended, elapsed, state, tres, name = row
            likeness = Likeness(gpus_of(tres), queue, user, name)
            run = (float(submitted), float(ended) if ended.isdecimal() else 0.0, float(elapsed), state, likeness)
            runs.setdefault(int(job_id), []).append(run)
        except ValueError:  # free text with a line break; told in one line for all of them
            left_out += 1
    found = []
    for theirs in runs.values():
        theirs.sort(key=lambda run: run[0])
        _, end_s, _, state, likeness = theirs[-1]
        run_s = sum(run[2] for run in theirs)
        if state.partition(" ")[0] not in _NOT_ENDED and run_s > 0 and likeness.gpus > 0:
            found.append(PastJob(likeness, theirs[0][0], end_s, run_s))
    return sorted(found, key=lambda job: job.submit_s), left_out


def read_past(accounting: Accounting, since_s: float, until_s: float) -> list[PastJob]:
    """What sacct tells of a period. Raises `SlurmError`."""
    found, left_out = past_jobs(accounting(FIELDS, since_s, until_s))
    if left_out:
        event(_LOG, logging.WARNING, "rows of sacct left out", rows=left_out)
    return found


class LearntRunTimes:
    """Estimates for the jobs of each pass, learnt anew from sacct every `refresh_s`.

    Jobs that end in between are learnt from with the run time at which they were last seen.
    """

    def __init__(self, accounting: Accounting, history_days: float, refresh_s: float) -> None:
        self._accounting = accounting
        self._history_s = history_days * _DAY_S
        self._refresh_s = refresh_s
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sacct")
        self._reading: Future[RunTimes] | None = None
        self._next_s = 0.0
        self._known = RunTimes()
        self._numbers: dict[int, int] = {}
        self._ran_s: dict[int, float] = {}

    def close(self) -> None:
        """No more reading."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def with_estimates(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """The jobs with `expected_s`, as far as similar jobs tell."""
        self._refresh(now_s)
        self._note_ends({job.job_id for job in jobs})
        for job in jobs:
            if job.job_id not in self._numbers:
                likeness = Likeness(job.request.total, job.queue, job.user, job.name)
                self._numbers[job.job_id] = self._known.add(likeness)
        ran_s = np.array([job.executed_s(now_s) for job in jobs])
        self._ran_s = {job.job_id: seconds for job, seconds in zip(jobs, ran_s.tolist(), strict=True)}
        numbers = np.array([self._numbers[job.job_id] for job in jobs], dtype=np.int64)
        left_s = self._known.left_s(numbers, ran_s).tolist()
        return [
            job if np.isnan(left) else replace(job, expected_s=ran + _within_limit(job, left, now_s))
            for job, ran, left in zip(jobs, ran_s.tolist(), left_s, strict=True)
        ]

    def _note_ends(self, present: set[int]) -> None:
        for job_id in self._numbers.keys() - present:
            number, ran_s = self._numbers.pop(job_id), self._ran_s.get(job_id, 0.0)
            if ran_s > 0:
                self._known.ended(number, ran_s)

    def _refresh(self, now_s: float) -> None:
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            try:
                self._known, self._numbers = reading.result(), {}
                event(_LOG, logging.INFO, "run times learnt", jobs=self._known.jobs)
            except SlurmError as error:
                event(_LOG, logging.WARNING, "run times not learnt, will try again", why=str(error))
        if self._reading is None and now_s >= self._next_s:
            self._next_s = now_s + self._refresh_s
            self._reading = self._reader.submit(self._learn, now_s)

    def _learn(self, now_s: float) -> RunTimes:
        past = read_past(self._accounting, now_s - self._history_s, now_s)
        return of_history((job.likeness, job.run_s) for job in past)


def _within_limit(job: Job, left_s: float, now_s: float) -> float:
    return left_s if job.time_limit_s is None else min(left_s, max(0.0, job.time_limit_s - job.run_s(now_s)))
