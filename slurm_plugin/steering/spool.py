"""The directory into which jobs report, as the daemon reads it, and its record of sweeps there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from explsched.log import event
from sched_policy.plan import Plan
from slurm_plugin.client.changes import Change, ChangeFailure
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.policy_job import exploration_of, is_present
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.standing import Scope
from slurm_plugin.observation.sweep_record import SweepRecord, ended_before
from slurm_plugin.observation.trainings import SeenTraining

_LOG = logging.getLogger("explsched.controller")


class DaemonSpool:
    """The readers of one spool. `reports` is for passes: it is read from the beginning, which may take many of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reports = ProgressSpool(path)
        self._saves = ProgressSpool(path)
        self._sweep_record = SweepRecord(path)
        self._unmet: set[tuple[int, str | None]] | None = None  # sweeps of an earlier daemon, by uid and name

    def ask_anew(self) -> None:
        """Wait no more for calls that hang. What has been read is kept."""
        self.reports = self.reports.without_hung_call()
        self._saves = self._saves.without_hung_call()
        self._sweep_record = self._sweep_record.without_hung_call()

    def latest(self, jobs: Iterable[SlurmJob], now_s: float) -> Mapping[int, JobProgress]:
        """What these jobs alone have reported by now, between two passes or within one."""
        return self._saves.read_of(jobs, now_s)

    def ended_meanwhile(self, jobs: Iterable[SlurmJob], now_s: float) -> frozenset[int]:
        """Jobs that have reported their end since the pass observed them, which Slurm may not have noticed yet.

        A requeue would run them again, however long this pass has taken so far.
        """
        ended = frozenset(job_id for job_id, progress in self.latest(jobs, now_s).items() if progress.ended)
        for job_id in sorted(ended):
            event(_LOG, logging.INFO, "not requeued, its work is done", job=job_id)
        return ended

    def ended_before(self, jobs: Sequence[SlurmJob], scope: Scope, now_s: float) -> Mapping[int, SeenTraining]:
        """The trainings that ended under an earlier daemon, of sweeps that this one meets for the first time.

        If the record or their reports cannot be read they follow in a later pass.
        """
        notes = self._sweep_record.read()
        if notes is None:
            return {}
        if self._unmet is None:
            self._unmet = {(note.uid, note.sweep) for note in notes}
        if not self._unmet:
            return {}
        there = {(job.uid, told.sweep) for job in jobs if is_present(job) and (told := exploration_of(job))}
        met = self._unmet & there
        if not met:
            return {}
        of_met = [note for note in notes if (note.uid, note.sweep) in met]
        reader = ProgressSpool(self._path)  # `reports` would forget the jobs that it is not asked for
        found = ended_before(of_met, jobs, reader, scope, now_s)
        if not reader.fault:
            self._unmet -= met
        return found

    def note_sweeps(
        self, seen: Observation, plan: Plan, changes: Sequence[Change], failures: Iterable[ChangeFailure], mode: int
    ) -> None:
        """Record the trainings of sweeps for `sexplsched sweep`. Only the daemon gets here, not a dry run."""
        refused = [failure.change for failure in failures]
        done = [change for change in changes if change not in refused]
        self._sweep_record.note(seen.snapshot.jobs, done, plan, seen.jobs, seen.snapshot.now_s, mode)
