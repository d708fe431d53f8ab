"""Preemption in three steps, over several passes: checkpoint signal, grace period, requeue.

On the signal the job saves a checkpoint, reports it (`explsched.checkpoint`) and continues training. It is requeued
after that report, or when the grace period is over. If the daemon dies in between, the job has lost nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from sched_policy.model import Job
from sched_policy.plan import Preemption
from slurm_plugin.client.changes import (
    Change,
    ChangeFailure,
    NotNow,
    RequeueJob,
    SetAdminComment,
    SignalJob,
    Unanswered,
)
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import HOUR_S, PreemptionSection
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.saved_state import SavedState
from slurm_plugin.steering.hourly_count import HourlyCount
from slurm_plugin.steering.requeued import Requeued
from slurm_plugin.steering.self_requeued import SelfRequeued
from slurm_plugin.steering.underway import Look, Underway, recorded, signalled

FILE = "preemptions.json"
"""Beside the file with our site factors: the preemptions underway."""

_RESUMED_S = 60.0
"""A preemption is still finished by a pass that comes this much later than it should."""
_POSTPONED_S = 600.0
"""How long a requeue waits for Slurm to take the record of its cost; the GPUs are counted on meanwhile."""


class PreemptionTracker:
    """Tracks the preemptions underway, within the limits of the configuration.

    Preemptions underway are also saved to a file, from which a restarted daemon resumes them. If the file is lost or
    too old, a signalled job just continues, and the next plan decides again. The cost and the beneficiary of each
    preemption are stored in Slurm (`preemption_record`), so limits, and beneficiaries that did not start
    (`memory.served_in_vain`), survive a restart too.
    """

    def __init__(self, limits: PreemptionSection, file: Path | None = None) -> None:
        self._limits = limits
        self._file = (
            SavedState(file, dict[int, Underway], "preemptions underway", "starts without them") if file else None
        )
        self._underway: dict[int, Underway] = (self._file.read() if self._file else None) or {}
        self._written = dict(self._underway)
        self._dropped: dict[int, Underway] = {}
        self._requeued = Requeued()
        self._self_requeued = SelfRequeued(self._underway)
        self._this_hour = HourlyCount()
        self._refused: dict[int, int] = {}  # jobs whose requeue Slurm has refused, and their run then
        self._unanswered: frozenset[Change] = frozenset()
        self._clear_from_s = 0.0
        self._closed: frozenset[int] = frozenset()
        self._looked_s = -math.inf  # the last pass, and how long after the one before it
        self._pause_s = 0.0
        self._is_restored = False

    @property
    def underway(self) -> frozenset[int]:
        """Jobs that have been signalled and not yet requeued."""
        return frozenset(self._underway)

    @property
    def requeue_refused(self) -> frozenset[int]:
        """Jobs that Slurm has refused to requeue in their present run."""
        return frozenset(self._refused)

    def is_any_ready(self, progress: Mapping[int, JobProgress], now_s: float) -> bool:
        """Whether a signalled job can be requeued now: it has saved a checkpoint, or its grace period is over."""
        return any(not self._underway[job_id].requeue_sent for job_id in self._ready(progress, now_s))

    def ready_for(self, progress: Mapping[int, JobProgress], now_s: float) -> Mapping[int, AbstractSet[int]]:
        """The `victims` of those beneficiaries whose victims could all be requeued now."""
        ready = frozenset(self._ready(progress, now_s))
        return {job_id: going for job_id, going in self.victims.items() if going <= ready}

    def serve_in_order(self, order: Sequence[int], look: Look) -> None:
        """Let the victims that can be requeued now serve the beneficiaries that Slurm considers first (`order`).

        Victims save at different times, and what the first of them leaves goes to the first in the queue. Only equal
        jobs of one owner, for each of which one job leaves, exchange victims, which must be equal as well.
        """
        place = {job_id: at for at, job_id in enumerate(order)}
        alike: defaultdict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        for job_id, going in self.victims.items():
            (victim, *more) = going
            if not more and job_id in place and victim in look.jobs:
                own, request = look.jobs[job_id], look.jobs[victim].request
                alike[own.user, own.scope, own.partition, own.request, request].append((job_id, victim))
        for pairs in alike.values():
            pairs.sort(key=lambda pair: place[pair[0]])
            ready = {n for _, n in pairs if self._is_ready(n, look.progress, look.now_s)}
            first = sorted((victim for _, victim in pairs), key=lambda victim: victim not in ready)
            for (job_id, _), victim in zip(pairs, first, strict=True):
                self._underway[victim] = replace(self._underway[victim], beneficiary=job_id)

    @property
    def victims(self) -> Mapping[int, AbstractSet[int]]:
        """The jobs that have been signalled but not requeued, by the pending job that needs their GPUs."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for job_id, step in self._underway.items():
            if step.beneficiary is not None and not step.requeue_sent:
                found[step.beneficiary].add(job_id)
        return found

    @property
    def beneficiaries(self) -> Mapping[int, int | None]:
        """For each signalled job, the pending job that needs its GPUs; None if the signalled job itself benefits."""
        return {job_id: step.beneficiary for job_id, step in self._underway.items()}

    @property
    def served_s(self) -> Mapping[int, float]:
        """The pending jobs for which others have been requeued, and when last."""
        return self._requeued.served_s

    def being_served(self, records: Mapping[int, SlurmJob], now_s: float, for_s: float) -> frozenset[int]:
        """As `Requeued.being_served`."""
        return self._requeued.being_served(self._requeues_sent.values(), records, now_s, for_s)

    @property
    def _requeues_sent(self) -> Mapping[int, Underway]:
        """The jobs that have been requeued, but not seen to have left."""
        return {job_id: step for job_id, step in self._underway.items() if step.requeue_sent}

    def limits(self, limits: PreemptionSection) -> None:
        """Take new limits (configuration reload); preemptions underway continue."""
        self._limits = limits

    def begin(self, now_s: float, interval_s: float, closed: frozenset[int], clear_from_s: float) -> None:
        """A pass begins: what it goes by, and the preemptions are dropped whose moment has passed without one.

        Args:
            now_s: the time of the pass.
            interval_s: the present time between passes.
            closed: jobs that Slurm does not update for now: none is signalled or requeued, as its cost would go
                unrecorded. Nor is a job signalled for one of them, which could not be put first.
            clear_from_s: no job is requeued for another before this (`backpressure.Recalculations`).

        """
        self._closed, self._clear_from_s = closed, clear_from_s
        self._drop_late(now_s, interval_s)

    def _drop_late(self, now_s: float, interval_s: float) -> None:
        """Drop the preemptions whose moment has passed while no pass was made, to be decided anew by this one.

        We were stopped, or another daemon, or slurmctld was away: a requeue would cost all work since. What was due at
        the last pass has waited on purpose since then, and passes may be far apart (`backpressure.backoff`): by
        `interval_s` at present, but earlier ones may have been longer. Jobs that leave for the same one are dropped
        with it.
        """
        from_s = now_s - _RESUMED_S - max(self._pause_s, interval_s)
        own = self._requeues_sent if self._is_restored else {}  # our requeues, each repeated until its job has left
        steps = {job_id: step for job_id, step in self._underway.items() if job_id not in own}
        due_s = {job_id: max(step.signalled_s + self._limits.grace_s, self._looked_s) for job_id, step in steps.items()}
        late = {job_id for job_id, when_s in due_s.items() if when_s < from_s}
        served = {steps[job_id].beneficiary for job_id in late} - {None}
        for job_id, step in steps.items():
            if job_id in late or step.beneficiary in served:
                del self._underway[job_id]

    def advance(
        self,
        preemptions: Iterable[Preemption],
        look: Look,
        in_vain: Mapping[int, int | None] = MappingProxyType({}),
        stopped: AbstractSet[int] = frozenset(),
    ) -> tuple[Change, ...]:
        """The next step of each preemption: requeue jobs that are ready, unless `stopped`, signal newly selected ones.

        The steps count as made; `answered` and `settle` take back those that Slurm has not made.

        `in_vain` are the beneficiaries that would not start now if their victims left, each with its entry in `heirs`
        (`steering.beneficiaries`). A job whose preemption was dropped and that is soon selected again is not signalled
        a second time.
        """
        self._pause_s = 0.0 if math.isinf(self._looked_s) else look.now_s - self._looked_s
        self._looked_s = look.now_s
        self._restore(look)
        self._resume_dropped(preemptions, look)
        runs = {job_id: job.restarts for job_id, job in look.jobs.items()}
        self._refused = {job_id: run for job_id, run in self._refused.items() if runs.get(job_id) == run}
        self._drop_obsolete(look, in_vain)
        self._underway |= self._requeued.advance(look, self._limits.grace_s)
        changes = (*self._requeues(look, stopped), *self._signals(preemptions, look))
        self._self_requeued.remember(self._dropped | self._underway, look, self._limits.grace_s)
        self._unanswered = frozenset(change for change in changes if not isinstance(change, SetAdminComment))
        return changes

    def _requeues(self, look: Look, stopped: AbstractSet[int]) -> list[Change]:
        """Requeue the jobs that are ready, each after a record of what it costs. Some have requeued themselves."""
        changes: list[Change] = []
        new: dict[int, Underway] = {}
        for job_id in self._ready(look.progress, look.now_s):
            if job_id in stopped:
                continue
            step = self._underway[job_id]
            if not step.requeue_sent:
                changes.append(SetAdminComment(job_id, recorded(job_id, step, look).text()))
                self._underway[job_id] = new[job_id] = replace(step, requeue_sent=True)
            changes.append(RequeueJob(job_id))  # remains underway until it is seen to have left
        answered = self._self_requeued.unrecorded(look, self._limits.grace_s, self._closed)
        for job_id, (step, record) in answered.items():
            changes.append(SetAdminComment(job_id, record.text()))
            if not step.requeue_sent:
                self._underway[job_id] = new[job_id] = replace(step, requeue_sent=True)
        self._requeued.serve(new, look)
        return changes

    def _signals(self, preemptions: Iterable[Preemption], look: Look) -> list[Change]:
        """Ask newly selected jobs for a checkpoint, as far as limits allow: all that leave for one job, or none.

        One without the others would save in vain. While those for one job wait for the hourly limit, none may use it
        up for a later one, unless that is for the job itself, whose run would end before.
        """
        changes: list[Change] = []
        is_awaited = False
        for together in _by_beneficiary(preemptions, look.jobs):
            if together[0].beneficiary in self._closed or (is_awaited and not _is_urgent(together[0], look)):
                continue
            new = [one for one in together if one.job_id not in self._underway]
            signals = [SignalJob(one.job_id, name) for one in new if (name := self._signal_for(one.job_id, look))]
            if len(signals) < len(new) or len(new) > self._limits.max_per_hour:
                continue
            if self._this_hour.of(look.now_s) + len(new) > self._limits.max_per_hour:
                is_awaited = True
                continue
            for preemption in new:
                self._underway[preemption.job_id] = signalled(preemption, look)
                self._this_hour.add(look.now_s)
            changes += signals
        return changes

    def _signal_for(self, job_id: int, look: Look) -> str | None:
        """The job's checkpoint signal, if it has opted in, is within its own limits, and handles the signal by now."""
        told = look.jobs[job_id].exploration
        if told is None:
            return None  # never touch a job that has not opted in, whatever the plan says
        if job_id in self._closed:
            return None  # it would save for a requeue that could not be recorded
        is_spent = job_id in look.records and self._limits.is_spent(look.records[job_id], look.now_s)
        is_asked = not is_spent and look.handles_signal(job_id)
        return told.checkpoint_signal if is_asked else None

    def answered(self, changes: Iterable[Change], failures: Iterable[ChangeFailure]) -> None:
        """Slurm has been handed these changes; a preemption of which it has refused a step is dropped.

        If it was the requeue, the job is not asked again in this run: it would save again and again for nothing.
        """
        failures = tuple(failures)
        unknown = {failure.change for failure in failures if isinstance(failure, Unanswered)}
        self._unanswered -= frozenset(changes) - unknown
        for failure in failures:
            if failure.change in unknown:
                continue
            if isinstance(failure.change, SignalJob):
                self._take_back_signal(failure.change.job_id)
            elif isinstance(failure.change, RequeueJob):
                self._refuse(failure.change.job_id)
            elif isinstance(failure.change, SetAdminComment) and not isinstance(failure, NotNow):
                self._self_requeued.forget(failure.change.job_id)

    def leave_alone(self, job_ids: AbstractSet[int]) -> None:
        """These jobs are not requeued after all: they have just reported their end."""
        for job_id in job_ids:
            self._requeued.take_back(self._underway.pop(job_id).beneficiary, self._requeues_sent.values())
        self._unanswered -= {RequeueJob(job_id) for job_id in job_ids}

    def keep_unrecorded(self, failures: Iterable[ChangeFailure], now_s: float) -> frozenset[int]:
        """The jobs that are not requeued in this pass after all, since Slurm has not taken the records of their cost.

        Nor are others that leave for the same job: it would not get all of their GPUs, and others would. A job whose
        record Slurm refuses for good, or for ten minutes, is not asked again in this run.
        """
        failed = {failure.change.job_id: failure for failure in failures if isinstance(failure.change, SetAdminComment)}
        served = {self._underway[job_id].beneficiary for job_id in failed} - {None}
        kept = frozenset(n for n, step in self._underway.items() if n in failed or step.beneficiary in served)
        for job_id in kept:
            failure = failed.get(job_id)
            if isinstance(failure, NotNow):
                self._postpone(job_id, now_s)
            elif isinstance(failure, Unanswered | None):
                self._take_back_requeue(job_id)
            else:
                self._refuse(job_id)
        self._unanswered -= {RequeueJob(job_id) for job_id in kept}
        return kept

    def settle(self) -> None:
        """Once a pass is over, however it ended: take back what Slurm gave no answer to, and save what is underway.

        A job that may not have its signal must not be requeued: the next plan decides again. The record of a requeue
        may not be in Slurm, so the requeue is repeated with it, unless the job has left. A write error stops nothing.
        """
        for change in self._unanswered:
            if isinstance(change, SignalJob):
                self._take_back_signal(change.job_id)
            elif isinstance(change, RequeueJob):
                self._take_back_requeue(change.job_id)
        self._unanswered = frozenset()
        kept = self._self_requeued.left | self._underway
        if self._file is not None and kept != self._written and self._file.write(kept):
            self._written = kept

    def _take_back_signal(self, job_id: int) -> None:
        self._this_hour.take_back(self._underway.pop(job_id).signalled_s)

    def _take_back_requeue(self, job_id: int) -> None:
        step = self._underway[job_id] = replace(self._underway[job_id], requeue_sent=False)
        self._requeued.take_back(step.beneficiary, self._requeues_sent.values())

    def _postpone(self, job_id: int, now_s: float) -> None:
        step = self._underway[job_id]
        since_s = now_s if step.postponed_s is None else step.postponed_s
        if now_s - since_s >= _POSTPONED_S:
            self._refuse(job_id)
        else:
            self._underway[job_id] = replace(step, postponed_s=since_s)
            self._take_back_requeue(job_id)

    def _refuse(self, job_id: int) -> None:
        step = self._underway.pop(job_id)
        self._refused[job_id] = step.restarts
        self._requeued.take_back(step.beneficiary, self._requeues_sent.values())

    def _drop_obsolete(self, look: Look, in_vain: Mapping[int, int | None]) -> None:
        """Drop preemptions whose job has left or is not to be preempted any more; pass victims on to `heirs`."""
        for job_id, step in tuple(self._underway.items()):
            if not step.requeue_sent and step.beneficiary is not None and in_vain.get(step.beneficiary) is not None:
                step = self._underway[job_id] = replace(step, beneficiary=in_vain[step.beneficiary])
            job = look.jobs.get(job_id)
            if job is None or not look.runs_on(job_id, step):
                del self._underway[job_id]  # it has ended or has been requeued: nothing left to do
                if step.requeue_sent and job is not None:
                    self._requeued.watch(job_id, step, look)
            elif (
                not job.allows_preemption  # its owner has withdrawn consent since it was signalled
                or (job.is_spared and not step.requeue_sent)  # such as a suspended job, which cannot save
                or look.reported(job_id).ended  # its work is done: a requeue would only run it again
            ):
                del self._underway[job_id]
            elif step.beneficiary is not None and (
                not look.still_waits(step.beneficiary) or (not step.requeue_sent and step.beneficiary in in_vain)
            ):
                self._dropped[job_id] = self._underway.pop(job_id)  # no job would benefit: this one continues

    def _resume_dropped(self, preemptions: Iterable[Preemption], look: Look) -> None:
        """Resume dropped preemptions that the plan selects again while it is not worth while to save once more."""
        self._dropped = {
            job_id: step
            for job_id, step in self._dropped.items()
            if look.runs_on(job_id, step)
            and look.now_s < step.resumable_until_s(look.reported(job_id), self._limits.grace_s)
        }
        for preemption in preemptions:
            if preemption.job_id not in self._underway and (step := self._dropped.pop(preemption.job_id, None)):
                again = replace(step, reason=preemption.reason, beneficiary=preemption.beneficiary)
                self._underway[preemption.job_id] = again

    def _restore(self, look: Look) -> None:
        """Once: take over what an earlier daemon has spent, and for whom it has requeued jobs."""
        if self._is_restored:
            return
        times_s = [one.time_s for record in look.records.values() for one in record.latest]
        times_s += [step.signalled_s for step in self._underway.values() if not step.requeue_sent]
        self._this_hour.restore(time_s for time_s in times_s if time_s > look.now_s - HOUR_S)
        self._requeued.serve(self._requeues_sent, look)
        self._is_restored = True

    def _ready(self, progress: Mapping[int, JobProgress], now_s: float) -> tuple[int, ...]:
        """The jobs to requeue: all victims of a beneficiary at once, or others would take the GPUs one by one."""
        late = [job_id for job_id in self._underway if not self._is_ready(job_id, progress, now_s)]
        incomplete = {self._underway[job_id].beneficiary for job_id in late} - {None}
        ready = ((job_id, step) for job_id, step in self._underway.items() if job_id not in late)
        return tuple(job_id for job_id, step in ready if step.requeue_sent or step.beneficiary not in incomplete)

    def _is_ready(self, job_id: int, progress: Mapping[int, JobProgress], now_s: float) -> bool:
        step = self._underway[job_id]
        is_clear = step.requeue_sent or (
            job_id not in self._closed and (step.beneficiary is None or now_s >= self._clear_from_s)
        )
        return is_clear and step.is_ready(progress.get(job_id, JobProgress()), now_s, self._limits.grace_s)


def _by_beneficiary(preemptions: Iterable[Preemption], jobs: Mapping[int, Job]) -> Iterable[Sequence[Preemption]]:
    """The preemptions that make room for one job together, in the order of their firsts.

    One that benefits the job itself is alone, and so is each for an array: of its tasks every one starts by itself.
    """
    single = {job_id for job_id, job in jobs.items() if job.array_tasks == 1}
    found: defaultdict[int, list[Preemption]] = defaultdict(list)
    for one in preemptions:
        found[one.beneficiary if one.beneficiary in single else one.job_id].append(one)  # one waits, the other runs
    return found.values()


def _is_urgent(preemption: Preemption, look: Look) -> bool:
    """Whether the job itself benefits, and its time limit ends its run before an hour is over."""
    job = look.jobs[preemption.job_id]
    is_near = job.time_limit_s is not None and job.end_s(look.now_s) < look.now_s + HOUR_S
    return preemption.beneficiary is None and is_near
