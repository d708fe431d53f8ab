"""Why jobs wait, where only our own writes have hidden it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    unless the job has been changed or `REASON_HOLDS_S` have passed. The limit of an array does not where a task has
    ended: the write lets Slurm test the array again, once for each task that it starts.
    """

    def __init__(self) -> None:
        self._last: dict[int, _LastReason] = {}
        self._tested_anew: dict[int, int] = {}

    @property
    def tested_anew(self) -> Mapping[int, int]:
        """Of arrays the number of waiting tasks with which we have last let Slurm test them again."""
        return self._tested_anew

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
        there = {job.job_id for job in found} if self._tested_anew else set()
        self._tested_anew = {job_id: tasks for job_id, tasks in self._tested_anew.items() if job_id in there}
        return tuple(found)

    def note(self, changes: Iterable[Change], jobs: Mapping[int, SlurmJob]) -> None:
        """Take in what is about to be written."""
        for job_id in (change.job_id for change in changes if isinstance(change, SetSiteFactor)):
            if job_id in self._last:
                tasks = jobs[job_id].array_tasks
                is_to_be_tested = jobs[job_id].is_outdated and self._tested_anew.get(job_id) != tasks
                self._last[job_id] = self._last[job_id]._replace(hidden=not is_to_be_tested)
                if is_to_be_tested:
                    self._tested_anew[job_id] = tasks

    def _is_hidden(self, job: SlurmJob, now_s: float) -> bool:
        last = self._last.get(job.job_id)
        if last is None or not last.hidden or now_s - last.time_s > REASON_HOLDS_S:
            return False
        return job.priority > 0 and _asks(job) == _asks(last.record)


def _asks(job: SlurmJob) -> SlurmJob:
    """The job's record without the fields that change with its place in the queue and with time."""
    return replace(job, reason="", priority=0, site_factor=None, natives=(), fair_share=None, start_s=None, age_lag=0)
