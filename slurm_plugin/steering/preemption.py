"""Preemption takes three steps over several passes: checkpoint signal, grace, requeue.

The job answers the signal by saving a checkpoint, reports it (`explsched.checkpoint`) and goes on training. Only then,
or when the grace period is over, it is requeued. If the daemon dies in between, the job has lost nothing.
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
from slurm_plugin.client.changes import Change, RequeueJob, SetAdminComment, SignalJob
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.config import HOUR_S, PreemptionBudget
from slurm_plugin.observation.memory import SavedState
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.progress import JobProgress
from slurm_plugin.observation.requirements import allocate, fits, free_once_gone
from slurm_plugin.observation.standing import is_untested, may_start
from slurm_plugin.steering.places import on_places, started_once_gone

_LOOKED_AT = 500
"""Waiting jobs of which it is worked out whether backfill would start them: as many as Slurm's looks at by default."""

_YOUNG_S = 60.0
"""So long a checkpoint is young: what an earlier daemon began is finished if its grace period is over for no longer
than this, and a job that was let go need not save again if it is asked again."""

_SAVED_S = 60.0
"""slurmctld saves its state every few seconds: what it acknowledged so long ago it does not forget when it dies.
Jobs that have left are looked after for as long."""

_NOBODY: Mapping[int, int | None] = MappingProxyType({})
_NOBODY_GOES: Mapping[int, AbstractSet[int]] = MappingProxyType({})


class _Underway(Struct, frozen=True):
    """A preemption that has been signalled but not finished. `noted`: its cost has been written down.

    `beneficiary` is the waiting job that needs the GPUs, None if the job itself gains.
    """

    signalled_s: float
    restarts: int
    checkpoint_before_s: float | None
    reason: str
    beneficiary: int | None
    noted: bool = False


class _Service(Struct, frozen=True):
    """When jobs have last been requeued for a waiting one, and how many of its tasks still wait once it has started."""

    time_s: float
    tasks_left: int


class PreemptionTracker:
    """Keeps the preemptions underway and the hourly budget of the site.

    What is underway is kept in a file as well, so that a restarted daemon goes on with it. Where that is lost, or too
    old, a job that was signalled simply goes on, and the next plan decides anew. What preemption has cost each job, and
    for whom it was, is in Slurm: `preemption_record`. So budgets, and jobs that were served and did not start
    (`memory.served_in_vain`), outlive the daemon.
    """

    def __init__(self, preemption_budget: PreemptionBudget, file: Path | None = None) -> None:
        self._budget = preemption_budget
        self._file = (
            SavedState(file, dict[int, _Underway], "preemptions underway", "starts without them") if file else None
        )
        self._underway: dict[int, _Underway] = (self._file.read() if self._file else None) or {}
        self._written = dict(self._underway)
        self._let_go: dict[int, _Underway] = {}
        self._left: dict[int, tuple[_Underway, float, float | None]] = {}  # with when it left, and its last report
        self._begun_s: deque[float] = deque()
        self._clear_from_s = 0.0
        self._remembers = False
        self._served: dict[int, _Service] = {}
        self._cleaned_up_s: dict[int, float] = {}

    @property
    def underway(self) -> frozenset[int]:
        """Jobs that have been signalled and not yet requeued."""
        return frozenset(self._underway)

    def is_any_ready(self, progress: Mapping[int, JobProgress], now_s: float) -> bool:
        """Whether a job that was signalled may be requeued now: it has saved, or its grace period is over."""
        return any(not self._underway[job_id].noted for job_id in self._ready(progress, now_s))

    def ready_for(self, progress: Mapping[int, JobProgress], now_s: float) -> Mapping[int, AbstractSet[int]]:
        """Those of `victims` that would be requeued now."""
        ready = frozenset(self._ready(progress, now_s))
        return {job_id: going for job_id, going in self.victims.items() if going <= ready}

    @property
    def victims(self) -> Mapping[int, AbstractSet[int]]:
        """By the waiting job that needs their GPUs: jobs that have been signalled and are not being requeued yet."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for job_id, step in self._underway.items():
            if step.beneficiary is not None and not step.noted:
                found[step.beneficiary].add(job_id)
        return found

    @property
    def beneficiaries(self) -> Mapping[int, int | None]:
        """By job that has been signalled, the waiting job that needs its GPUs; None if the job itself gains."""
        return {job_id: step.beneficiary for job_id, step in self._underway.items()}

    @property
    def served_s(self) -> Mapping[int, float]:
        """Jobs for which others have been requeued, and when last; only jobs that wait."""
        return {job_id: service.time_s for job_id, service in self._served.items()}

    def being_served(self, records: Mapping[int, SlurmJob], now_s: float, for_s: float) -> frozenset[int]:
        """Jobs for which others have been requeued: while those leave, and `for_s` seconds more.

        A node may clean up after a job (KillWait, epilog) for longer than some cycles last. One that does not come to
        an end is not waited for: a minute after they were seen to leave jobs count as gone. Of an array only until as
        many tasks have started as room was made for: the others have no right to come first.
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
        """Take new limits (configuration reload); what is underway stays."""
        self._budget = preemption_budget

    def advance(
        self,
        preemptions: Iterable[Preemption],
        jobs: Mapping[int, Job],
        progress: Mapping[int, JobProgress],
        records: Mapping[int, PreemptionRecord],
        now_s: float,
        in_vain: Mapping[int, int | None] = _NOBODY,
        clear_from_s: float = 0.0,
    ) -> tuple[Change, ...]:
        """The next step of each preemption: requeues of jobs that are ready, signals to new ones.

        Nobody is requeued for another before `clear_from_s` (`backpressure.Recalculations`). `in_vain` are
        beneficiaries that would not start now if their victims went, each with who would in its place.
        A job that is let go and asked again soon has been signalled already, and may have saved.
        """
        self._clear_from_s = clear_from_s
        self._remember(records.values(), now_s)
        self._take_up_again(preemptions, jobs, progress, now_s)
        waiting = {job_id for job_id, job in jobs.items() if job.state is JobState.PENDING}
        self._served = {job_id: service for job_id, service in self._served.items() if job_id in waiting}
        changes: list[Change] = []
        for job_id, step in tuple(self._underway.items()):
            if not step.noted and step.beneficiary is not None and in_vain.get(step.beneficiary) is not None:
                step = self._underway[job_id] = replace(step, beneficiary=in_vain[step.beneficiary])
            job = jobs.get(job_id)
            reported = progress.get(job_id, JobProgress())
            if job is None or job.state is not JobState.RUNNING or job.restarts != step.restarts:
                del self._underway[job_id]  # it ended or was requeued by somebody: nothing left to do
                if step.noted and job is not None:
                    self._left[job_id] = step, now_s, _last_report_s(reported)
            elif not job.consents:
                del self._underway[job_id]  # its owner has changed his mind since it was signalled
            elif reported.ended:
                del self._underway[job_id]  # its work is done: a requeue would only run it again
            elif step.beneficiary is not None and (
                not _still_waits(jobs.get(step.beneficiary)) or (not step.noted and step.beneficiary in in_vain)
            ):
                self._let_go[job_id] = self._underway.pop(job_id)  # nobody would gain; the job has saved, and goes on
        self._requeue_again(jobs, progress, now_s)
        freed: Counter[int] = Counter()
        completing = (step.beneficiary for n, (step, *_) in self._left.items() if jobs[n].state is JobState.COMPLETING)
        self._cleaned_up_s |= {job_id: now_s for job_id in completing if job_id is not None}
        self._cleaned_up_s = {job_id: time_s for job_id, time_s in self._cleaned_up_s.items() if job_id in waiting}
        for job_id in self._ready(progress, now_s):
            step, job = self._underway[job_id], jobs[job_id]
            if not step.noted:
                record = records.get(job_id, PreemptionRecord(job.submit_s))
                reported = progress.get(job_id, JobProgress())
                cost = replace(interruption(job, reported, step.reason, now_s), beneficiary=step.beneficiary)
                changes.append(SetAdminComment(job_id, record.plus(cost).text()))
                self._underway[job_id] = replace(step, noted=True)
                if step.beneficiary is not None:
                    freed[step.beneficiary] += job.request.total
            changes.append(RequeueJob(job_id))  # stays underway until it is seen to have left
        for job_id, gpus in freed.items():
            tasks = max(1, gpus // max(1, jobs[job_id].request.total))
            self._served[job_id] = _Service(now_s, jobs[job_id].array_tasks - tasks)
        for preemption in preemptions:
            job = jobs[preemption.job_id]
            if job.job_id in self._underway or not self._within_budget(now_s):
                continue
            if job.exploration is None or job.exploration.checkpoint_signal is None:
                continue  # never touch a job that did not opt in, whatever a plan says
            if job.job_id in records and self._budget.is_spent(records[job.job_id], now_s):
                continue
            reported = progress.get(job.job_id, JobProgress())
            if not _listens(reported, job.restarts):
                continue
            self._underway[job.job_id] = _Underway(
                now_s, job.restarts, reported.checkpoint_s, preemption.reason, preemption.beneficiary
            )
            self._begun_s.append(now_s)
            changes.append(SignalJob(job.job_id, job.exploration.checkpoint_signal))
        return tuple(changes)

    def _take_up_again(
        self,
        preemptions: Iterable[Preemption],
        jobs: Mapping[int, Job],
        progress: Mapping[int, JobProgress],
        now_s: float,
    ) -> None:
        """Go on with jobs that were let go, and that the plan wants to make room again while that still tells."""
        self._let_go = {
            job_id: step
            for job_id, step in self._let_go.items()
            if job_id in jobs
            and jobs[job_id].state is JobState.RUNNING
            and jobs[job_id].restarts == step.restarts
            and now_s - _asked_or_saved_s(step, progress.get(job_id, JobProgress())) < _YOUNG_S
        }
        for preemption in preemptions:
            if preemption.job_id not in self._underway and (step := self._let_go.pop(preemption.job_id, None)):
                again = replace(step, reason=preemption.reason, beneficiary=preemption.beneficiary)
                self._underway[preemption.job_id] = again

    def _requeue_again(self, jobs: Mapping[int, Job], progress: Mapping[int, JobProgress], now_s: float) -> None:
        """See to jobs that have left and, by Slurm, run on in the same run.

        A slurmctld that is killed forgets a requeue which it has acknowledged and not saved. The node has ended the job
        by then, so nothing of it runs, until its time limit ends it for good. One that reports was not ended: its
        reports are compared with each other, as its node's clock may differ from ours.
        """
        for job_id, (step, left_s, told_s) in tuple(self._left.items()):
            job, reported = jobs.get(job_id), progress.get(job_id, JobProgress())
            if job is None or job.state is not JobState.RUNNING or job.restarts != step.restarts:
                self._left[job_id] = step, left_s, _last_report_s(reported)
                if job is None or now_s - left_s > _SAVED_S:
                    del self._left[job_id]
            elif not job.consents or reported.ended or _last_report_s(reported) != told_s:
                del self._left[job_id]
            elif now_s - left_s >= self._budget.grace_s:
                del self._left[job_id]
                self._underway[job_id] = replace(step, beneficiary=None)

    def save(self) -> None:
        """Write down what is underway, before Slurm is asked for it. A file that cannot be written stops nothing."""
        if self._file is not None and self._underway != self._written:
            self._written = dict(self._underway)
            self._file.write(self._underway)

    def _remember(self, records: Iterable[PreemptionRecord], now_s: float) -> None:
        """Take over, once, what an earlier daemon spent of this hour's budget."""
        if not self._remembers:
            late_s = now_s - self._budget.grace_s - _YOUNG_S
            self._underway = {job_id: step for job_id, step in self._underway.items() if step.signalled_s > late_s}
            times_s = [one.time_s for record in records for one in record.latest]
            times_s += [step.signalled_s for step in self._underway.values() if not step.noted]
            self._begun_s.extend(sorted(time_s for time_s in times_s if time_s > now_s - HOUR_S))
            self._remembers = True

    def _ready(self, progress: Mapping[int, JobProgress], now_s: float) -> tuple[int, ...]:
        """Who may be requeued. Those for one job go together: what came free by and by others would take by and by."""
        late = [job_id for job_id, step in self._underway.items() if not self._is_ready(job_id, step, progress, now_s)]
        awaited = {self._underway[job_id].beneficiary for job_id in late} - {None}
        asked = ((job_id, step) for job_id, step in self._underway.items() if job_id not in late)
        return tuple(job_id for job_id, step in asked if step.noted or step.beneficiary not in awaited)

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


def _asked_or_saved_s(step: _Underway, progress: JobProgress) -> float:
    """When the job saved, if it has since it was signalled, else when it was."""
    saved_s = progress.checkpoint_s if _has_saved(step, progress) else None
    return step.signalled_s if saved_s is None else saved_s


def _still_waits(job: Job | None) -> bool:
    """Whether a beneficiary still waits, and Slurm has not found meanwhile that it cannot start."""
    return job is not None and job.state is JobState.PENDING and job.eligible


def interruption(job: Job, progress: JobProgress, reason: str, now_s: float) -> Interruption:
    """What a requeue now costs: the work since the last checkpoint of this run, all of the run if it reported none.

    A job that saves without reporting it loses less than that; nothing tells how much. What it reported while the pass
    was looking at Slurm is later than `now_s`.
    """
    start_s = now_s if job.start_s is None else job.start_s
    safe_s = max(start_s, progress.checkpoint_s or start_s)
    worked_until_s = max([now_s, *(report.time_s for report in progress.reports[-1:])])
    lost_gpu_s = job.request.total * max(0.0, worked_until_s - safe_s)
    return Interruption(job.restarts, now_s, job.request.total, lost_gpu_s, reason)


def _listens(progress: JobProgress, restarts: int) -> bool:
    """Whether the job can be expected to have its signal handler in place.

    A job that reports progress has it once it has reported in its present run: before that it is still starting, and a
    signal would end it. Of a job that never reports nothing is known; its quantum has to do.
    """
    return not progress.reports or any(report.restart == restarts for report in progress.reports)


def without_vain_preemptions(plan: Plan, seen: Observation) -> Plan:
    """The plan without preemptions after which their beneficiary would not start."""
    if not any(preemption.beneficiary for preemption in plan.preemptions):
        return plan
    victims: defaultdict[int, set[int]] = defaultdict(set)
    for preemption in plan.preemptions:
        if preemption.beneficiary is not None:
            victims[preemption.beneficiary].add(preemption.job_id)
    vain = _served_in_vain(on_places(plan, seen.snapshot), seen, victims, _asked(seen))
    kept = tuple(preemption for preemption in plan.preemptions if preemption.beneficiary not in vain)
    return replace(plan, preemptions=kept) if vain else plan


def requeues_in_vain(
    plan: Plan,
    seen: Observation,
    victims: Mapping[int, AbstractSet[int]],
    factors: Mapping[int, int],
    ready: Mapping[int, AbstractSet[int]] = _NOBODY_GOES,
) -> frozenset[int]:
    """Those beneficiaries that would not start if their victims went now. `factors` are the pass's new site factors.

    `ready` are those whose victims do go now. They must start also if all others that were asked to go are still there.

    Slurm computes the age of a job that is written at once, those of the others each `PriorityCalcPeriod`. Until then
    two jobs that are near each other may stand in another order than the one that was written, and whoever is ahead in
    that one would get what comes free.
    """
    if not victims:
        return frozenset()
    ideal, in_force = on_places(plan, seen.snapshot), _in_force(seen, factors)
    asked = _asked(seen)
    vain = _served_in_vain(ideal, seen, victims, asked) | _served_in_vain(in_force, seen, victims, asked)
    gone = asked & {job.job_id for job in seen.snapshot.running if job.state is JobState.COMPLETING}
    alone = {job_id: going for job_id, going in ready.items() if job_id not in vain and gone | going != asked}
    for job_id, going in alone.items():
        vain |= _served_in_vain(in_force, seen, {job_id: going}, gone)
    return vain


def _asked(seen: Observation) -> frozenset[int]:
    """Running jobs that have been asked to make room."""
    return frozenset(job.job_id for job in seen.snapshot.running if job.yielding)


def _in_force(seen: Observation, factors: Mapping[int, int]) -> tuple[int, ...]:
    """The waiting jobs in the order of the priorities that Slurm has for them once the factors are written."""

    def rank(job: SlurmJob) -> tuple[int, float, int]:
        is_written = job.job_id in factors and bool(job.natives)
        priority = job.priority_with(factors[job.job_id]) if is_written else job.priority
        return -priority, job.submit_s, job.job_id

    waiting = (seen.jobs[job.job_id] for job in seen.snapshot.jobs if job.state is JobState.PENDING)
    return tuple(job.job_id for job in sorted(waiting, key=rank))


def _served_in_vain(
    order: Sequence[int], seen: Observation, victims: Mapping[int, AbstractSet[int]], leaving: frozenset[int]
) -> frozenset[int]:
    """Those beneficiaries that would not start if their victims and `leaving` went and Slurm took this order.

    A plan weighs only the jobs that are modelled. But Slurm gives what comes free to whoever stands first in its queue:
    to a component of a heterogeneous job, to a job of a partition that we do not steer, or to one that was submitted
    since the victims were asked to save. Or it keeps it for a larger job ahead, whose start must not be delayed. CPUs
    or memory may lack, too.
    """
    place = {job_id: at for at, job_id in enumerate(order)}
    waiting = [record for record in seen.jobs.values() if _may_start_before_others(record, seen.snapshot.now_s)]
    vain = set()
    for job_id, going in victims.items():
        record = seen.jobs[job_id]
        free = free_once_gone(seen.nodes, seen.snapshot.running, seen.jobs, leaving | going)
        # Partitions may have tiers, which come before all priorities: of other partitions' jobs any may be first.
        first = [
            other
            for other in waiting
            if other.job_id != job_id
            and (other.partition != record.partition or place.get(other.job_id, -1) < place.get(job_id, 0))
        ]
        allocate(sorted(first, key=lambda other: place.get(other.job_id, -1)), free)
        if not fits(record, free):
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
    """Whether the job may be the next to start where it waits: Slurm says so, or has not looked at it yet."""
    return record.reason == "Resources" or is_untested(record)


def heirs(
    plan: Plan,
    seen: Observation,
    victims: Mapping[int, AbstractSet[int]],
    vain: Container[int],
    factors: Mapping[int, int],
) -> dict[int, int | None]:
    """For each beneficiary that would not start any more, who would in its place; None for nobody.

    Only the first in the queue of the same owner's jobs that have come before it meanwhile: whom the plan puts before
    one for which its victims should go, for him they should go, too. Letting them go would make them save once more.
    """
    jobs = {job.job_id: job for job in seen.snapshot.jobs}
    queue = on_places(plan, seen.snapshot)
    found: dict[int, int | None] = {}
    for job_id in (job_id for job_id in victims if job_id in vain):
        own = jobs[job_id]
        before = queue[: queue.index(job_id)] if job_id in queue else ()
        alike = (
            job
            for job in map(jobs.__getitem__, before)
            if (job.user, job.scope) == (own.user, own.scope) and job.may_displace
        )
        heir = next((job.job_id for job in alike if job.job_id not in victims), None)
        starts = heir is not None and not requeues_in_vain(plan, seen, {heir: victims[job_id]}, factors)
        found[job_id] = heir if starts else None
    return found


def _may_start_before_others(record: SlurmJob, now_s: float) -> bool:
    """Whether the job takes GPUs as soon as there is room, as far as Slurm tells."""
    asks = record.gpus > 0 or record.shards_per_node > 0
    return asks and record.priority > 0 and may_start(record, now_s)
