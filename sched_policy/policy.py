"""A policy is a row: order x place x backfill (x admission x preempt x stop). `plan` runs it on a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.backfill import Backfill
from sched_policy.displace import Displace
from sched_policy.elastic import Resizing
from sched_policy.model import Job, JobState
from sched_policy.order import Order
from sched_policy.place import Consolidate, Place
from sched_policy.plan import Plan, Preemption, Ranking, Reservation, Start, Stop
from sched_policy.profile import AvailabilityProfile
from sched_policy.queue_order import by_wishes, within_scopes
from sched_policy.snapshot import Snapshot
from sched_policy.sweep.choice import Choice, Sweeps


class JobData(StrEnum):
    """Data of jobs that some policies need, beyond their submission and GPUs."""

    RUN_TIMES = "run-time estimates or time limits"
    LEARNING_CURVES = "learning curves"
    STAGE_TIMES = "stage times"
    PRIORITIES = "opportunistic priority"
    PARTS = "requests for parts of GPUs"


class Need(Struct, frozen=True):
    """Data that a policy needs, and what it does with jobs that lack it (a clause: "jobs ... come last")."""

    data: JobData
    without: str


class SchedulingPolicy(Protocol):
    """The interface of a policy for daemon and simulator, whether ours or of another package."""

    @property
    def name(self) -> str:
        """Its name in configuration files and on command lines."""
        ...

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        ...

    @property
    def needs_durations(self) -> bool:
        """Whether it uses run times; if not, simulations give it none."""
        ...

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide. A pure function: the same snapshot gives the same plan everywhere."""
        ...


def needs_of(policy: SchedulingPolicy) -> tuple[Need, ...]:
    """The data that a policy needs; none for a policy of another package that declares nothing."""
    needs: tuple[Need, ...] = getattr(policy, "needs", ())
    return needs


class Sharing(Protocol):
    """Decides which jobs share GPUs."""

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Starts, groups, preemptions and `replan_s` only. All placements name the GPUs (`NodeGpus.indices`)."""
        ...


class Admission(Protocol):
    """Decides which blocked jobs may get a reservation."""

    def admits(self, snapshot: Snapshot, ranking: Ranking) -> Callable[[Job, int], bool]:
        """The test for this snapshot: (job, GPUs reserved for others then) -> may get one."""
        ...


class Stopping(Protocol):
    """Decides which jobs to stop because they have nothing left to learn."""

    def stops(self, snapshot: Snapshot) -> tuple[Stop, ...]:
        """Jobs of the snapshot that should end now."""
        ...


class Policy(Struct, frozen=True):
    """A named scheduling policy.

    With `admission` None, reservations are made in order alone. `preempt` and `stop` affect only jobs that opted in;
    None: the policy never interrupts a job. `resize` None keeps elastic jobs at their sizes. `sharing`, if set,
    replaces backfill, admission, preemption and resizing. `sweeps` ranks the jobs of sweeps (`order` the others), and
    decides which of them wait although GPUs are free, are preempted, and end. `needs` lists the data without which the
    policy decides worse, for `sexplsched policies` and the warnings of `simulate`.
    """

    name: str
    summary: str
    order: Order
    place: Place = Consolidate()
    backfill: Backfill = Backfill()
    admission: Admission | None = None
    preempt: Displace | None = None
    stop: Stopping | None = None
    sharing: Sharing | None = None
    resize: Resizing | None = None
    sweeps: Sweeps | None = None
    needs: tuple[Need, ...] = ()

    @property
    def needs_durations(self) -> bool:
        """Whether it uses run times: in its order, or for reservations."""
        makes_reservations = self.sharing is None and self.backfill.reservation_depth > 0
        return self.order.needs_durations or makes_reservations

    def plan(self, snapshot: Snapshot) -> Plan:
        """Decide. A pure function: the same snapshot gives the same plan everywhere."""
        choice = self.sweeps.choose(snapshot) if self.sweeps else Choice({})
        ranking = within_scopes(by_wishes(choice.wishes, self.order, snapshot), snapshot)
        if self.sharing is not None:
            return self._shared(self.sharing, ranking, snapshot)
        held_back = {job_id for job_id, wish in choice.wishes.items() if wish.place is None}
        rows = ranking.rows[snapshot.columns.waits[ranking.rows]].tolist()
        queue = [job for job in map(snapshot.jobs.__getitem__, rows) if job.job_id not in held_back]
        admits = self.admission.admits(snapshot, ranking) if self.admission else None
        profile = AvailabilityProfile(snapshot)
        resize = self.resize if self.resize and any(job.elastic for job in snapshot.jobs) else None
        shrink = resize.shrink(snapshot.now_s, self.place) if resize else None
        booked = self.backfill.schedule(profile, snapshot.now_s, queue, self.place, admits, shrink)
        starts, resizes = booked.starts, booked.resizes

        stops = (*choice.stops, *(self.stop.stops(snapshot) if self.stop else ()))
        preemptions: tuple[Preemption, ...] = choice.preemptions
        replan_s = ranking.stable_until_s
        blocked = tuple(_still_blocked(queue, starts, choice.wishes))
        if self.preempt is not None and blocked:
            stopping = {stop.job_id for stop in stops} | choice.wishes.keys()
            found = self.preempt.preemptions(snapshot, ranking, blocked, profile, self.place)
            preemptions += tuple(p for p in found if p.job_id not in stopping)
            replan_s = min(replan_s, snapshot.next_quantum_s(self.preempt.quantum_s))
        if resize is not None and not blocked and not resizes:
            grown = resize.grow(snapshot, ranking, starts, profile, self.place)
            starts, resizes = grown.starts, grown.resizes
            replan_s = min(replan_s, grown.replan_s)
        if resize is not None:
            going = {stop.job_id for stop in stops} | {gone.job_id for gone in preemptions}
            going |= {change.job_id for change in resizes}
            due = resize.walltime_requeue.preemptions(snapshot)
            preemptions += tuple(leaving for leaving in due if leaving.job_id not in going)
            replan_s = min(replan_s, resize.walltime_requeue.next_s(snapshot, starts))
        return Plan(
            ranking,
            starts,
            booked.reservations,
            preemptions=preemptions,
            stops=stops,
            resizes=resizes,
            held_back=frozenset(held_back),
            rests=frozenset(_resting(snapshot, held_back)),
            placed=frozenset(start.job_id for start in starts) if self.place.binds else frozenset(),
            replan_s=replan_s,
        )

    def _shared(self, sharing: Sharing, ranking: Ranking, snapshot: Snapshot) -> Plan:
        """A plan where jobs share GPUs, without those that would still hold nodes of an overdue job's reservation."""
        shared = sharing.share(snapshot, ranking, self.place)
        first = _first_overdue(snapshot, ranking, shared.starts, self.place)
        late = _late(shared.starts, first, snapshot)
        groups = (
            replace(group, job_ids=tuple(job_id for job_id in group.job_ids if job_id not in late))
            for group in shared.groups
        )
        return replace(
            shared,
            scores=ranking,
            starts=tuple(start for start in shared.starts if start.job_id not in late),
            reservations=(first,) if first else (),
            groups=tuple(group for group in groups if len(group.job_ids) > 1),
            replan_s=min(ranking.stable_until_s, shared.replan_s),
        )


def _resting(snapshot: Snapshot, held_back: Container[int]) -> Iterator[int]:
    """The held-back jobs that stay paused: only those paused before, and none that is overdue."""
    for job in snapshot.jobs:
        is_paused = job.state is JobState.PENDING and job.restarts > 0
        if job.job_id in held_back and is_paused and job.allows_preemption and not job.is_overdue:
            yield job.job_id


def _first_overdue(snapshot: Snapshot, ranking: Ranking, starts: Iterable[Start], place: Place) -> Reservation | None:
    """The reservation of the first overdue job that does not start, so nobody starves where jobs share GPUs."""
    started = {start.job_id for start in starts}
    rows = ranking.rows[snapshot.columns.waits[ranking.rows]].tolist()
    blocked = (job for row in rows if (job := snapshot.jobs[row]).is_overdue and job.job_id not in started)
    job = next((job for job in blocked if job.array_tasks == 1), None)
    if job is None:
        return None
    profile = AvailabilityProfile(snapshot)
    found = profile.earliest(job.request, job.planned_s, job.partition, place)
    if found is None:
        return None
    start_s, there = found
    reason = f"it has waited too long; its {job.request.total} GPUs are free in {start_s - snapshot.now_s:.0f} s"
    return Reservation(job.job_id, profile.named(there), start_s, start_s + job.planned_s, reason)


def _late(starts: Sequence[Start], first: Reservation | None, snapshot: Snapshot) -> set[int]:
    """The jobs that would still hold nodes of a reservation, or of an absence, when it begins."""
    free_s, position = snapshot.stays_s.copy(), snapshot.nodes.position
    if first is not None:
        reserved = [position[share.node] for share in first.placement]
        free_s[reserved] = np.minimum(free_s[reserved], first.start_s - snapshot.now_s)
    least_s = {start.job_id: min(free_s[position[share.node]] for share in start.placement) for start in starts}
    jobs = snapshot.jobs if min(least_s.values(), default=np.inf) < np.inf else ()
    return {job.job_id for job in jobs if job.planned_s > least_s.get(job.job_id, np.inf)}


def _still_blocked(queue: Sequence[Job], starts: Iterable[Start], others: Container[int]) -> Iterator[tuple[Job, int]]:
    """Jobs with tasks that do not start, and how many of those there are; `others` are left out."""
    started = Counter(start.job_id for start in starts)
    for job in queue:
        left = job.array_tasks - job.throttled_tasks - started[job.job_id]
        if job.job_id not in others and left > 0:
            yield job, left
