"""Run times learnt from sacct: estimates from similar jobs, and how accurate these would have been in the past.

sacct is called in a thread, every `refresh_s`: a slow or absent slurmdbd delays no pass; until it answers the former
estimates, or none, are used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explsched.errors import SlurmError
from explsched.log import event
from sched_policy.model import Job
from sched_policy.order import still_telling
from sched_policy.snapshot import EndedRun, Snapshot
from slurm_plugin.client.notation import count, gpu_count
from slurm_plugin.observation.history import Judged, Likeness, RunTimes, of_history
from slurm_plugin.observation.saved_state import SavedState

FIELDS = ("JobIDRaw", "User", "Partition", "Submit", "End", "ElapsedRaw", "State", "AllocTRES", "JobName")
"""sacct's fields; JobName comes last because it is free text."""

Accounting = Callable[[Sequence[str], float, float], list[list[str]]]
"""Returns sacct's rows for (fields, since, until). Raises `SlurmError`."""

_LOG = logging.getLogger("explsched.run_times")
_NOT_ENDED = frozenset({"PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "RESIZING", "COMPLETING", "CONFIGURING"})
_DAY_S = 86_400.0


class AccountedJob(NamedTuple):
    """A job that has ended: when it was submitted, when it ended, and how long it ran, in seconds."""

    likeness: Likeness
    submit_s: float
    end_s: float
    run_s: float


def past_jobs(rows: Iterable[Sequence[str]]) -> tuple[list[AccountedJob], int]:
    """The jobs of sacct's rows that have ended and held GPUs or shards, by submission; and how many rows are torn.

    A requeued job has a row for each run: together they are its run time.
    """
    runs: dict[int, list[tuple[float, float, float, str, Likeness]]] = {}
    left_out = 0
    for row in rows:
        try:
            job_id, user, queue, submitted, ended, elapsed, state, tres, name = row
            gpus = gpu_count(tres) or min(1, count(tres, "shard"))  # a part of a GPU counts as one
            likeness = Likeness(gpus, queue, user, name)
            run = (float(submitted), float(ended) if ended.isdecimal() else 0.0, float(elapsed), state, likeness)
            runs.setdefault(int(job_id), []).append(run)
        except ValueError:  # free text with a line break; all such rows are reported in one line
            left_out += 1
    found = []
    for theirs in runs.values():
        theirs.sort(key=lambda run: run[0])
        _, end_s, _, state, likeness = theirs[-1]
        run_s = sum(run[2] for run in theirs)
        if state.partition(" ")[0] not in _NOT_ENDED and run_s > 0 and likeness.gpus > 0:
            found.append(AccountedJob(likeness, theirs[0][0], end_s, run_s))
    return sorted(found, key=lambda job: job.submit_s), left_out


def read_past(accounting: Accounting, since_s: float, until_s: float) -> list[AccountedJob]:
    """The ended jobs of a period, by sacct. Raises `SlurmError`."""
    found, left_out = past_jobs(accounting(FIELDS, since_s, until_s))
    if left_out:
        event(_LOG, logging.WARNING, "rows of sacct left out", rows=left_out)
    return found


class LearntRunTimes:
    """Estimates for the jobs of each pass, learnt again from sacct every `refresh_s`.

    Jobs that end in between count with the run time at which they were last seen. `former` is what has learnt so far:
    its estimates are used until sacct answers.
    """

    def __init__(
        self, accounting: Accounting, history_days: float, refresh_s: float, former: LearntRunTimes | None = None
    ) -> None:
        self._accounting = accounting
        self._history_s = history_days * _DAY_S
        self._refresh_s = refresh_s
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="sacct")
        self._reading: Future[RunTimes] | None = None
        self._next_s = 0.0
        self._known: RunTimes = former._known if former else RunTimes()
        self._numbers: dict[int, int] = former._numbers if former else {}
        self._ran_s: dict[int, float] = former._ran_s if former else {}

    def close(self) -> None:
        """Stop reading from sacct."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def with_estimates(self, jobs: Sequence[Job], now_s: float) -> list[Job]:
        """The jobs, with `expected_s` where there are similar jobs to learn from."""
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


class _Notes(Struct, frozen=True):
    runs: tuple[EndedRun, ...] = ()


class EndedRuns:
    """Run times of ended jobs, as long as they are useful for predictions; saved to a file for the next daemon.

    slurmctld forgets jobs soon after their end, and not every site has slurmdbd. A job that ended between two passes is
    assumed to have ended halfway between them; one that was never seen running is not counted.
    """

    def __init__(self, path: Path) -> None:
        self._file = SavedState(path, _Notes, "run times of ended jobs", "will learn them again")
        self._notes = self._saved = self._file.read() or _Notes()
        self._running: dict[int, EndedRun] = {}
        self._looked_s = 0.0

    def known(self, present: AbstractSet[int], now_s: float) -> tuple[EndedRun, ...]:
        """The run times of ended jobs that are not among the present ones."""
        later_s = max(0.0, now_s - self._looked_s) / 2
        left = [
            replace(run, run_s=run.run_s + later_s) for job_id, run in self._running.items() if job_id not in present
        ]
        self._running = {}
        self._notes = _Notes((*(run for run in self._notes.runs if run.job_id not in present), *left))
        return self._notes.runs

    def note(self, snapshot: Snapshot) -> None:
        """Record what a pass observes: running jobs, and jobs whose run times are estimated."""
        columns, self._looked_s = snapshot.columns, snapshot.now_s
        running = columns.holds.nonzero()[0].tolist()
        numbers = zip(columns.submit_s[running].tolist(), columns.gpus[running].tolist(), strict=True)
        ran_s = columns.executed_s[running].tolist()
        jobs = columns.job_id[running].tolist()
        self._running = {
            job_id: EndedRun(job_id, submit_s, gpus, run_s)
            for job_id, (submit_s, gpus), run_s in zip(jobs, numbers, ran_s, strict=True)
        }
        if self._notes != self._saved:
            self._notes = _Notes(still_telling(self._notes.runs, columns))

    def save(self) -> None:
        """Save the records. A write error stops nothing."""
        if self._notes != self._saved and self._file.write(self._notes):
            self._saved = self._notes


class Coverage(Struct, frozen=True):
    """The accuracy of predicted run times, for jobs whose most similar past job matched in the same properties.

    Attributes:
        alike_in: these properties; "" for jobs without a similar one.
        jobs: number of jobs.
        share: fraction of all jobs.
        within_twice: fraction of them that ran between half and twice the predicted median.
        within_quantiles: fraction of them between the predicted quantiles 0.1 and 0.9; 0.8 is well calibrated.

    """

    alike_in: str
    jobs: int
    share: float
    within_twice: float | None = None
    within_quantiles: float | None = None


def coverage(past: Sequence[AccountedJob], known: Sequence[AccountedJob] = ()) -> tuple[Coverage, ...]:
    """The accuracy of predictions at submission, from jobs that had ended by then; the largest groups first.

    The jobs in `known` are only learnt from.
    """
    history = RunTimes()
    jobs = [*known, *past]
    events = [(job.submit_s, 1, row) for row, job in enumerate(jobs)]
    events += [(max(job.end_s, job.submit_s), 2, row) for row, job in enumerate(jobs)]
    numbers: dict[int, int] = {}
    hits: dict[str, list[Judged]] = {}
    for _, kind, row in sorted(events):
        job = jobs[row]
        if kind == 2:
            history.ended(numbers[row], job.run_s)
            continue
        numbers[row] = history.add(job.likeness)
        if row < len(known):
            continue
        found = history.judged(numbers[row], job.run_s) or Judged("", within_twice=False, within_quantiles=False)
        hits.setdefault(found.alike_in, []).append(found)
    lines = (_line(alike_in, theirs, len(past)) for alike_in, theirs in hits.items())
    return tuple(sorted(lines, key=lambda line: -line.jobs))


def _line(alike_in: str, hits: Sequence[Judged], jobs: int) -> Coverage:
    count, share = len(hits), len(hits) / jobs
    if not alike_in:
        return Coverage(alike_in, count, share)
    twice, quantiles = (sum(hits) / count for hits in zip(*(hit[1:] for hit in hits), strict=True))
    return Coverage(alike_in, count, share, twice, quantiles)
