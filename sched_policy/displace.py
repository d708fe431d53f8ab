"""Displace running jobs by waiting ones that are worth clearly more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile

import numpy as np
from msgspec import Struct

from sched_policy.model import GpuRequest, Job, JobState
from sched_policy.place import Place
from sched_policy.plan import Preemption, Ranking
from sched_policy.profile import AvailabilityProfile, FreeGpus
from sched_policy.snapshot import Floats, Nodes, Snapshot

_Shape = tuple[GpuRequest, str]
"""What a job asks for, and the partition it waits in."""
_FAVOUR = 1.5
"""The owner of a job has this many times the fair-share figure of those who make room for it in another scope."""


class Displace(Struct, frozen=True):
    """A blocked job may take the GPUs of running jobs whose scores are lower by the factor `margin`.

    Attributes:
        margin: how many times the victim's score the blocked job's must be; above 1, so that two jobs of equal
            worth do not swap places for ever.
        least_share: a job worth less than this share of its scope's best score displaces nobody. Among jobs that learn
            next to nothing any ratio of scores is noise, and each swap costs a restart.
        quantum_s: a job is left alone for this long since `Job.productive_since_s`, so that every start pays for itself
            however long starting up takes.
        most_at_once: preemptions per plan at most; bounds the churn.

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
        """The preemptions that let `blocked`, (job, waiting tasks) best first, start on GPUs taken from others.

        Jobs of its own scope make room for a job: scores of different scopes do not compare. Where those are not
        enough, jobs of owners whom the resource manager's fair share favours clearly less do. Nobody makes room
        for a job that may not displace others, for it might not start all the same, nor where what comes free would go
        to a job of another scope that stands before it.

        `profile` has this plan's starts booked. Victims are taken from the worst upwards, and only as many as the
        blocked job needs; if even all allowed victims make no room for its gang, none is touched for it.
        """
        value = ranking.value_of
        victims = _Victims(
            [
                job
                for job in snapshot.running
                if job.job_id not in profile.sharing and job.may_leave(snapshot.now_s, self.quantum_s)
            ],
            value,
            self.margin,
            snapshot.nodes,
        )
        best = {snapshot.jobs[int(rows[0])].scope: ranking.values[rows].max() for rows in snapshot.rows_by_scope}
        free = profile.free_now()
        for job in snapshot.running:  # room that earlier plans have made goes to the best blocked jobs first
            if job.yielding or job.state is JobState.COMPLETING:
                free.release(job.allocation)
        chosen: list[Preemption] = []
        ahead: defaultdict[_Shape, set[str]] = defaultdict(set)  # scopes that ask for it: those alike fit alike
        crowded: set[_Shape] = set()  # shapes for which there is no room until somebody goes
        # Scores at which nobody made room for such a job: nobody does for a lower one, until what is free changes.
        hopeless: dict[tuple[object, ...], float] = {}
        for job, tasks in blocked:
            worth = value[job.job_id]
            kind = job.scope, job.request, job.partition, job.lane, job.fair_share
            if worth <= hopeless.get(kind, -float("inf")):
                continue  # somebody of this kind is ahead already
            shape = job.request, job.partition
            ahead[shape].add(job.scope)
            if not job.may_displace or 0.0 <= worth < self.least_share * best[job.scope]:
                continue
            for _task in range(tasks):
                room = self.most_at_once - len(chosen)
                if room == 0 or not victims:
                    return tuple(chosen)
                needs_room = shape in crowded or free.find(*shape, place) is None
                if needs_room:
                    crowded.add(shape)
                set_ = _least_victims(job, victims.of(job, room), free, place) if needs_room else ()
                if needs_room and not set_:
                    set_ = _least_victims(job, victims.less_favoured(job, room), free, place)
                others = (theirs for theirs, scopes in ahead.items() if scopes != {job.scope})
                if needs_room and (not set_ or _others_would_fit(others, set_, free, place)):
                    hopeless[kind] = worth
                    break
                for victim in set_:
                    victims.remove(victim)
                    free.release(victim.allocation)
                    crowded.clear()
                    chosen.append(Preemption(victim.job_id, _why(victim, job, value), job.job_id))
                free.take(free.find(job.request, job.partition, place) or ())
                hopeless.clear()
        return tuple(chosen)

    def stable_until_s(self, snapshot: Snapshot) -> float:
        """When the next running job has had its quantum and may be asked to yield."""
        return snapshot.next_s(job.productive_since_s + self.quantum_s for job in snapshot.running if job.may_yield)


def _others_would_fit(others: Iterable[_Shape], victims: Sequence[Job], free: FreeGpus, place: Place) -> bool:
    """Whether GPUs that the victims leave would let a job of one of these shapes start."""
    trial = free.copy()
    for victim in victims:
        trial.release(victim.allocation)
    return any(trial.find(*shape, place) is not None for shape in others)


class _Victims:
    """The jobs that may make room, by scope and queue, so that each blocked job looks only at those it may ask."""

    def __init__(self, jobs: Sequence[Job], value: Mapping[int, float], margin: float, nodes: Nodes) -> None:
        """`jobs` in order of (submit time, job id)."""
        self._value = value
        self._margin = margin
        self._nodes = nodes
        self._worst_first: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
        best_first = sorted(jobs, key=lambda job: -value[job.job_id])
        for job in reversed(best_first):
            self._worst_first[job.scope, job.queue].append(job)
        self._left = sum(map(len, self._worst_first.values()))
        self._asked: set[int] = set()
        self._suitable: dict[tuple[str, str], list[Job]] = {}
        self._favour: defaultdict[tuple[str, str], list[Job]] | None = None

    def __bool__(self) -> bool:
        return self._left > 0

    def of(self, job: Job, most: int) -> tuple[Job, ...]:
        """Up to `most` that are worth clearly less than this job, the worst first.

        Scores may be negative (SRSF): the margin always widens the gap that is needed. Where only some nodes of its
        partition suit the job, only jobs that hold nothing but GPUs of those are asked.
        """
        worth = self._value[job.job_id]

        def is_worse(victim: Job) -> bool:
            loss = self._value[victim.job_id]
            return worth > (loss * self._margin if loss >= 0 else loss / self._margin)

        left = (victim for victim in self._on_suitable_nodes(job) if victim.job_id not in self._asked)
        return tuple(islice(takewhile(is_worse, left), most))

    def less_favoured(self, job: Job, most: int) -> tuple[Job, ...]:
        """Up to `most` of other scopes whose owners have had more than they are due, those that had most first."""
        favour = job.fair_share
        if not favour:
            return ()
        by_favour = self._by_favour()[job.queue, job.lane]
        below = takewhile(lambda victim: favour > _FAVOUR * (victim.fair_share or 0.0), by_favour)
        others = (
            victim
            for victim in below
            if victim.scope != job.scope and victim.job_id not in self._asked and self._suits(victim, job)
        )
        return tuple(islice(others, most))

    def remove(self, job: Job) -> None:
        """It has been asked."""
        self._asked.add(job.job_id)
        self._left -= 1

    def _on_suitable_nodes(self, job: Job) -> Sequence[Job]:
        of_queue = self._worst_first.get((job.scope, job.queue), [])
        if job.partition == job.queue or not of_queue:
            return of_queue
        key = job.scope, job.partition
        if key not in self._suitable:
            self._suitable[key] = [victim for victim in of_queue if self._suits(victim, job)]
        return self._suitable[key]

    def _suits(self, victim: Job, job: Job) -> bool:
        """Whether all that a victim holds is on nodes that the job may use."""
        usable, position = self._nodes.usable(job.partition), self._nodes.position
        return all(share.node in position and usable[position[share.node]] for share in victim.allocation)

    def _by_favour(self) -> Mapping[tuple[str, str], Sequence[Job]]:
        """By queue and lane those of known fair share, the least favoured owners first, of those the youngest job."""
        if self._favour is None:
            known = [job for jobs in self._worst_first.values() for job in jobs if job.fair_share is not None]
            started_s = np.array([job.start_s or 0.0 for job in known])
            favour: Floats = np.array([job.fair_share for job in known], dtype=np.float64)
            in_order = np.lexsort((np.array([job.job_id for job in known]), -started_s, favour))
            self._favour = defaultdict(list)
            for job in map(known.__getitem__, in_order.tolist()):
                self._favour[job.queue, job.lane].append(job)
        return self._favour


def _least_victims(job: Job, candidates: Sequence[Job], free: FreeGpus, place: Place) -> tuple[Job, ...]:
    """The shortest run of candidates, worst first, whose GPUs let the job start, less those it can do without."""
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
