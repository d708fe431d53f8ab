"""Preemption in three steps, over several passes: checkpoint signal, grace period, requeue.

On the signal the job saves a checkpoint, reports it (`explsched.checkpoint`) and continues training. It is requeued
after that report, or when the grace period is over. If the daemon dies in between, the job has lost nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from explsched.preemption_record import Interruption, PreemptionRecord
from sched_policy.model import Job, JobState
from sched_policy.plan import Plan, Preemption
from slurm_plugin.client.changes import Change, ChangeFailure, RequeueJob, SetAdminComment, SignalJob
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import HOUR_S, PreemptionBudget
from slurm_plugin.observation.memory import SavedState
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requirements import allocate, fits, free_once_gone
from slurm_plugin.observation.standing import is_untested, may_start
from slurm_plugin.steering.places import by_priority, on_places, started_once_gone

_LOOKED_AT = 500
"""Number of pending jobs for which backfill is replayed: Slurm's default for `bf_max_job_test`."""

_FRESH_S = 60.0
"""How long a checkpoint counts as fresh. A preemption begun by an earlier daemon is finished if its grace period ended
at most this long ago, and a job whose preemption was dropped need not save again if it is selected again."""

_SAVED_S = 60.0
"""slurmctld saves its state every few seconds, so a requeue acknowledged this long ago survives its crash. Requeued
jobs are watched for this long."""

_NO_HEIRS: Mapping[int, int | None] = MappingProxyType({})
_NO_VICTIMS: Mapping[int, AbstractSet[int]] = MappingProxyType({})


class _Underway(Struct, frozen=True):
    """A preemption that has been signalled but not finished. `noted`: its cost has been recorded and it is requeued.

    `beneficiary` is the pending job that needs the GPUs, None if the preempted job itself benefits.
    """

    signalled_s: float
    restarts: int
    checkpoint_before_s: float | None
    reason: str
    beneficiary: int | None
    noted: bool = False


class _Service(Struct, frozen=True):
    """When jobs were last requeued for a pending job, and how many of its tasks will still be pending afterwards."""

    time_s: float
    tasks_left: int


class PreemptionTracker:
    """Tracks the preemptions underway and the site's hourly budget.

    Preemptions underway are also saved to a file, from which a restarted daemon resumes them. If the file is lost or
    too old, a signalled job just continues, and the next plan decides again. The cost and the beneficiary of each
    preemption are stored in Slurm (`preemption_record`), so budgets, and beneficiaries that did not start
    (`memory.served_in_vain`), survive a restart too.
    """

    def __init__(self, preemption_budget: PreemptionBudget, file: Path | None = None) -> None:
        self._budget = preemption_budget
        self._file = (
            SavedState(file, dict[int, _Underway], "preemptions underway", "starts without them") if file else None
        )
        self._underway: dict[int, _Underway] = (self._file.read() if self._file else None) or {}
        self._written = dict(self._underway)
        self._dropped: dict[int, _Underway] = {}
        self._left: dict[int, tuple[_Underway, float, float | None]] = {}  # and when it left, time of its last report
        self._begun_s: deque[float] = deque()
        self._refused: dict[int, int] = {}  # jobs whose requeue Slurm has refused, and their run then
        self._unanswered: frozenset[Change] = frozenset()
        self._clear_from_s = 0.0
        self._is_restored = False
        self._served: dict[int, _Service] = {}
        self._cleaned_up_s: dict[int, float] = {}

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
        return any(not self._underway[job_id].noted for job_id in self._ready(progress, now_s))

    def ready_for(self, progress: Mapping[int, JobProgress], now_s: float) -> Mapping[int, AbstractSet[int]]:
        """The `victims` of those beneficiaries whose victims could all be requeued now."""
        ready = frozenset(self._ready(progress, now_s))
        return {job_id: going for job_id, going in self.victims.items() if going <= ready}

    def serve_in_order(
        self, order: Sequence[int], jobs: Mapping[int, Job], progress: Mapping[int, JobProgress], now_s: float
    ) -> None:
        """Let the victims that can be requeued now serve the beneficiaries that Slurm considers first (`order`).

        Victims save at different times, and what the first of them leaves goes to the first in the queue. Only equal
        jobs of one owner, for each of which one job leaves, exchange victims, which must be equal as well.
        """
        place = {job_id: at for at, job_id in enumerate(order)}
        alike: defaultdict[tuple[object, ...], list[tuple[int, int]]] = defaultdict(list)
        for job_id, going in self.victims.items():
            (victim, *more) = going
            if not more and job_id in place and victim in jobs:
                own = jobs[job_id]
                alike[own.user, own.scope, own.partition, own.request, jobs[victim].request].append((job_id, victim))
        for pairs in alike.values():
            pairs.sort(key=lambda pair: place[pair[0]])
            ready = {n for _, n in pairs if self._is_ready(n, self._underway[n], progress, now_s)}
            first = sorted((victim for _, victim in pairs), key=lambda victim: victim not in ready)
            for (job_id, _), victim in zip(pairs, first, strict=True):
                self._underway[victim] = replace(self._underway[victim], beneficiary=job_id)

    @property
    def victims(self) -> Mapping[int, AbstractSet[int]]:
        """The jobs that have been signalled but not requeued, by the pending job that needs their GPUs."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for job_id, step in self._underway.items():
            if step.beneficiary is not None and not step.noted:
                found[step.beneficiary].add(job_id)
        return found

    @property
    def beneficiaries(self) -> Mapping[int, int | None]:
        """For each signalled job, the pending job that needs its GPUs; None if the signalled job itself benefits."""
        return {job_id: step.beneficiary for job_id, step in self._underway.items()}

    @property
    def served_s(self) -> Mapping[int, float]:
        """The pending jobs for which others have been requeued, and when last."""
        return {job_id: service.time_s for job_id, service in self._served.items()}

    def being_served(self, records: Mapping[int, SlurmJob], now_s: float, for_s: float) -> frozenset[int]:
        """Jobs for which others have been requeued, until `for_s` seconds after those have left.

        Cleaning up after a job (KillWait, epilog) may take longer than a scheduling cycle. A clean-up that does not
        end is not waited for: a minute after a job was seen to leave it counts as gone. A job array is included only
        until as many of its tasks have started as GPUs were freed for; the other tasks have no claim to be first.
        """
        leaving = {step.beneficiary for step in self._underway.values() if step.noted and step.beneficiary is not None}
        times_s = (*self.served_s.items(), *self._cleaned_up_s.items())
        lately = {job_id for job_id, time_s in times_s if now_s - time_s <= for_s}
        return frozenset(
            job_id
            for job_id in leaving | lately
            if (record := records.get(job_id)) is None
            or (service := self._served.get(job_id)) is None
            or record.array_tasks > service.tasks_left
        )

    def limits(self, preemption_budget: PreemptionBudget) -> None:
        """Take new limits (configuration reload); preemptions underway continue."""
        self._budget = preemption_budget

    def advance(
        self,
        preemptions: Iterable[Preemption],
        jobs: Mapping[int, Job],
        progress: Mapping[int, JobProgress],
        records: Mapping[int, PreemptionRecord],
        now_s: float,
        in_vain: Mapping[int, int | None] = _NO_HEIRS,
        clear_from_s: float = 0.0,
        stopped: AbstractSet[int] = frozenset(),
    ) -> tuple[Change, ...]:
        """The next step of each preemption: requeue jobs that are ready, unless `stopped`, signal newly selected ones.

        The steps count as made; `answered` and `settle` take back those that Slurm has not made.

        No job is requeued for another before `clear_from_s` (`backpressure.Recalculations`). `in_vain` are the
        beneficiaries that would not start now if their victims left, each with its `heirs` entry. A job whose
        preemption was dropped and that is soon selected again is not signalled a second time.
        """
        self._clear_from_s = clear_from_s
        self._restore_budget(records.values(), now_s)
        self._resume_dropped(preemptions, jobs, progress, now_s)
        waiting = {job_id for job_id, job in jobs.items() if job.state is JobState.PENDING}
        self._served = {job_id: service for job_id, service in self._served.items() if job_id in waiting}
        self._refused = {n: run for n, run in self._refused.items() if n in jobs and jobs[n].restarts == run}
        self._drop_obsolete(jobs, progress, in_vain, now_s)
        self._retry_lost_requeues(jobs, progress, now_s)
        completing = (step.beneficiary for n, (step, *_) in self._left.items() if jobs[n].state is JobState.COMPLETING)
        self._cleaned_up_s |= {job_id: now_s for job_id in completing if job_id is not None}
        self._cleaned_up_s = {job_id: time_s for job_id, time_s in self._cleaned_up_s.items() if job_id in waiting}
        changes: list[Change] = []
        freed: Counter[int] = Counter()
        for job_id in self._ready(progress, now_s):
            if job_id in stopped:
                continue
            step, job = self._underway[job_id], jobs[job_id]
            if not step.noted:
                record = records.get(job_id, PreemptionRecord(job.submit_s))
                reported = progress.get(job_id, JobProgress())
                cost = replace(interruption(job, reported, step.reason, now_s), beneficiary=step.beneficiary)
                changes.append(SetAdminComment(job_id, record.plus(cost).text()))
                self._underway[job_id] = replace(step, noted=True)
                if step.beneficiary is not None:
                    freed[step.beneficiary] += job.request.total
            changes.append(RequeueJob(job_id))  # remains underway until it is seen to have left
        for job_id, gpus in freed.items():
            tasks = max(1, gpus // max(1, jobs[job_id].request.total))
            self._served[job_id] = _Service(now_s, jobs[job_id].array_tasks - tasks)
        for preemption in preemptions:
            job = jobs[preemption.job_id]
            if job.job_id in self._underway or not self._within_budget(now_s):
                continue
            if job.exploration is None or job.exploration.checkpoint_signal is None:
                continue  # never touch a job that has not opted in, whatever the plan says
            if job.job_id in records and self._budget.is_spent(records[job.job_id], now_s):
                continue
            reported = progress.get(job.job_id, JobProgress())
            if not _handles_signal(reported, job.restarts):
                continue
            self._underway[job.job_id] = _Underway(
                now_s, job.restarts, reported.checkpoint_s, preemption.reason, preemption.beneficiary
            )
            self._begun_s.append(now_s)
            changes.append(SignalJob(job.job_id, job.exploration.checkpoint_signal))
        self._unanswered = frozenset(change for change in changes if not isinstance(change, SetAdminComment))
        return tuple(changes)

    def answered(self, changes: Iterable[Change], failures: Iterable[ChangeFailure]) -> None:
        """Slurm has been handed these changes; a preemption of which it has refused a step is dropped.

        If it was the requeue, the job is not asked again in this run: it would save again and again for nothing.
        """
        self._unanswered -= frozenset(changes)
        for failure in failures:
            if isinstance(failure.change, SignalJob):
                self._take_back_signal(failure.change.job_id)
            elif isinstance(failure.change, RequeueJob):
                step = self._underway.pop(failure.change.job_id)
                self._refused[failure.change.job_id] = step.restarts
                self._take_back_service(step.beneficiary)

    def settle(self) -> None:
        """Once a pass is over, however it ended: take back what Slurm gave no answer to, and save what is underway.

        A job that may not have its signal must not be requeued: the next plan decides again. The record of a requeue
        may not be in Slurm, so the requeue is repeated with it, unless the job has left. A write error stops nothing.
        """
        for change in self._unanswered:
            if isinstance(change, SignalJob):
                self._take_back_signal(change.job_id)
            elif isinstance(change, RequeueJob):
                step = self._underway[change.job_id] = replace(self._underway[change.job_id], noted=False)
                self._take_back_service(step.beneficiary)
        self._unanswered = frozenset()
        if self._file is not None and self._underway != self._written:
            self._written = dict(self._underway)
            self._file.write(self._underway)

    def _take_back_signal(self, job_id: int) -> None:
        self._begun_s.remove(self._underway.pop(job_id).signalled_s)

    def _take_back_service(self, beneficiary: int | None) -> None:
        """A job has not been requeued for this one; others may have been."""
        gone = [step for step in self._underway.values() if step.noted] + [step for step, *_ in self._left.values()]
        if beneficiary is not None and beneficiary not in {step.beneficiary for step in gone}:
            self._served.pop(beneficiary, None)

    def _drop_obsolete(
        self,
        jobs: Mapping[int, Job],
        progress: Mapping[int, JobProgress],
        in_vain: Mapping[int, int | None],
        now_s: float,
    ) -> None:
        """Drop preemptions whose job has left or is not to be preempted any more; pass victims on to `heirs`."""
        for job_id, step in tuple(self._underway.items()):
            if not step.noted and step.beneficiary is not None and in_vain.get(step.beneficiary) is not None:
                step = self._underway[job_id] = replace(step, beneficiary=in_vain[step.beneficiary])
            job = jobs.get(job_id)
            reported = progress.get(job_id, JobProgress())
            if job is None or job.state is not JobState.RUNNING or job.restarts != step.restarts:
                del self._underway[job_id]  # it has ended or has been requeued: nothing left to do
                if step.noted and job is not None:
                    self._left[job_id] = step, now_s, _last_report_s(reported)
            elif not job.allows_preemption:
                del self._underway[job_id]  # its owner has withdrawn consent since it was signalled
            elif job.is_spared and not step.noted:
                del self._underway[job_id]  # such as a suspended job, which cannot save
            elif reported.ended:
                del self._underway[job_id]  # its work is done: a requeue would only run it again
            elif step.beneficiary is not None and (
                not _still_waits(jobs.get(step.beneficiary)) or (not step.noted and step.beneficiary in in_vain)
            ):
                self._dropped[job_id] = self._underway.pop(job_id)  # no job would benefit: this one continues

    def _resume_dropped(
        self,
        preemptions: Iterable[Preemption],
        jobs: Mapping[int, Job],
        progress: Mapping[int, JobProgress],
        now_s: float,
    ) -> None:
        """Resume dropped preemptions that the plan selects again while the job's checkpoint is still fresh."""
        self._dropped = {
            job_id: step
            for job_id, step in self._dropped.items()
            if job_id in jobs
            and jobs[job_id].state is JobState.RUNNING
            and jobs[job_id].restarts == step.restarts
            and now_s - _signalled_or_saved_s(step, progress.get(job_id, JobProgress())) < _FRESH_S
        }
        for preemption in preemptions:
            if preemption.job_id not in self._underway and (step := self._dropped.pop(preemption.job_id, None)):
                again = replace(step, reason=preemption.reason, beneficiary=preemption.beneficiary)
                self._underway[preemption.job_id] = again

    def _retry_lost_requeues(self, jobs: Mapping[int, Job], progress: Mapping[int, JobProgress], now_s: float) -> None:
        """Requeue jobs again that have left but that Slurm shows as running, still in the same run.

        A slurmctld that is killed forgets a requeue which it has acknowledged but not saved. The node has ended the
        job's processes by then, so the job would do nothing until its time limit. A job that still reports was not
        ended: its reports are compared with each other, because its node's clock may differ from ours.
        """
        for job_id, (step, left_s, last_report_s) in tuple(self._left.items()):
            job, reported = jobs.get(job_id), progress.get(job_id, JobProgress())
            if job is None or job.state is not JobState.RUNNING or job.restarts != step.restarts:
                self._left[job_id] = step, left_s, _last_report_s(reported)
                if job is None or now_s - left_s > _SAVED_S:
                    del self._left[job_id]
            elif not job.allows_preemption or reported.ended or _last_report_s(reported) != last_report_s:
                del self._left[job_id]
            elif now_s - left_s >= self._budget.grace_s:
                del self._left[job_id]
                self._underway[job_id] = replace(step, beneficiary=None)

    def _restore_budget(self, records: Iterable[PreemptionRecord], now_s: float) -> None:
        """Once: drop preemptions that an earlier daemon left too long ago, and count what it spent this hour."""
        if not self._is_restored:
            late_s = now_s - self._budget.grace_s - _FRESH_S
            self._underway = {job_id: step for job_id, step in self._underway.items() if step.signalled_s > late_s}
            times_s = [one.time_s for record in records for one in record.latest]
            times_s += [step.signalled_s for step in self._underway.values() if not step.noted]
            self._begun_s.extend(sorted(time_s for time_s in times_s if time_s > now_s - HOUR_S))
            self._is_restored = True

    def _ready(self, progress: Mapping[int, JobProgress], now_s: float) -> tuple[int, ...]:
        """The jobs to requeue: all victims of a beneficiary at once, or others would take the GPUs one by one."""
        late = [job_id for job_id, step in self._underway.items() if not self._is_ready(job_id, step, progress, now_s)]
        incomplete = {self._underway[job_id].beneficiary for job_id in late} - {None}
        ready = ((job_id, step) for job_id, step in self._underway.items() if job_id not in late)
        return tuple(job_id for job_id, step in ready if step.noted or step.beneficiary not in incomplete)

    def _is_ready(self, job_id: int, step: _Underway, progress: Mapping[int, JobProgress], now_s: float) -> bool:
        is_clear = step.beneficiary is None or step.noted or now_s >= self._clear_from_s
        has_saved = _has_saved(step, progress.get(job_id, JobProgress()))
        return is_clear and (has_saved or now_s - step.signalled_s >= self._budget.grace_s)

    def _within_budget(self, now_s: float) -> bool:
        while self._begun_s and now_s - self._begun_s[0] >= HOUR_S:
            self._begun_s.popleft()
        return len(self._begun_s) < self._budget.max_per_hour


def _last_report_s(progress: JobProgress) -> float | None:
    return progress.reports[-1].time_s if progress.reports else None


def _has_saved(step: _Underway, progress: JobProgress) -> bool:
    return progress.checkpoint_s is not None and progress.checkpoint_s != step.checkpoint_before_s


def _signalled_or_saved_s(step: _Underway, progress: JobProgress) -> float:
    """When the job saved its checkpoint for this preemption; if it has not, when it was signalled."""
    saved_s = progress.checkpoint_s if _has_saved(step, progress) else None
    return step.signalled_s if saved_s is None else saved_s


def _still_waits(job: Job | None) -> bool:
    """Whether a beneficiary is still pending and may still start, as far as Slurm says."""
    return job is not None and job.state is JobState.PENDING and job.eligible


def interruption(job: Job, progress: JobProgress, reason: str, now_s: float) -> Interruption:
    """The cost of a requeue now: the work since the last checkpoint of this run, or the whole run if there is none.

    A job that saves checkpoints without reporting them loses less, but how much is unknown. Reports that arrived
    while the pass was reading from Slurm are later than `now_s`.
    """
    start_s = now_s if job.start_s is None else job.start_s
    safe_s = max(start_s, progress.checkpoint_s or start_s)
    worked_until_s = max([now_s, *(report.time_s for report in progress.reports[-1:])])
    lost_gpu_s = job.request.total * max(0.0, worked_until_s - safe_s)
    return Interruption(job.restarts, now_s, job.request.total, lost_gpu_s, reason)


def _handles_signal(progress: JobProgress, restarts: int) -> bool:
    """Whether the job can be expected to have installed its signal handler.

    A job that reports progress has done so by its first report of the current run; before that it is still starting,
    and the signal would end it. For a job that never reports this is unknown, and only its quantum protects it.
    """
    return not progress.reports or any(report.restart == restarts for report in progress.reports)


def without_vain_preemptions(plan: Plan, seen: Observation) -> Plan:
    """The plan without preemptions whose beneficiary would not start."""
    if not any(preemption.beneficiary for preemption in plan.preemptions):
        return plan
    victims: defaultdict[int, set[int]] = defaultdict(set)
    for preemption in plan.preemptions:
        if preemption.beneficiary is not None:
            victims[preemption.beneficiary].add(preemption.job_id)
    vain = _served_in_vain(on_places(plan, seen.snapshot), seen, victims, _leaving(seen))
    kept = tuple(preemption for preemption in plan.preemptions if preemption.beneficiary not in vain)
    return replace(plan, preemptions=kept) if vain else plan


def requeues_in_vain(
    plan: Plan,
    seen: Observation,
    victims: Mapping[int, AbstractSet[int]],
    factors: Mapping[int, int],
    ready: Mapping[int, AbstractSet[int]] = _NO_VICTIMS,
) -> frozenset[int]:
    """The beneficiaries that would not start if their victims left now. `factors` are the pass's new site factors.

    `ready` maps beneficiaries to the victims that do leave now. These beneficiaries must also start if all other
    preempted jobs are still there.

    Slurm updates the age of a job when its site factor is written, that of others every `PriorityCalcPeriod`. Until
    then jobs of nearly equal priority may not be in the plan's order, so a beneficiary must start in both orders.
    """
    if not victims:
        return frozenset()
    ideal, actual = on_places(plan, seen.snapshot), by_priority(seen, factors)
    leaving = _leaving(seen)
    vain = _served_in_vain(ideal, seen, victims, leaving) | _served_in_vain(actual, seen, victims, leaving)
    gone = leaving & {job.job_id for job in seen.snapshot.running if job.state is JobState.COMPLETING}
    now = {job_id: going for job_id, going in ready.items() if job_id not in vain}
    if gone.union(*now.values()) != leaving:
        vain |= _served_in_vain(actual, seen, now, gone)
    return vain


def _leaving(seen: Observation) -> frozenset[int]:
    """Running jobs that have been asked to leave."""
    return frozenset(job.job_id for job in seen.snapshot.running if job.asked_to_leave)


def _served_in_vain(
    order: Sequence[int], seen: Observation, victims: Mapping[int, AbstractSet[int]], leaving: frozenset[int]
) -> frozenset[int]:
    """The beneficiaries that would not start if their victims and `leaving` left and Slurm scheduled in this order.

    Victims of beneficiaries that are earlier in this order, and would start, count as gone, too. A plan considers only
    the jobs that are modelled. Slurm may give the freed GPUs to any job ahead in its queue: a component of a
    heterogeneous job, a job of a partition that is not steered, or one submitted after the victims were signalled. It
    may also keep them for a larger job ahead, whose planned start must not be delayed. And the beneficiary may lack
    CPUs or memory.
    """
    place = {job_id: at for at, job_id in enumerate(order)}
    waiting = [record for record in seen.jobs.values() if _may_start_before_others(record, seen.snapshot.now_s)]
    vain, gone = set(), leaving
    for job_id in sorted(victims, key=lambda job_id: place.get(job_id, -1)):
        record = seen.jobs[job_id]
        free = free_once_gone(seen.nodes, seen.snapshot.running, seen.jobs, gone | victims[job_id])
        # Slurm compares partition tiers before priorities: any job of another partition may be first.
        first = [
            other
            for other in waiting
            if other.job_id != job_id
            and (other.partition != record.partition or place.get(other.job_id, -1) < place.get(job_id, 0))
        ]
        allocate(sorted(first, key=lambda other: place.get(other.job_id, -1)), free)
        if fits(record, free):
            gone |= victims[job_id]
        else:
            vain.add(job_id)
    for partition in {seen.jobs[job_id].partition for job_id in victims}:
        own = {job_id for job_id in victims if seen.jobs[job_id].partition == partition}
        # Another partition may be of a higher tier.
        of_tier = {n for n in order if seen.jobs[n].partition != partition and _may_be_next(seen.jobs[n])}
        queue = sorted(order, key=lambda job_id: job_id not in of_tier)
        last = max((at for at, job_id in enumerate(queue) if job_id in own), default=-1)
        looked_at = queue[: min(last + 1, _LOOKED_AT)]
        vain |= own.intersection(looked_at) - started_once_gone(
            seen.snapshot, looked_at, leaving.union(*(victims[job_id] for job_id in own))
        )
    return frozenset(vain)


def _may_be_next(record: SlurmJob) -> bool:
    """Whether the job may be the next to start in its partition: Slurm says so, or has not tested it yet."""
    return record.reason == "Resources" or is_untested(record)


def heirs(
    plan: Plan,
    seen: Observation,
    victims: Mapping[int, AbstractSet[int]],
    vain: Container[int],
    factors: Mapping[int, int],
) -> dict[int, int | None]:
    """For each beneficiary that would no longer start, the job that would start in its place, or None.

    Only the first of the same owner's jobs that the plan now puts before the beneficiary, and that is no other's heir,
    is considered: the plan prefers it, so the victims may leave for it as well. Dropping the preemption instead would
    make them save again.
    """
    jobs = {job.job_id: job for job in seen.snapshot.jobs}
    queue = on_places(plan, seen.snapshot)
    passed_on: dict[int, AbstractSet[int]] = {}
    found: dict[int, int | None] = {}
    for job_id in (job_id for job_id in victims if job_id in vain):
        own = jobs[job_id]
        before = queue[: queue.index(job_id)] if job_id in queue else ()
        alike = (
            job
            for job in map(jobs.__getitem__, before)
            if (job.user, job.scope) == (own.user, own.scope) and job.may_displace
        )
        heir = next((job.job_id for job in alike if job.job_id not in victims and job.job_id not in passed_on), None)
        if heir is not None:
            with_heir = {**passed_on, heir: victims[job_id]}
            if not requeues_in_vain(plan, seen, with_heir, factors):
                passed_on = with_heir
        found[job_id] = heir if heir in passed_on else None
    return found


def _may_start_before_others(record: SlurmJob, now_s: float) -> bool:
    """Whether the job would take free GPUs or shards at once, as far as Slurm says."""
    asks = record.gpus > 0 or record.shards_per_node > 0
    return asks and record.priority > 0 and may_start(record, now_s)
