"""Preemption in three steps, over several passes: checkpoint signal, grace period, requeue.

On the signal the job saves a checkpoint, reports it (`explsched.checkpoint`) and continues training. It is requeued
after that report, or when the grace period is over. If the daemon dies in between, the job has lost nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from explsched.preemption_record import Interruption, PreemptionRecord
from sched_policy.model import Job, JobState
from sched_policy.plan import Preemption
from slurm_plugin.client.changes import Change, ChangeFailure, RequeueJob, SetAdminComment, SignalJob, Unanswered
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import HOUR_S, PreemptionBudget
from slurm_plugin.observation.gpu_hours import held_gpus
from slurm_plugin.observation.memory import SavedState
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requirements import Asked

_RESUMED_S = 60.0
"""A preemption begun by an earlier daemon is finished if its grace period ended at most this long ago."""

_SAVED_S = 60.0
"""slurmctld saves its state every few seconds, so a requeue acknowledged this long ago survives its crash. Requeued
jobs are watched for this long."""


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


class _Look(Struct, frozen=True):
    """What one pass has seen, by job id: jobs, Slurm's records, what jobs report, and what preemption has cost them."""

    jobs: Mapping[int, Job]
    slurm_jobs: Mapping[int, SlurmJob]
    progress: Mapping[int, JobProgress]
    records: Mapping[int, PreemptionRecord]
    now_s: float

    def reported(self, job_id: int) -> JobProgress:
        """Nothing, for a job that does not report."""
        return self.progress.get(job_id, JobProgress())

    def runs_on(self, job_id: int, step: _Underway) -> bool:
        """Whether a job still runs as it did when it was signalled."""
        job = self.jobs.get(job_id)
        return job is not None and job.state is JobState.RUNNING and job.restarts == step.restarts


class _Service(Struct, frozen=True):
    """When jobs were last requeued for a pending job, and how many of its tasks will still be pending afterwards.

    `leaving_s` is when the last of those jobs was still leaving; `record` is the pending job when they were requeued.
    """

    time_s: float
    leaving_s: float
    tasks_left: int
    record: SlurmJob

    def is_for(self, record: SlurmJob) -> bool:
        """Whether tasks still wait, and its owner has not changed them while first, other than to fewer GPUs."""
        before = self.record
        is_alike = (record.account, record.qos, record.nice) == (before.account, before.qos, before.nice)
        return record.array_tasks > self.tasks_left and is_alike and Asked.of(record).is_within(Asked.of(before))


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
        until as many of its tasks have started as GPUs were freed for; the other tasks have no claim to be first. Nor
        has a job that was out of reach for a pass: what it asks for then is not what they have left for.
        """
        leaving = {step.beneficiary for step in self._underway.values() if step.noted}
        return frozenset(
            job_id
            for job_id, service in self._served.items()
            if job_id in leaving or now_s - service.leaving_s <= for_s
            if (record := records.get(job_id)) is None or service.is_for(record)
        )

    def limits(self, preemption_budget: PreemptionBudget) -> None:
        """Take new limits (configuration reload); preemptions underway continue."""
        self._budget = preemption_budget

    def advance(
        self,
        preemptions: Iterable[Preemption],
        jobs: Mapping[int, Job],
        slurm_jobs: Mapping[int, SlurmJob],
        progress: Mapping[int, JobProgress],
        records: Mapping[int, PreemptionRecord],
        now_s: float,
        in_vain: Mapping[int, int | None] = MappingProxyType({}),
        clear_from_s: float = 0.0,
        stopped: AbstractSet[int] = frozenset(),
    ) -> tuple[Change, ...]:
        """The next step of each preemption: requeue jobs that are ready, unless `stopped`, signal newly selected ones.

        The steps count as made; `answered` and `settle` take back those that Slurm has not made.

        No job is requeued for another before `clear_from_s` (`backpressure.Recalculations`). `in_vain` are the
        beneficiaries that would not start now if their victims left, each with its entry in `heirs`
        (`steering.beneficiaries`). A job whose preemption was dropped and that is soon selected again is not signalled
        a second time.
        """
        self._clear_from_s = clear_from_s
        look = _Look(jobs, slurm_jobs, progress, records, now_s)
        self._restore(look)
        self._resume_dropped(preemptions, look)
        waiting = {job_id for job_id, job in jobs.items() if job.state is JobState.PENDING}
        self._served = {job_id: service for job_id, service in self._served.items() if job_id in waiting}
        self._refused = {n: run for n, run in self._refused.items() if n in jobs and jobs[n].restarts == run}
        self._drop_obsolete(look, in_vain)
        self._retry_lost_requeues(look)
        leaving = {step.beneficiary for n, (step, *_) in self._left.items() if jobs[n].state is JobState.COMPLETING}
        self._served |= {n: replace(self._served[n], leaving_s=now_s) for n in self._served.keys() & leaving}
        changes = (*self._requeues(look, stopped), *self._signals(preemptions, look))
        self._unanswered = frozenset(change for change in changes if not isinstance(change, SetAdminComment))
        return changes

    def _requeues(self, look: _Look, stopped: AbstractSet[int]) -> list[Change]:
        """Requeue the jobs that are ready, each after a record of what it costs."""
        changes: list[Change] = []
        freed: Counter[int] = Counter()
        for job_id in self._ready(look.progress, look.now_s):
            if job_id in stopped:
                continue
            step, job = self._underway[job_id], look.jobs[job_id]
            if not step.noted:
                record = look.records.get(job_id, PreemptionRecord(job.submit_s))
                cost = interruption(job, look.reported(job_id), step.reason, look.now_s)
                changes.append(SetAdminComment(job_id, record.plus(replace(cost, beneficiary=step.beneficiary)).text()))
                self._underway[job_id] = replace(step, noted=True)
                if step.beneficiary is not None:
                    freed[step.beneficiary] += job.request.total
            changes.append(RequeueJob(job_id))  # remains underway until it is seen to have left
        self._serve(freed, look)
        return changes

    def _serve(self, freed: Mapping[int, int], look: _Look) -> None:
        """Remember the jobs for which others are requeued, which free these numbers of GPUs."""
        for job_id, gpus in freed.items():
            job = look.jobs[job_id]
            left = job.array_tasks - max(1, gpus // max(1, job.request.total))
            self._served[job_id] = _Service(look.now_s, look.now_s, left, look.slurm_jobs[job_id])

    def _signals(self, preemptions: Iterable[Preemption], look: _Look) -> list[Change]:
        """Ask newly selected jobs for a checkpoint, as far as budgets allow: all that leave for one job, or none.

        One without the others would save in vain. While those for one job wait for the hourly budget, none may use it
        up for a later one, unless that is for the job itself, whose run would end before.
        """
        changes: list[Change] = []
        is_awaited = False
        for leaving in _by_beneficiary(preemptions, look.jobs):
            if is_awaited and not _is_urgent(leaving[0], look):
                continue
            new = [one for one in leaving if one.job_id not in self._underway]
            signals = [SignalJob(one.job_id, name) for one in new if (name := self._signal_for(one.job_id, look))]
            if len(signals) < len(new) or len(new) > self._budget.max_per_hour:
                continue
            if len(new) > self._left_this_hour(look.now_s):
                is_awaited = True
                continue
            for preemption in new:
                run, saved_s = look.jobs[preemption.job_id].restarts, look.reported(preemption.job_id).checkpoint_s
                self._underway[preemption.job_id] = _Underway(
                    look.now_s, run, saved_s, preemption.reason, preemption.beneficiary
                )
                self._begun_s.append(look.now_s)
            changes += signals
        return changes

    def _signal_for(self, job_id: int, look: _Look) -> str | None:
        """The job's checkpoint signal, if it has opted in, is within its own budget, and handles the signal by now."""
        told = look.jobs[job_id].exploration
        if told is None:
            return None  # never touch a job that has not opted in, whatever the plan says
        is_spent = job_id in look.records and self._budget.is_spent(look.records[job_id], look.now_s)
        is_asked = not is_spent and _handles_signal(look.reported(job_id), look.jobs[job_id].restarts)
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
                step = self._underway.pop(failure.change.job_id)
                self._refused[failure.change.job_id] = step.restarts
                self._take_back_service(step.beneficiary)

    def leave_alone(self, job_ids: AbstractSet[int]) -> None:
        """These jobs are not requeued after all: they have just reported their end."""
        for job_id in job_ids:
            self._take_back_service(self._underway.pop(job_id).beneficiary)
        self._unanswered -= {RequeueJob(job_id) for job_id in job_ids}

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

    def _drop_obsolete(self, look: _Look, in_vain: Mapping[int, int | None]) -> None:
        """Drop preemptions whose job has left or is not to be preempted any more; pass victims on to `heirs`."""
        for job_id, step in tuple(self._underway.items()):
            if not step.noted and step.beneficiary is not None and in_vain.get(step.beneficiary) is not None:
                step = self._underway[job_id] = replace(step, beneficiary=in_vain[step.beneficiary])
            job, reported = look.jobs.get(job_id), look.reported(job_id)
            if job is None or not look.runs_on(job_id, step):
                del self._underway[job_id]  # it has ended or has been requeued: nothing left to do
                if step.noted and job is not None:
                    self._left[job_id] = step, look.now_s, _last_report_s(reported)
            elif not job.allows_preemption:
                del self._underway[job_id]  # its owner has withdrawn consent since it was signalled
            elif job.is_spared and not step.noted:
                del self._underway[job_id]  # such as a suspended job, which cannot save
            elif reported.ended:
                del self._underway[job_id]  # its work is done: a requeue would only run it again
            elif step.beneficiary is not None and (
                not _still_waits(look.jobs.get(step.beneficiary)) or (not step.noted and step.beneficiary in in_vain)
            ):
                self._dropped[job_id] = self._underway.pop(job_id)  # no job would benefit: this one continues

    def _resume_dropped(self, preemptions: Iterable[Preemption], look: _Look) -> None:
        """Resume dropped preemptions that the plan selects again while it is not worth while to save once more."""
        self._dropped = {
            job_id: step
            for job_id, step in self._dropped.items()
            if look.runs_on(job_id, step) and look.now_s < self._resumable_until_s(step, look.reported(job_id))
        }
        for preemption in preemptions:
            if preemption.job_id not in self._underway and (step := self._dropped.pop(preemption.job_id, None)):
                again = replace(step, reason=preemption.reason, beneficiary=preemption.beneficiary)
                self._underway[preemption.job_id] = again

    def _resumable_until_s(self, step: _Underway, progress: JobProgress) -> float:
        """As long after a checkpoint as saving it took: later the work since would cost more than to save again.

        Before that for the grace period: the job may still be saving.
        """
        if (saved_s := _saved_s(step, progress)) is None:
            return step.signalled_s + self._budget.grace_s
        return saved_s + min(saved_s - step.signalled_s, self._budget.grace_s)  # by a wrong clock it may seem long

    def _retry_lost_requeues(self, look: _Look) -> None:
        """Requeue jobs again that have left but that Slurm shows as running, still in the same run.

        A slurmctld that is killed forgets a requeue which it has acknowledged but not saved. The node has ended the
        job's processes by then, so the job would do nothing until its time limit. A job that still reports was not
        ended: its reports are compared with each other, because its node's clock may differ from ours.
        """
        for job_id, (step, left_s, last_report_s) in tuple(self._left.items()):
            job, reported = look.jobs.get(job_id), look.reported(job_id)
            if job is None or not look.runs_on(job_id, step):
                self._left[job_id] = step, left_s, _last_report_s(reported)
                if job is None or look.now_s - left_s > _SAVED_S:
                    del self._left[job_id]
            elif not job.allows_preemption or reported.ended or _last_report_s(reported) != last_report_s:
                del self._left[job_id]
            elif look.now_s - left_s >= self._budget.grace_s:
                del self._left[job_id]
                self._underway[job_id] = replace(step, beneficiary=None)

    def _restore(self, look: _Look) -> None:
        """Once: drop preemptions that an earlier daemon left too long ago, take over the others and what it spent."""
        if self._is_restored:
            return
        late_s = look.now_s - self._budget.grace_s - _RESUMED_S
        self._underway = {job_id: step for job_id, step in self._underway.items() if step.signalled_s > late_s}
        times_s = [one.time_s for record in look.records.values() for one in record.latest]
        times_s += [step.signalled_s for step in self._underway.values() if not step.noted]
        self._begun_s.extend(sorted(time_s for time_s in times_s if time_s > look.now_s - HOUR_S))
        freed: Counter[int] = Counter()
        for job_id, step in self._underway.items():
            if step.noted and step.beneficiary is not None and {job_id, step.beneficiary} <= look.jobs.keys():
                freed[step.beneficiary] += look.jobs[job_id].request.total
        self._serve(freed, look)
        self._is_restored = True

    def _ready(self, progress: Mapping[int, JobProgress], now_s: float) -> tuple[int, ...]:
        """The jobs to requeue: all victims of a beneficiary at once, or others would take the GPUs one by one."""
        late = [job_id for job_id, step in self._underway.items() if not self._is_ready(job_id, step, progress, now_s)]
        incomplete = {self._underway[job_id].beneficiary for job_id in late} - {None}
        ready = ((job_id, step) for job_id, step in self._underway.items() if job_id not in late)
        return tuple(job_id for job_id, step in ready if step.noted or step.beneficiary not in incomplete)

    def _is_ready(self, job_id: int, step: _Underway, progress: Mapping[int, JobProgress], now_s: float) -> bool:
        is_clear = step.beneficiary is None or step.noted or now_s >= self._clear_from_s
        has_saved = _saved_s(step, progress.get(job_id, JobProgress())) is not None
        return is_clear and (has_saved or now_s - step.signalled_s >= self._budget.grace_s)

    def _left_this_hour(self, now_s: float) -> int:
        """How many preemptions the hourly budget still allows."""
        while self._begun_s and now_s - self._begun_s[0] >= HOUR_S:
            self._begun_s.popleft()
        return self._budget.max_per_hour - len(self._begun_s)


def _by_beneficiary(preemptions: Iterable[Preemption], jobs: Mapping[int, Job]) -> Iterable[Sequence[Preemption]]:
    """The preemptions that make room for one job together, in the order of their firsts.

    One that benefits the job itself is alone, and so is each for an array: of its tasks every one starts by itself.
    """
    single = {job_id for job_id, job in jobs.items() if job.array_tasks == 1}
    found: defaultdict[int, list[Preemption]] = defaultdict(list)
    for one in preemptions:
        found[one.beneficiary if one.beneficiary in single else one.job_id].append(one)  # one waits, the other runs
    return found.values()


def _is_urgent(preemption: Preemption, look: _Look) -> bool:
    """Whether the job itself benefits, and its time limit ends its run before the hourly budget has recovered."""
    job = look.jobs[preemption.job_id]
    is_near = job.time_limit_s is not None and job.end_s(look.now_s) < look.now_s + HOUR_S
    return preemption.beneficiary is None and is_near


def _last_report_s(progress: JobProgress) -> float | None:
    return progress.reports[-1].time_s if progress.reports else None


def _saved_s(step: _Underway, progress: JobProgress) -> float | None:
    """When the job saved the checkpoint that it was asked for; None if it has not."""
    return None if progress.checkpoint_s == step.checkpoint_before_s else progress.checkpoint_s


def _still_waits(job: Job | None) -> bool:
    """Whether a beneficiary is still pending and may still start, as far as Slurm says."""
    return job is not None and job.state is JobState.PENDING and job.eligible


def interruption(job: Job, progress: JobProgress, reason: str, now_s: float) -> Interruption:
    """The cost of a requeue now: the work since the last checkpoint of this run, or the whole run if there is none.

    A job that saves checkpoints without reporting them loses less, but how much is unknown; it never loses more than
    its run time, in which the time for which it was suspended does not count. Reports that arrived while the pass was
    reading from Slurm are later than `now_s`.
    """
    start_s = now_s if job.start_s is None else job.start_s
    safe_s = max(start_s, progress.checkpoint_s or start_s)
    worked_until_s = max([now_s, *(report.time_s for report in progress.reports[-1:])])
    lost_gpu_s = held_gpus(job) * max(0.0, min(worked_until_s - safe_s, job.run_s(worked_until_s)))
    return Interruption(job.restarts, now_s, job.request.total, lost_gpu_s, reason)


def _handles_signal(progress: JobProgress, restarts: int) -> bool:
    """Whether the job can be expected to have installed its signal handler.

    A job that reports progress has done so by its first report of the current run; before that it is still starting,
    and the signal would end it. For a job that never reports this is unknown, and only its quantum protects it.
    """
    return not progress.reports or any(report.restart == restarts for report in progress.reports)
