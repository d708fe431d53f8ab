"""Why jobs wait, where only our own writes have hidden it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from slurm_plugin.client.changes import Change, SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.client.wait_reason import WaitReason

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
                if job.waits_for is not WaitReason.UNTESTED:
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
