"""One pass of the reconcile loop: observe, plan, compare, and change as little as possible."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from explsched.log import event
from explsched.strict_yaml import ConfigError
from sched_policy import catalog
from sched_policy.checked import checked_plan
from sched_policy.model import Job, JobState
from sched_policy.plan import Plan, Preemption
from sched_policy.policy import Policy
from sched_policy.queue_order import queue_order
from slurm_plugin.audit import Before, Reasons, apply
from slurm_plugin.audit_file import AuditTrail
from slurm_plugin.client.capabilities import Capabilities, SlurmVersion
from slurm_plugin.client.changes import (
    CancelJob,
    Change,
    ChangeFailure,
    RequeueJob,
    SetAdminComment,
    SetSiteFactor,
    Unanswered,
)
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import ControllerLoad, SlurmJob, SlurmNode
from slurm_plugin.config import Config
from slurm_plugin.observation.memory import Memory
from slurm_plugin.observation.observe import Observation, observe, without_nodes
from slurm_plugin.observation.policy_job import is_present
from slurm_plugin.observation.queue_positions import QueuePositions
from slurm_plugin.observation.run_times import EndedRuns, LearntRunTimes
from slurm_plugin.observation.site_factors import OwnFactors
from slurm_plugin.observation.spool import ProgressSpool
from slurm_plugin.observation.sweep_record import OPEN_MODE, PRIVATE_MODE, SweepRecord, ended_before
from slurm_plugin.steering.backpressure import BackfillGap, CycleTimes, Recalculations, most_written
from slurm_plugin.steering.beneficiaries import heirs, requeues_in_vain, without_vain_preemptions
from slurm_plugin.steering.grouping import withdrawal
from slurm_plugin.steering.leases import without_leases
from slurm_plugin.steering.pass_log import PassLog
from slurm_plugin.steering.places import OwnPlaces, by_priority, on_own_places, put_first, started_on_own_places
from slurm_plugin.steering.preemption import PreemptionTracker
from slurm_plugin.steering.reconcile import (
    SteeringLimits,
    beside_order,
    reduced_to_limits,
    reordered,
    restored,
    within_limits,
    without_own_factors,
    without_rests,
)

_LOG = logging.getLogger("explsched.controller")
_UNDONE = "part of the change was refused, so it is undone"
_STOPPED = "the daemon stops"
_SERVED = "jobs of its owner were requeued for it"
_NOT_SERVED = "no job of its owner was requeued for it after all"
_STRAY = "it is no longer steered"
_CYCLES = 2
"""Number of backfill cycles for which a job stays first after others were preempted for it."""


class Pass(Struct, frozen=True):
    """What one pass observed, decided and did."""

    seen: Observation
    plan: Plan
    changes: tuple[Change, ...]
    failures: tuple[ChangeFailure, ...]


class Controller:
    """Brings Slurm in line with the plans, pass after pass.

    Slurm is the database. In memory and in files it keeps only the preemptions underway, which site factors are ours,
    which queue positions have been used up, and run times of ended jobs. In memory only: the reports read so far, what
    `Memory` has, jobs whose comments Slurm refuses, and what need not be logged again.
    """

    def __init__(self, client: SlurmClient, config: Config) -> None:
        self._client = client
        self._config = config
        kept = config.order.site_factor_file  # and beside it
        self._tracker = PreemptionTracker(config.preemption_budget(), kept.with_name("preemptions.json"))
        self._log = PassLog()
        self._memory = Memory()
        self._has_adopted = False
        self._comment_refused: frozenset[int] = frozenset()  # jobs that run; each refusal may take slurmctld 5 s
        self._jobs: Mapping[int, SlurmJob] = {}  # of the last pass
        self._use_spool(config.progress.spool)
        self._record_mode = PRIVATE_MODE
        self._gap = BackfillGap(self.load)
        self._recalculations = Recalculations()
        self._cycles = CycleTimes(0.0, 0.0)
        self._priority_period_s = 0.0
        self._probed: tuple[SlurmVersion, str] | None = None
        self._own_factors = OwnFactors.of_daemon(kept)
        self._positions = QueuePositions(kept.with_name("lent_places.json"))
        self._waited = OwnPlaces()
        self._ended_runs = EndedRuns(kept.with_name("ended_runs.json"))
        self._run_times: LearntRunTimes | None = None
        self._trail = _trail(config)
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Take a new configuration, from the next pass on. If the spool hangs, it is asked anew.

        Raises, without a change, `ConfigError` for another site factor file, beside which the daemon keeps its state,
        and `PolicyError` if another package cannot build its policy from it.
        """
        if config.order.site_factor_file != self._own_factors.path:
            raise ConfigError(
                f"order.site_factor_file: expected {self._own_factors.path} until the daemon stops, found "
                f"{config.order.site_factor_file}; what it remembers lies there and beside it"
            )
        self._policy = catalog.build(config.policy, config.policy_options())
        if config.audit != self._config.audit:
            self._trail = _trail(config)
        if config.progress.spool != self._config.progress.spool:
            self._use_spool(config.progress.spool)
        else:
            self._ask_anew()
        learns = (config.run_times, config.slurm.timeout_s)
        if self._run_times is None or learns != (self._config.run_times, self._config.slurm.timeout_s):
            self._learn_by(config)
        self._config = config
        self._limits: SteeringLimits | None = None
        self._budget = config.preemption_budget()
        self._tracker.limits(self._budget)

    def _learn_by(self, config: Config) -> None:
        """Ask sacct by this configuration. What has been learnt is used until it answers."""
        former, section = self._run_times, config.run_times
        if former is not None:
            former.close()
        asked = (CliClient(config.slurm.timeout_s).accounting, section.history_days, section.refresh_s)
        self._run_times = LearntRunTimes(*asked, former) if section.history_days else None

    def _use_spool(self, spool: Path) -> None:
        """Read this spool from the beginning, which may take many passes."""
        self._spool = ProgressSpool(spool)
        self._saves = ProgressSpool(spool)
        self._sweep_record = SweepRecord(spool)

    def _ask_anew(self) -> None:
        """Wait no more for calls that hang. What has been read of the spool is kept."""
        self._spool = self._spool.without_hung_call()
        self._saves = self._saves.without_hung_call()
        self._sweep_record = self._sweep_record.without_hung_call()

    def use(self, client: SlurmClient) -> None:
        """Ask Slurm by this client from the next pass on."""
        self._client = client

    def decide(self, now_s: float) -> Pass:
        """Observe and plan, but change nothing. Raises `PolicyError` if the policy fails or its plan is invalid."""
        found = self._client.look()
        found = replace(found, jobs=self._memory.with_reasons(found.jobs, now_s))
        limits = self._limits = self._limits or self._probe(found.nodes)
        self._adopt(found.jobs, now_s)
        self._recalculations.note(found.jobs, now_s)
        self._own_factors.take_in(found.jobs)
        others = self._own_factors.others(found.jobs)
        self._positions.take_in({job.job_id: job for job in found.jobs})
        used = self._positions.used(found.jobs, now_s, self._config.order.max_wait_s)
        remembered = replace(
            self._memory.remembered(found.jobs, found.reservations, now_s),
            asked_to_leave=self._tracker.underway,
            requeue_refused=self._tracker.requeue_refused,
            served_s=self._tracker.served_s,
            others_factors={
                job_id: others.get(job_id, 0) + used.get(job_id, 0) for job_id in others.keys() | used.keys()
            },
            ended_runs=self._ended_runs.known({job.job_id for job in found.jobs if is_present(job)}, now_s),
        )
        seen = observe(
            found,
            self._spool,
            now_s,
            self._config.slurm.partitions,
            remembered,
            self._budget,
            self._config.order,
            self._config.preemption.reach,
            self._run_times,
        )
        if charged := self._positions.charged:
            self._positions.give_back(charged & started_on_own_places(seen, self._waited))
        self._ended_runs.note(seen.snapshot)
        self._jobs = seen.jobs
        self._memory.note_jobs(seen.snapshot, {job_id: record.uid for job_id, record in seen.jobs.items()})
        plan = without_vain_preemptions(checked_plan(self._policy, seen.snapshot), seen)
        plan = within_limits(plan, seen)
        if isinstance(self._policy, Policy) and self._policy.resize is not None:
            plan = reduced_to_limits(plan, seen)
        self._memory.note_plan(seen.snapshot, plan.held_back)
        self._comment_refused &= {job_id for job_id, record in seen.jobs.items() if record.state != "PENDING"}
        planned = (*reordered(plan, seen, limits), *_given_back(seen, others, limits.order.max_per_pass))
        order = put_first(self._served_of(seen, now_s), seen, planned)
        interruptions = self._interruptions(plan, seen, order)
        order = put_first(self._served_of(seen, now_s), seen, order)  # they may serve further jobs
        beside = self._without_refused_comments(beside_order(plan, seen, limits.slack_s, order))
        return Pass(seen, plan, (*order, *beside, *interruptions), ())

    def reconcile(self, now_s: float) -> Pass:
        """Observe, plan, and change Slurm. Raises `SlurmError` if Slurm cannot be reached at all."""
        try:
            decided = self.decide(now_s)
            timely = self._timely(decided)
            postponed = _reordered(decided.changes) - _reordered(timely.changes)
            return self._carried_out(timely, postponed, now_s)
        finally:
            self._tracker.settle()

    def _carried_out(self, decided: Pass, postponed: frozenset[int], now_s: float) -> Pass:
        self._own_factors.note(decided.changes, decided.seen.jobs)
        self._memory.note_changes(decided.changes, decided.seen.jobs, now_s)
        beneficiaries = self._tracker.beneficiaries
        self._note_positions(decided, beneficiaries, postponed)
        self._positions.save()
        self._ended_runs.save()
        before = Before.of(decided.seen.jobs, decided.seen.reservations)
        reasons = Reasons.of(self._config.policy, decided.plan, decided.changes)
        lifted = dict.fromkeys(self._served_of(decided.seen, now_s), _SERVED)
        reasons = replace(reasons, order={**reasons.order, **lifted, **dict.fromkeys(_strays(decided.seen), _STRAY)})
        first, leaving = _requeues_apart(decided.changes)
        failures = self._apply(first, before, reasons, now_s)
        if leaving:
            ended = self._ended_meanwhile({change.job_id for change in leaving}, now_s)
            self._tracker.leave_alone(ended)
            dropped = [change for change in leaving if change.job_id in ended]
            decided = replace(decided, changes=tuple(c for c in decided.changes if c not in dropped))
            leaving = tuple(change for change in leaving if change not in dropped)
            failures += self._apply(leaving, before, reasons, now_s)
        lowered = _as_before(lifted.keys() - self._served_of(decided.seen, now_s), decided)
        failures += self._apply(lowered, before, Reasons.all_for(_NOT_SERVED), now_s) if lowered else ()
        refused = _reordered(one.change for one in failures if not isinstance(one, Unanswered))
        if refused or lowered:
            self._note_positions(decided, beneficiaries, postponed | refused | _reordered(lowered))
        if undo := restored(failures, decided.seen.jobs):
            failures += self._apply(undo, before, Reasons.all_for(_UNDONE), now_s)
        self._memory.note_failures(failures, now_s)
        self._log.note(decided.seen, decided.plan, decided.changes, failures)
        self._comment_refused |= {
            failure.change.job_id
            for failure in failures
            if isinstance(failure.change, SetAdminComment) and not isinstance(failure, Unanswered)
        }
        self._note_sweeps(decided, failures)
        return Pass(decided.seen, decided.plan, decided.changes, failures)

    def _note_positions(
        self, decided: Pass, beneficiaries: Mapping[int, int | None], unwritten: frozenset[int]
    ) -> None:
        if self._limits is None or self._limits.scope == "partition":
            return
        ranked, most = queue_order(decided.plan, decided.seen.snapshot), self._limits.order.max_per_pass
        self._positions.note(ranked, decided.seen, decided.changes, most, beneficiaries, unwritten)
        self._waited = on_own_places(decided.seen.snapshot)

    def _apply(
        self, changes: Sequence[Change], before: Before, reasons: Reasons, now_s: float
    ) -> tuple[ChangeFailure, ...]:
        failures = apply(self._client, self._trail, changes, before, reasons, now_s)
        self._tracker.answered(changes, failures)
        return failures

    def withdraw(self, now_s: float) -> tuple[ChangeFailure, ...]:
        """Release nodes when the daemon stops: unpin waiting jobs and delete leases.

        No job stays above other users' jobs for a temporary reason either; exchanged positions stay.
        """
        found = self._client.look()
        records = {job.job_id: job for job in found.jobs}
        before = Before.of(records, found.reservations)
        served = self._served(records, now_s)
        first = [job for job in found.jobs if job.job_id in served]
        back = without_own_factors(first, self._own_factors.others(first))
        rests = without_rests(found.jobs, self._memory.own_begins_s(found.jobs, now_s), now_s)
        wanted = (*withdrawal(found.jobs), *without_leases(found), *rests, *back)
        return apply(self._client, self._trail, wanted, before, Reasons.all_for(_STOPPED), now_s)

    @property
    def has_asked(self) -> bool:
        """Whether any job has been asked to save and leave."""
        return bool(self._tracker.underway)

    @property
    def waits_for_gap(self) -> bool:
        """Whether the last pass has left changes for a gap between backfill cycles."""
        return self._gap.is_awaited

    def is_awaited(self, now_s: float) -> bool:
        """Whether the event that the next pass waits for has happened: a job has left, or a backfill cycle is over.

        If a gap is awaited, Slurm is asked, which may raise `SlurmError`.
        """
        if self._gap.has_opened(self._cycles):
            return True
        asked = [self._jobs[job_id] for job_id in self._tracker.underway & self._jobs.keys()]
        return bool(asked) and self._tracker.is_any_ready(self._saves.read_of(asked, now_s), now_s)

    @property
    def trail(self) -> AuditTrail:
        """The audit log of all changes."""
        return self._trail

    def capabilities(self) -> Capabilities:
        """What this Slurm can do, and is configured to. Raises `SlurmError`.

        A restarted slurmctld may be of another release or have other settings, so the next pass asks again.
        """
        found = self._asked()
        if self._limits is not None and (found.version, found.booted) != self._probed:
            self._limits = None
        return found

    def _asked(self) -> Capabilities:
        found = self._client.capabilities()
        self._record_mode = PRIVATE_MODE if "jobs" in found.private_data else OPEN_MODE
        return found

    def load(self) -> ControllerLoad:
        """How busy slurmctld is."""
        return self._client.load()

    def _adopt(self, jobs: Sequence[SlurmJob], now_s: float) -> None:
        """Read, once, which trainings ended under an earlier daemon."""
        if not self._has_adopted and (notes := self._sweep_record.read()) is not None:
            scope = self._config.order.scope
            self._memory.adopt(ended_before(notes, jobs, self._spool, scope, now_s))
            self._has_adopted = True

    def _without_refused_comments(self, wanted: Iterable[Change]) -> tuple[Change, ...]:
        """Drop comments of running jobs that Slurm has refused once: it would refuse them again, after 5 s each.

        Without accounting that concerns each job that started while it was pinned: Slurm takes the pin for a resize.
        """
        refused = self._comment_refused
        return tuple(
            change for change in wanted if not (isinstance(change, SetAdminComment) and change.job_id in refused)
        )

    def _note_sweeps(self, decided: Pass, failures: Sequence[ChangeFailure]) -> None:
        """Record the trainings of sweeps for `sexplsched sweep`. Only the daemon gets here, not a dry run."""
        seen = decided.seen
        refused = [failure.change for failure in failures]
        done = [change for change in decided.changes if change not in refused]
        now_s = seen.snapshot.now_s
        self._sweep_record.note(seen.snapshot.jobs, done, decided.plan, seen.jobs, now_s, self._record_mode)

    def _probe(self, nodes: Sequence[SlurmNode]) -> SteeringLimits:
        """What the configuration and this Slurm allow, determined once per configuration and slurmctld."""
        for name in without_nodes(self._config.slurm.partitions, nodes):
            event(_LOG, logging.WARNING, "slurm.partitions names a partition that has no nodes", partition=name)
        found = self._asked()
        self._probed = (found.version, found.booted)
        absent = [capability.name for capability, there in found if not there]
        event(_LOG, logging.INFO, "Slurm", version=str(found.version), without=", ".join(absent) or "nothing")
        self._cycles = CycleTimes(found.backfill_yields_after_s, found.backfill_interval_s)
        self._priority_period_s = found.priority_period_s
        limits = SteeringLimits.of(self._config)
        most = most_written(found.rate_limit(), self._config.interval_s, limits.order.max_per_pass)
        return replace(limits, order=replace(limits.order, max_per_pass=most))

    def _timely(self, decided: Pass) -> Pass:
        """The changes that need not wait for a gap between backfill cycles; a later pass decides about the others."""
        timely = decided.changes
        if timely:
            timely = self._gap.of_pass(self._cycles).timely(timely, decided.seen.jobs)
        waiting = len(decided.changes) - len(timely)
        self._gap.note(waiting)
        if waiting:
            event(_LOG, logging.INFO, "postponed, backfill is running or about to run", changes=waiting)
        return replace(decided, changes=timely)

    def _ended_meanwhile(self, job_ids: AbstractSet[int], now_s: float) -> frozenset[int]:
        """Jobs that have reported their end since the pass observed them, which Slurm may not have noticed yet.

        A requeue would run them again, however long this pass has taken so far.
        """
        told = self._saves.read_of((self._jobs[job_id] for job_id in job_ids), now_s)
        ended = frozenset(job_id for job_id, progress in told.items() if progress.ended)
        for job_id in sorted(ended):
            event(_LOG, logging.INFO, "not requeued, its work is done", job=job_id)
        return ended

    def _served(self, records: Mapping[int, SlurmJob], now_s: float) -> frozenset[int]:
        """Jobs that should start in the next cycles, because others of their owner have been requeued for them.

        In scope `partition` jobs own no position: jobs before such a job are there by the policy's own order.
        """
        if self._config.order.scope == "partition":
            return frozenset()
        return self._tracker.being_served(records, now_s, _CYCLES * self._cycles.rests_s)

    def _served_of(self, seen: Observation, now_s: float) -> AbstractSet[int]:
        return self._served(seen.jobs, now_s) - _strays(seen)

    def _interruptions(self, plan: Plan, seen: Observation, order: Iterable[SetSiteFactor]) -> Sequence[Change]:
        jobs = {job.job_id: job for job in seen.snapshot.jobs}
        leaving = (*plan.preemptions, *resized_while_running(plan, jobs))
        factors = {change.job_id: change.site_factor for change in order}
        now_s = seen.snapshot.now_s
        self._tracker.serve_in_order(by_priority(seen, factors), jobs, seen.progress, now_s)
        # Its owner may have moved a job out of our reach: no room is made for it any more.
        asked = {job_id: going for job_id, going in self._tracker.victims.items() if job_id in jobs}
        ready = self._tracker.ready_for(seen.progress, now_s)
        ready = {job_id: going for job_id, going in ready.items() if job_id in asked}
        in_vain = heirs(plan, seen, asked, requeues_in_vain(plan, seen, asked, factors, ready), factors)
        clear_from_s = self._recalculations.clear_from_s(now_s, self._priority_period_s, self._cycles.rests_s)
        stopped = dict.fromkeys(stop.job_id for stop in plan.stops)
        steps = self._tracker.advance(
            leaving, jobs, seen.jobs, seen.progress, seen.preempted, now_s, in_vain, clear_from_s, stopped.keys()
        )
        # A cancelled job holds its GPUs until it is gone.
        return (*steps, *(CancelJob(n) for n in stopped if jobs[n].state is not JobState.COMPLETING))


def _given_back(seen: Observation, others: Mapping[int, int], most: int) -> tuple[SetSiteFactor, ...]:
    """Remove our part of the site factor from waiting jobs that are no longer steered, at most `most` in a pass.

    They were moved to a partition that is not steered, or no longer ask for GPUs. Their raised priority would put them
    above other users' jobs for good. `others` are the parts of site factors that others have set.
    """
    strays = (seen.jobs[job_id] for job_id in sorted(_strays(seen)))
    return tuple(without_own_factors(strays, others))[:most]


def _reordered(changes: Iterable[Change]) -> frozenset[int]:
    """The jobs that get new site factors by these changes."""
    return frozenset(change.job_id for change in changes if isinstance(change, SetSiteFactor))


def _as_before(job_ids: AbstractSet[int], decided: Pass) -> tuple[SetSiteFactor, ...]:
    """What takes back the site factors that a pass has given these jobs."""
    given = _reordered(decided.changes) & job_ids
    return tuple(SetSiteFactor(job_id, decided.seen.jobs[job_id].site_factor or 0) for job_id in sorted(given))


def _strays(seen: Observation) -> AbstractSet[int]:
    """Jobs that are not steered."""
    return seen.jobs.keys() - {job.job_id for job in seen.snapshot.jobs}


def _requeues_apart(
    changes: Sequence[Change],
) -> tuple[tuple[Change, ...], tuple[RequeueJob | SetAdminComment, ...]]:
    """The other changes, and requeues with the records of their cost."""
    requeued = {change.job_id for change in changes if isinstance(change, RequeueJob)}
    leaving = tuple(
        change for change in changes if isinstance(change, RequeueJob | SetAdminComment) and change.job_id in requeued
    )
    return tuple(change for change in changes if change not in leaving), leaving


def _trail(config: Config) -> AuditTrail:
    return AuditTrail(config.audit.file, config.audit.max_mib, config.audit.kept)


def resized_while_running(plan: Plan, jobs: Mapping[int, Job]) -> Iterator[Preemption]:
    """Preemptions of running jobs that should be resized, and leave for that alone; they get it while they wait."""
    leaving = {preemption.job_id for preemption in plan.preemptions}
    for resize in plan.resizes:
        if jobs[resize.job_id].state is JobState.RUNNING and resize.job_id not in leaving:
            yield Preemption(resize.job_id, resize.reason)
