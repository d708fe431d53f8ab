"""One pass of the reconcile loop: observe, plan, compare, and change as little as possible."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from explsched.errors import SlurmError
from explsched.log import event
from explsched.strict_yaml import ConfigError
from sched_policy import catalog
from sched_policy.plan import Plan
from slurm_plugin.audit import Before, Reasons, apply
from slurm_plugin.audit_file import AuditTrail
from slurm_plugin.client.capabilities import Capabilities, SlurmVersion
from slurm_plugin.client.changes import Change, ChangeFailure, RequeueJob, SetAdminComment, SetSiteFactor, Unanswered
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.protocol import SlurmClient
from slurm_plugin.client.records import ControllerLoad, SlurmJob, SlurmNode
from slurm_plugin.config import Config
from slurm_plugin.observation.observe import Observation, observe, without_nodes
from slurm_plugin.observation.run_times import LearntRunTimes
from slurm_plugin.observation.sweep_record import OPEN_MODE, PRIVATE_MODE
from slurm_plugin.steering.backpressure import BackfillGap, CycleTimes, Recalculations, most_written
from slurm_plugin.steering.decide import Kept, changes, planned
from slurm_plugin.steering.grouping import withdrawal
from slurm_plugin.steering.leases import without_leases
from slurm_plugin.steering.notes import Notes
from slurm_plugin.steering.pass_log import PassLog
from slurm_plugin.steering.preemption import FILE as PREEMPTIONS
from slurm_plugin.steering.preemption import PreemptionTracker
from slurm_plugin.steering.reconcile import (
    SteeringLimits,
    restored,
    strays,
    without_own_factors,
    without_rests,
)
from slurm_plugin.steering.spool import DaemonSpool

_LOG = logging.getLogger("explsched.controller")
_UNDONE = "part of the change was refused, so it is undone"
_STOPPED = "the daemon stops"
_SERVED = "jobs of its owner were requeued for it"
_NOT_SERVED = "no job of its owner was requeued for it after all"
_STRAY = "it is no longer steered"
_THROTTLED = "its array's limit lets no further task start now, so the place that it was lent is used up"
_TESTED_ANEW = "a task of its array has ended, so Slurm is to test whether the next one may start"
_CYCLES = 2
"""Number of backfill cycles for which a job stays first after others were preempted for it."""


class Pass(Struct, frozen=True):
    """What one pass observed, decided and did; `ranked` is the `wanted_order` of its plan."""

    seen: Observation
    plan: Plan
    ranked: Sequence[int]
    changes: tuple[Change, ...]
    failures: tuple[ChangeFailure, ...]


class Controller:
    """Brings Slurm in line with the plans, pass after pass.

    Slurm is the database. In memory and in files it keeps only the preemptions underway and `Notes`. In memory only:
    the reports read so far, and what need not be logged again.
    """

    def __init__(self, client: SlurmClient, config: Config) -> None:
        self._client = client
        self._config = config
        self._notes = Notes(config.order.site_factor_file)
        saved = self._notes.file.with_name(PREEMPTIONS)
        self._tracker = PreemptionTracker(config.preemption, saved)
        self._log = PassLog()
        self._jobs: Mapping[int, SlurmJob] = {}  # of the last pass
        self._spool = DaemonSpool(config.progress.spool)
        self._record_mode = PRIVATE_MODE
        self._gap = BackfillGap(self.load)
        self._recalculations = Recalculations()
        self._cycles = CycleTimes(0.0, 0.0)
        self._priority_period_s = 0.0
        self._run_times: LearntRunTimes | None = None
        self._trail = _trail(config)
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Take a new configuration, from the next pass on. If the spool hangs, it is asked anew.

        Raises, without a change, `ConfigError` for another site factor file, beside which the daemon keeps its state,
        and `PolicyError` if another package cannot build its policy from it.
        """
        if config.order.site_factor_file != self._notes.file:
            raise ConfigError(
                f"order.site_factor_file: expected {self._notes.file} until the daemon stops, found "
                f"{config.order.site_factor_file}; what it remembers lies there and beside it"
            )
        self._policy = catalog.build(config.policy, config.policy_options())
        if config.audit != self._config.audit:
            self._trail = _trail(config)
        if config.progress.spool != self._config.progress.spool:
            self._spool = DaemonSpool(config.progress.spool)
        else:
            self._spool.ask_anew()
        learns = (config.run_times, config.slurm.timeout_s)
        if self._run_times is None or learns != (self._config.run_times, self._config.slurm.timeout_s):
            self._learn_by(config)
        self._config = config
        self._limits = SteeringLimits.of(config)
        self._probed: tuple[SlurmVersion, str] | None = None
        self._tracker.limits(config.preemption)

    def _learn_by(self, config: Config) -> None:
        """Ask sacct by this configuration. What has been learnt is used until it answers."""
        former, section = self._run_times, config.run_times
        if former is not None:
            former.close()
        asked = (CliClient(config.slurm.timeout_s).accounting, section.history_days, section.refresh_s)
        self._run_times = LearntRunTimes(*asked, former) if section.history_days else None

    def use(self, client: SlurmClient) -> None:
        """Ask Slurm by this client from the next pass on."""
        self._client = client

    def decide(self, now_s: float, interval_s: float = 0.0) -> Pass:
        """Observe and plan, but change nothing in Slurm. The steps of preemptions count as made until they are settled.

        `interval_s` is the present time between passes, if they are farther apart than configured. Raises
        `PolicyError` if the policy fails or its plan is invalid.
        """
        found = self._client.look()
        found = replace(found, jobs=self._notes.memory.completed(found.jobs, now_s))
        if self._probed is None:
            self._probe(found.nodes)
        self._notes.memory.adopt(self._spool.ended_before(found.jobs, self._config.order.scope, now_s))
        self._recalculations.note(found.jobs, now_s)
        self._tracker.begin(
            now_s,
            max(interval_s, self._config.interval_s),
            self._notes.memory.closed(now_s),
            self._recalculations.clear_from_s(now_s, self._priority_period_s, self._cycles.rests_s),
        )
        remembered = replace(
            self._notes.remembered(found, self._config.order.max_wait_s, now_s),
            asked_to_leave=self._tracker.underway,
            requeue_refused=self._tracker.requeue_refused,
            served_s=self._tracker.served_s,
        )
        seen = observe(found, self._spool.reports, now_s, self._config, remembered, self._run_times)
        self._notes.note_seen(seen)
        self._jobs = seen.jobs
        plan = planned(self._policy, seen, {*self._tracker.beneficiaries.values(), *self._served(seen.jobs, now_s)})
        self._notes.memory.note_plan(seen.snapshot, plan.held_back)
        kept = Kept(
            tracker=self._tracker,
            others_factors=seen.known.others_factors,
            served=lambda seen: self._served_of(seen, now_s),
        )
        wanted = changes(plan, seen, self._limits, kept)
        wanted = replace(wanted, beside=self._notes.without_refused_comments(wanted.beside))
        return Pass(seen, plan, wanted.ranked, wanted.all, ())

    def reconcile(self, now_s: float, interval_s: float = 0.0) -> Pass:
        """Observe, plan (as `decide`), and change Slurm. Raises `SlurmError` if Slurm cannot be reached at all."""
        try:
            decided = self.decide(now_s, interval_s)
            timely = self._timely(replace(decided, changes=self._notes.without_closed(decided.changes, now_s)))
            postponed = _reordered(decided.changes) - _reordered(timely.changes)
            return self._carried_out(timely, postponed, now_s)
        finally:
            self._tracker.settle()

    def _carried_out(self, decided: Pass, postponed: frozenset[int], now_s: float) -> Pass:
        seen, plan = decided.seen, decided.plan
        self._notes.note_changes(decided.changes, seen.jobs, now_s)
        beneficiaries = self._tracker.beneficiaries
        self._notes.note_positions(decided.ranked, seen, decided.changes, self._limits, beneficiaries, postponed)
        self._notes.save()
        before = Before.of(seen.jobs, seen.cluster.reservations)
        reasons = Reasons.of(self._config.policy, plan, decided.changes)
        lifted = dict.fromkeys(self._served_of(seen, now_s), _SERVED)
        apart = dict.fromkeys(strays(seen), _STRAY)
        if self._config.order.scope != "partition":
            arrays = (job for job in seen.jobs.values() if job.is_throttled)
            apart |= {job.job_id: _TESTED_ANEW if job.is_outdated else _THROTTLED for job in arrays}
        reasons = replace(reasons, order={**reasons.order, **lifted, **apart})
        first, leaving = _requeues_apart(decided.changes)
        failures = self._apply(first, before, reasons, now_s)
        if leaving:
            going = {change.job_id: seen.jobs[change.job_id] for change in leaving}
            ended = self._spool.ended_meanwhile(going.values(), now_s)
            self._tracker.leave_alone(ended)
            records = [c for c in leaving if isinstance(c, SetAdminComment) and c.job_id not in ended]
            unrecorded = self._apply(records, before, reasons, now_s)
            kept = ended | self._tracker.keep_unrecorded(unrecorded, now_s)
            requeues = [c for c in leaving if isinstance(c, RequeueJob) and c.job_id not in kept]
            failures += (*unrecorded, *self._apply(requeues, before, reasons, now_s))
            sent = {*records, *requeues}
            decided = replace(decided, changes=tuple(c for c in decided.changes if c not in leaving or c in sent))
        lowered = _as_before(lifted.keys() - self._served_of(seen, now_s), decided)
        failures += self._apply(lowered, before, Reasons.all_for(_NOT_SERVED), now_s)
        refused = _reordered(one.change for one in failures if not isinstance(one, Unanswered))
        if refused or lowered:
            unwritten = postponed | refused | _reordered(lowered)
            self._notes.note_positions(decided.ranked, seen, decided.changes, self._limits, beneficiaries, unwritten)
        failures += self._apply(restored(failures, seen.jobs), before, Reasons.all_for(_UNDONE), now_s)
        self._log.note(seen, plan, decided.changes, failures)
        self._spool.note_sweeps(seen, plan, decided.changes, failures, self._record_mode)
        return replace(decided, failures=failures)

    def _apply(
        self, changes: Sequence[Change], before: Before, reasons: Reasons, now_s: float
    ) -> tuple[ChangeFailure, ...]:
        try:
            failures = apply(self._client, self._trail, changes, before, reasons, now_s)
        except SlurmError as error:
            self._notes.note_failures([Unanswered(change, str(error)) for change in changes], now_s)
            raise
        self._tracker.answered(changes, failures)
        self._notes.note_failures(failures, now_s)
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
        back = without_own_factors(first, self._notes.others_factors(first))
        rests = without_rests(found.jobs, self._notes.own_begins_s(found.jobs, now_s), now_s)
        wanted = (*withdrawal(found.jobs), *without_leases(found), *rests, *back)
        return apply(self._client, self._trail, wanted, before, Reasons.all_for(_STOPPED), now_s)

    def ask_no_more(self) -> None:
        """From now on ask no further job to save and leave; those that have been asked still leave."""
        self._tracker.limits(replace(self._config.preemption, max_per_hour=0))

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
        return bool(asked) and self._tracker.is_any_ready(self._spool.latest(asked, now_s), now_s)

    @property
    def trail(self) -> AuditTrail:
        """The audit log of all changes."""
        return self._trail

    def capabilities(self) -> Capabilities:
        """What this Slurm can do, and is configured to. Raises `SlurmError`.

        A restarted slurmctld may be of another release or have other settings, so the next pass asks again.
        """
        found = self._client.capabilities()
        self._record_mode = PRIVATE_MODE if "jobs" in found.private_data else OPEN_MODE
        if (found.version, found.booted) != self._probed:
            self._probed = None
        return found

    def load(self) -> ControllerLoad:
        """How busy slurmctld is."""
        return self._client.load()

    def _probe(self, nodes: Sequence[SlurmNode]) -> None:
        """What the configuration and this Slurm allow, determined once per configuration and slurmctld."""
        for name in without_nodes(self._config.slurm.partitions, nodes):
            event(_LOG, logging.WARNING, "slurm.partitions names a partition that has no nodes", partition=name)
        found = self.capabilities()
        absent = [capability.name for capability, there in found if not there]
        event(_LOG, logging.INFO, "Slurm", version=str(found.version), without=", ".join(absent) or "nothing")
        self._cycles = CycleTimes(found.backfill_yields_after_s, found.backfill_interval_s)
        self._priority_period_s = found.priority_period_s
        limits = SteeringLimits.of(self._config)
        most = most_written(found.rate_limit(), self._config.interval_s, limits.order.max_per_pass)
        self._limits = replace(limits, order=replace(limits.order, max_per_pass=most))
        self._probed = (found.version, found.booted)

    def _timely(self, decided: Pass) -> Pass:
        """The changes that need not wait for a gap between backfill cycles; a later pass decides about the others."""
        timely = self._gap.of_pass(self._cycles).timely(decided.changes, decided.seen.jobs) if decided.changes else ()
        waiting = len(decided.changes) - len(timely)
        self._gap.note(waiting)
        if waiting:
            event(_LOG, logging.INFO, "postponed, backfill is running or about to run", changes=waiting)
        return replace(decided, changes=timely)

    def _served(self, records: Mapping[int, SlurmJob], now_s: float) -> frozenset[int]:
        """Jobs that should start in the next cycles, because others of their owner have been requeued for them.

        In scope `partition` jobs own no position: jobs before such a job are there by the policy's own order.
        """
        if self._config.order.scope == "partition":
            return frozenset()
        return self._tracker.being_served(records, now_s, _CYCLES * self._cycles.rests_s)

    def _served_of(self, seen: Observation, now_s: float) -> AbstractSet[int]:
        return self._served(seen.jobs, now_s) - strays(seen)


def _reordered(changes: Iterable[Change]) -> frozenset[int]:
    """The jobs that get new site factors by these changes."""
    return frozenset(change.job_id for change in changes if isinstance(change, SetSiteFactor))


def _as_before(job_ids: AbstractSet[int], decided: Pass) -> tuple[SetSiteFactor, ...]:
    """What takes back the site factors that a pass has given these jobs."""
    given = _reordered(decided.changes) & job_ids
    return tuple(SetSiteFactor(job_id, decided.seen.jobs[job_id].site_factor or 0) for job_id in sorted(given))


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
