"""Whose start the daemon has delayed, as of paused trainings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from slurm_plugin.client.changes import Change, DelayStart, StartAtOnce
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.saved_state import SavedState
from slurm_plugin.observation.standing import waits_for_requeue_delay

_KEPT = 3
"""Number of begin times that are kept: one may not have been written, and a slurmctld that loses its last seconds
returns to an older one."""


class _Rest(Struct, frozen=True, array_like=True):
    """The begin time that a job had before it was delayed, 0 if none but Slurm's own delay; and those written since.

    `lifted_s` is when the delay was lifted; then Slurm's begin time becomes the time at which it did so.
    """

    own_begin_s: float
    written_s: tuple[float, ...] = ()
    lifted_s: float | None = None

    def explains(self, begin_s: float, now_s: float) -> bool:
        """Whether a job has this begin time because of the rest."""
        return begin_s in self.written_s or (self.lifted_s is not None and self.lifted_s <= begin_s <= now_s)

    def with_begin(self, begin_s: float) -> _Rest:
        """The rest with this as the latest begin time of those written."""
        others = (one for one in self.written_s if one != begin_s)
        return _Rest(self.own_begin_s, (*others, begin_s)[-_KEPT:])


class Rests:
    """Jobs whose start the daemon, and not their owner, has delayed: only such a delay may be lifted early.

    They stay while they have the begin time that came of it, so that the delay counts as waiting.

    In a file beside that of the site factors: else a delay by a daemon that was killed would count as the job's own
    begin time. The first pass writes it, also if no start is delayed: `is_recorded` is whether an earlier daemon has
    left that file, so that no other delay is its.
    """

    def __init__(self, site_factor_file: Path) -> None:
        path = site_factor_file.with_name("delayed_starts.json")
        self._file = SavedState(path, dict[int, _Rest], "delays of paused jobs", "will wait for their end")
        saved = self._file.read()
        self.is_recorded = saved is not None
        self._saved: Mapping[int, _Rest] | None = saved
        self._by_job = saved or {}

    def own_begins_s(self, jobs: Iterable[SlurmJob], now_s: float) -> Mapping[int, float]:
        """The former begin time of each job whose present one was set by the daemon."""
        begins_s = {job.job_id: job.eligible_s for job in jobs if job.job_id in self._by_job}
        self._by_job = {
            job_id: self._by_job[job_id].with_begin(begin_s)
            for job_id, begin_s in begins_s.items()
            if begin_s is not None and self._by_job[job_id].explains(begin_s, now_s)
        }
        return {job_id: rest.own_begin_s for job_id, rest in self._by_job.items()}

    def note(self, changes: Iterable[Change], jobs: Mapping[int, SlurmJob], now_s: float) -> None:
        """Take in what is about to be written, and save it. A write error stops nothing."""
        by_job = dict(self._by_job)
        for change in changes:
            if isinstance(change, DelayStart) and (job := jobs.get(change.job_id)) is not None:
                own_s = 0.0 if waits_for_requeue_delay(job, now_s) else job.eligible_s or 0.0
                by_job[job.job_id] = by_job.get(job.job_id, _Rest(own_s)).with_begin(change.until_s)
            elif isinstance(change, StartAtOnce) and (rest := by_job.get(change.job_id)) is not None:
                by_job[change.job_id] = replace(rest, lifted_s=float(math.floor(now_s)))
        self._by_job = by_job
        if by_job != self._saved and self._file.write(by_job):
            self._saved = by_job
