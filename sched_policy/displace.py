"""Preempt running jobs for waiting ones whose scores are clearly higher."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice, takewhile

from msgspec import Struct

from sched_policy.model import GpuRequest, Job
from sched_policy.place import Place
from sched_policy.plan import Preemption, Ranking
from sched_policy.profile import AvailabilityProfile, FreeGpus
from sched_policy.snapshot import Snapshot

_Shape = tuple[GpuRequest, str]
"""What a job asks for, and the partition it waits in."""
_FAVOUR = 1.5
"""A job may displace one of another scope only if its fair-share factor is more than this many times the other's."""


class Displace(Struct, frozen=True):
    """A blocked job may take the GPUs of running jobs (its victims) whose scores are lower by the factor `margin`.

    Attributes:
        margin: smallest ratio of the blocked job's score to a victim's; above 1, so that two jobs of equal score do not
            preempt each other for ever.
        least_share: a job below this share of its scope's best score displaces nobody. Among jobs that learn next to
            nothing any ratio of scores is noise, and each preemption costs a restart.
        quantum_s: a job is not preempted for this long after `Job.productive_since_s`, so that each start pays for
            itself however long it took.
        most_at_once: largest number of preemptions in one plan.

    """

    margin: float = 1.5
    least_share: float = 0.05
    quantum_s: float = 600.0
    most_at_once: int = 8

    def preemptions(
        self,
        snapshot: Snapshot,
        ranking: Ranking,
        blocked: Sequence[tuple[Job, int]],
        profile: AvailabilityProfile,
        place: Place,
    ) -> tuple[Preemption, ...]:
        """The preemptions that let the jobs of `blocked` start: pairs of job and number of waiting tasks, best first.

        Victims are of the job's own scope, since scores of different scopes do not compare. If they are not enough,
        jobs of other scopes are taken whose owners' fair-share factors are much lower (`_FAVOUR`). No job is preempted
        for one that may not displace others, because it might not start even then, and none where a job of another
        scope that comes earlier could take the freed GPUs.

        `profile` has this plan's starts booked. Victims are taken in order of rising score, only as many as the blocked
        job needs, and none at all if even all of them would not make room for it.
        """
        value = ranking.value_of
        alone = (job for job in snapshot.running if job.job_id not in profile.sharing)
        able = [job for job in alone if job.may_leave(snapshot.now_s, self.quantum_s)]
        free = profile.free_now()
        victims = _Victims(able, value, self.margin, free)
        best = {snapshot.jobs[int(rows[0])].scope: ranking.values[rows].max() for rows in snapshot.rows_by_scope}
        # GPUs that earlier plans have freed go to the best blocked jobs first.
        free.release(share for job in snapshot.running if job.is_leaving for share in job.allocation)
        chosen: list[Preemption] = []
        ahead: defaultdict[_Shape, set[str]] = defaultdict(set)  # scopes with an earlier blocked job of the shape
        crowded: set[_Shape] = set()  # shapes that do not fit until another job leaves
        # By kind of job, a score with which no victims were found: until more GPUs are free a lower one finds none.
        hopeless: dict[tuple[object, ...], float] = {}
        for job, tasks in blocked:
            worth = value[job.job_id]
            kind = job.scope, job.request, job.partition, job.lane, job.fair_share
            if worth <= hopeless.get(kind, -float("inf")):
                continue  # a job of this kind has been considered already
            shape = job.request, job.partition
            ahead[shape].add(job.scope)
            if not job.may_displace or 0.0 <= worth < self.least_share * best[job.scope]:
                continue
            for _task in range(tasks):
                room = self.most_at_once - len(chosen)
                if room == 0 or not victims:
                    return tuple(chosen)
                leaving: tuple[Job, ...] = ()
                if shape in crowded or free.find(*shape, place) is None:
                    crowded.add(shape)
                    leaving = _least_victims(job, victims.of(job, room), free, place)
                    leaving = leaving or _least_victims(job, victims.less_favoured(job, room), free, place)
                    others = (theirs for theirs, scopes in ahead.items() if scopes != {job.scope})
                    if not leaving or _others_would_fit(others, leaving, free, place):
                        hopeless[kind] = worth
                        break
                for victim in leaving:
                    victims.remove(victim)
                    free.release(victim.allocation)
                    crowded.clear()
                    chosen.append(Preemption(victim.job_id, _why(victim, job, value), job.job_id))
                free.take(free.find(job.request, job.partition, place) or ())
                hopeless.clear()
        return tuple(chosen)


def _others_would_fit(others: Iterable[_Shape], victims: Sequence[Job], free: FreeGpus, place: Place) -> bool:
    """Whether a job of one of these shapes could start on the GPUs of the victims and the free ones."""
    trial = free.copy()
    trial.release(share for victim in victims for share in victim.allocation)
    return any(trial.find(*shape, place) is not None for shape in others)


class _Victims:
    """The jobs that may be preempted, by scope and queue: each blocked job looks only at those it may displace."""

    def __init__(self, jobs: Sequence[Job], value: Mapping[int, float], margin: float, free: FreeGpus) -> None:
        """`jobs` in order of (submit time, job id)."""
        self._value = value
        self._margin = margin
        self._free = free
        self._worst_first: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
        best_first = sorted(jobs, key=lambda job: -value[job.job_id])
        for job in reversed(best_first):
            self._worst_first[job.scope, job.queue].append(job)
        self._count = len(jobs)
        self._gone: set[int] = set()
        self._suitable: dict[tuple[str, str], list[Job]] = {}

    def __bool__(self) -> bool:
        return len(self._gone) < self._count

    def of(self, job: Job, most: int) -> tuple[Job, ...]:
        """Up to `most` jobs of the same scope with clearly lower scores, the lowest first.

        Scores may be negative (SRSF): the margin always widens the gap that is needed. Where only some nodes of its
        partition suit the job, victims must have all their GPUs on those.
        """
        worth = self._value[job.job_id]

        def is_worse(victim: Job) -> bool:
            loss = self._value[victim.job_id]
            return worth > (loss * self._margin if loss >= 0 else loss / self._margin)

        left = (victim for victim in self._on_suitable_nodes(job) if victim.job_id not in self._gone)
        return tuple(islice(takewhile(is_worse, left), most))

    def less_favoured(self, job: Job, most: int) -> tuple[Job, ...]:
        """Up to `most` jobs of other scopes with clearly lower fair-share factors, the lowest first."""
        favour = job.fair_share
        if not favour:
            return ()
        by_favour = self._by_favour[job.queue, job.lane]
        below = takewhile(lambda victim: favour > _FAVOUR * (victim.fair_share or 0.0), by_favour)
        others = (victim for victim in below if victim.scope != job.scope and victim.job_id not in self._gone)
        return tuple(islice(self._free.serving(others, job.partition), most))

    def remove(self, job: Job) -> None:
        """Take out a job that the plan preempts."""
        self._gone.add(job.job_id)

    def _on_suitable_nodes(self, job: Job) -> Sequence[Job]:
        of_queue = self._worst_first.get((job.scope, job.queue), [])
        if job.partition == job.queue or not of_queue:
            return of_queue
        key = job.scope, job.partition
        if key not in self._suitable:
            self._suitable[key] = list(self._free.serving(of_queue, job.partition))
        return self._suitable[key]

    @cached_property
    def _by_favour(self) -> Mapping[tuple[str, str], Sequence[Job]]:
        """By queue and lane: jobs of known fair share, the lowest factor first, of equal ones the latest start."""
        known = [job for jobs in self._worst_first.values() for job in jobs if job.fair_share is not None]
        by_favour: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
        for job in sorted(known, key=lambda job: (job.fair_share or 0.0, -(job.start_s or 0.0), job.job_id)):
            by_favour[job.queue, job.lane].append(job)
        return by_favour


def _least_victims(job: Job, candidates: Sequence[Job], free: FreeGpus, place: Place) -> tuple[Job, ...]:
    """The first candidates whose GPUs let the job start, without those it does not need; empty if all are too few."""
    trial = free.copy()
    taken: list[Job] = []
    for victim in candidates:
        trial.release(victim.allocation)
        taken.append(victim)
        if trial.find(job.request, job.partition, place) is not None:
            break
    else:
        return ()
    for victim in tuple(taken[:-1]):
        trial.hold(victim.allocation)
        if trial.find(job.request, job.partition, place) is not None:
            taken.remove(victim)
        else:
            trial.release(victim.allocation)
    return tuple(taken)


def _why(victim: Job, job: Job, value: Mapping[int, float]) -> str:
    if victim.scope != job.scope:
        shares = f"{job.fair_share:.6g} against {victim.fair_share:.6g}"
        return f"job {job.job_id} waits for these GPUs, and fair share favours its owner, {shares}"
    worth, loss = value[job.job_id], value[victim.job_id]
    return f"job {job.job_id} waits for these GPUs with a score of {worth:.3g} against {loss:.3g}"
