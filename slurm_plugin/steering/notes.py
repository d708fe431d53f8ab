"""What passes note for later ones: in memory, and in files beside that of the site factors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from slurm_plugin.client.changes import (
    CancelJob,
    Change,
    ChangeFailure,
    CreateReservation,
    JobChange,
    NotNow,
    RequeueJob,
    SetAdminComment,
    SetSiteFactor,
    SignalJob,
    Unanswered,
)
from slurm_plugin.client.records import ClusterRecords, SlurmJob
from slurm_plugin.observation.memory import Memory, Remembered
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.policy_job import is_present
from slurm_plugin.observation.queue_positions import FILE as POSITIONS
from slurm_plugin.observation.queue_positions import QueuePositions
from slurm_plugin.observation.rests import Rests
from slurm_plugin.observation.run_times import EndedRuns
from slurm_plugin.observation.site_factors import OwnFactors
from slurm_plugin.observation.standing import leased_job
from slurm_plugin.steering.backfill_replay import OwnPlaces, on_own_places, started_on_own_places
from slurm_plugin.steering.reconcile import SteeringLimits


class Notes:
    """Brought up to date by each pass in the order of the methods here.

    In files: which site factors and which delays are ours, which queue positions have been used up, and run times of
    ended jobs. In memory only: `memory`, and jobs whose comments Slurm refuses.
    """

    def __init__(self, file: Path) -> None:
        self.memory = Memory()
        self._own_factors = OwnFactors.of_daemon(file)
        self._positions = QueuePositions(file.with_name(POSITIONS))
        self._rests = Rests(file)
        self._waited = OwnPlaces()
        self._ended_runs = EndedRuns(file.with_name("ended_runs.json"))
        self._comment_refused: frozenset[int] = frozenset()  # jobs that run; each refusal may take slurmctld 5 s

    @property
    def file(self) -> Path:
        """The file with our site factors."""
        return self._own_factors.path

    def remembered(self, found: ClusterRecords, max_wait_s: float, now_s: float) -> Remembered:
        """What earlier passes know of jobs and reservations as they are now."""
        self._own_factors.take_in(found.jobs)
        others = self._own_factors.others(found.jobs)
        self._positions.take_in({job.job_id: job for job in found.jobs})
        return replace(
            self.memory.remembered(found.jobs, found.reservations, now_s),
            others_factors=others,
            base_factors=self._positions.base_factors(found.jobs, others, now_s, max_wait_s),
            throttled_factors=self._own_factors.throttled(found.jobs),
            rests=self.own_begins_s(found.jobs, now_s),
            ended_runs=self._ended_runs.known({job.job_id for job in found.jobs if is_present(job)}, now_s),
        )

    def others_factors(self, jobs: Iterable[SlurmJob]) -> Mapping[int, int]:
        """The part of each site factor that others have set, where there is one."""
        return self._own_factors.others(jobs)

    def own_begins_s(self, jobs: Iterable[SlurmJob], now_s: float) -> Mapping[int, float]:
        """The own begin time of each job whose start the daemon has delayed."""
        return self._rests.own_begins_s(jobs, now_s)

    def note_seen(self, seen: Observation) -> None:
        """Take in what a pass has observed."""
        if charged := self._positions.charged:
            self._positions.give_back(charged & started_on_own_places(seen, self._waited))
        self._ended_runs.note(seen.snapshot)
        self.memory.note_jobs(seen.snapshot, {job_id: record.uid for job_id, record in seen.jobs.items()})
        self._comment_refused &= {job_id for job_id, record in seen.jobs.items() if record.state != "PENDING"}

    def without_refused_comments(self, wanted: Iterable[Change]) -> tuple[Change, ...]:
        """Drop comments of running jobs that Slurm has refused once: it would refuse them again, after 5 s each.

        Without accounting that concerns each job that started while it was pinned: Slurm takes the pin for a resize.
        """
        refused = self._comment_refused
        return tuple(
            change for change in wanted if not (isinstance(change, SetAdminComment) and change.job_id in refused)
        )

    def without_closed(self, changes: Iterable[Change], now_s: float) -> tuple[Change, ...]:
        """Drop updates, and leases, of jobs that Slurm does not update for now."""
        closed = self.memory.closed(now_s)
        return tuple(change for change in changes if _updated(change) not in closed)

    def note_changes(self, changes: Sequence[Change], jobs: Mapping[int, SlurmJob], now_s: float) -> None:
        """Take in what is about to be written."""
        self._own_factors.note(changes, jobs)
        self._rests.note(changes, jobs, now_s)
        self.memory.note_changes(changes, jobs)

    def note_positions(
        self,
        ranked: Sequence[int],
        seen: Observation,
        changes: Sequence[Change],
        limits: SteeringLimits,
        beneficiaries: Mapping[int, int | None],
        unwritten: frozenset[int],
    ) -> None:
        """Take in who gets whose position by these changes, as `QueuePositions.note`. Not in scope `partition`."""
        if limits.scope != "partition":
            most = limits.order.max_per_pass
            self._positions.note(ranked, seen, changes, most, beneficiaries, unwritten)
            self._waited = on_own_places(seen.snapshot)

    def save(self) -> None:
        """Save the records; call it before the changes are sent to Slurm. A write error stops nothing."""
        self._positions.save()
        self._ended_runs.save()

    def note_failures(self, failures: Iterable[ChangeFailure], now_s: float) -> None:
        """Take in which changes Slurm has refused, or has not answered."""
        failures = tuple(failures)
        self.memory.note_failures(failures, now_s)
        self._own_factors.note_failed(one.change for one in failures if isinstance(one.change, SetSiteFactor))
        self._comment_refused |= {
            failure.change.job_id
            for failure in failures
            if isinstance(failure.change, SetAdminComment) and not isinstance(failure, NotNow | Unanswered)
        }


def _updated(change: Change) -> int | None:
    """The job that is updated, or gets a lease; signals, cancellations and requeues are no updates."""
    if isinstance(change, CreateReservation):
        return leased_job(change.name)
    if isinstance(change, JobChange) and not isinstance(change, SignalJob | CancelJob | RequeueJob):
        return change.job_id
    return None
