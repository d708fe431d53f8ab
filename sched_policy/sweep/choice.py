"""Decides for the sweeps of a snapshot which of their jobs run, wait, leave and end.

Within each scope GPUs are shared equally between users; what one user cannot use is shared among the others (max-min
fair). Within a user's share, sweeps compete by the probability that their best model is still to come: the k-th
training of a sweep has that probability divided by k, so that two equal sweeps are served alike, and one that is
decided gives its share to the other, except for its best training, which runs to its end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import attrgetter
from statistics import median

import numpy as np
from msgspec import Struct

from sched_policy.model import Direction, Job, JobState
from sched_policy.plan import Preemption, Stop
from sched_policy.profile import AvailabilityProfile, FreeGpus
from sched_policy.snapshot import Floats, Snapshot
from sched_policy.sweep.trials import (
    Cache,
    Strategy,
    Sweep,
    SweepAction,
    SweepDecision,
    Trial,
    TrialState,
    Verdict,
    oriented,
)

SweepKey = tuple[str, str, str, str, Direction]
"""User, scope (`sched_policy.queue_order`), sweep, metric and its direction."""


class Wish(Struct, frozen=True):
    """The decision about one job of a sweep. `place` is its rank over all sweeps, from 0; None: it should not run."""

    place: int | None
    reason: str


MOST_FRESH = 4096
"""At most this many of a sweep's trainings that have never run are considered, in order of their ids; the others wait
behind them. Considering 100,000 in each pass would take too long."""


@dataclass(frozen=True)
class Choice:
    """The decisions of the sweeps of a snapshot.

    Attributes:
        wishes: the decision about each job of a sweep, by job id.
        preemptions: running jobs that should leave for others, or should not run now.
        stops: running and pending jobs from which nothing more is expected.

    """

    wishes: Mapping[int, Wish]
    preemptions: tuple[Preemption, ...] = ()
    stops: tuple[Stop, ...] = ()


_BEHIND = Wish(None, f"waits behind the first {MOST_FRESH} of its sweep that have never run")


class Sweeps(Struct, frozen=True):
    """How jobs of sweeps are scheduled.

    Attributes:
        strategy: decides inside each sweep.
        restart_s: cost of restarting a paused training in seconds, until it has been measured.
        checkpoint_s: cost of pausing one in seconds.

    """

    strategy: Strategy
    restart_s: float = 30.0
    checkpoint_s: float = 10.0

    def choose(self, snapshot: Snapshot) -> Choice:
        """Decide about all sweeps of the snapshot, for each scope separately."""
        by_scope: defaultdict[str, dict[SweepKey, list[Job]]] = defaultdict(dict)
        able = np.flatnonzero(snapshot.columns.holds | snapshot.columns.waits)
        members = _members(map(snapshot.jobs.__getitem__, able.tolist()))
        for key, own in members.items():
            by_scope[key[1]][key] = own
        if not members:
            return Choice({})
        site = _Site.of(snapshot)
        choices = [self._of_scope(by_scope[scope], site) for scope in sorted(by_scope)]
        _DECISIONS.forget_all_but(members)
        _REPORTS.forget_all_but(job.job_id for job in chain(*members.values(), snapshot.ended))
        wishes = {job_id: wish for choice in choices for job_id, wish in choice.wishes.items()}
        preemptions = chain.from_iterable(choice.preemptions for choice in choices)
        return Choice(wishes, tuple(preemptions), tuple(chain.from_iterable(choice.stops for choice in choices)))

    def _of_scope(self, members: Mapping[SweepKey, Sequence[Job]], site: _Site) -> Choice:
        """Distribute the GPUs that the sweeps of one scope hold, and free ones, among these sweeps."""
        sweeps_of = Counter(key[0] for key in members)
        users = sorted(sweeps_of)
        jobs = {job.job_id: job for own in members.values() for job in own}
        held = sum(job.request.total for job in jobs.values() if job.holds_gpus)
        capacity = site.free.count({job.partition for job in jobs.values()}) + held
        rough = {user: capacity // len(users) + (capacity % len(users) > n) for n, user in enumerate(users)}
        decisions: list[SweepDecision] = []
        of_user: defaultdict[str, list[SweepDecision]] = defaultdict(list)
        behind: dict[int, Wish] = {}
        for key, own in members.items():
            weighed, rest = _weighed(own)
            behind |= {job.job_id: _BEHIND for job in rest}
            gpus = max(1, rough[key[0]] // sweeps_of[key[0]])
            decisions.append(self._decision(key, weighed, site.ended.get(key, ()), gpus))
            of_user[key[0]].append(decisions[-1])
        wanted = {user: _merged(of_user[user]) for user in users}
        choice = _choice(site, jobs, decisions, wanted, _shares(capacity, users, wanted, jobs, site))
        return replace(choice, wishes={**behind, **choice.wishes})

    def _decision(self, key: SweepKey, own: Sequence[Job], ended: Sequence[Job], gpus: int) -> SweepDecision:
        """The strategy's decision about a sweep, computed again only when one of its inputs has changed."""
        took_s = [seconds for job in own if (seconds := _start_took_s(job)) is not None]
        # Whole seconds, so that small changes of measured times do not invalidate a cached decision.
        restart_s = float(round(median(took_s))) if took_s else self.restart_s

        def decide() -> SweepDecision:
            states = (TrialState.COMPLETED if job.has_completed else TrialState.ENDED for job in ended)
            trials = [*map(_trial, own), *map(_trial, ended, states)]
            sweep = Sweep.of(trials, restart_s, self.checkpoint_s)
            return _spared(self.strategy.decide(sweep, gpus), sweep.trials[int(np.argmin(sweep.best))].trial_id)

        looks = [[(_state(job), *_SHOWN(job)) for job in jobs] for jobs in (own, ended)]
        return _DECISIONS.recall(key, (self, gpus, restart_s, looks), decide)


@dataclass(frozen=True)
class _Site:
    """The inputs that the choices of all scopes share.

    Attributes:
        now_s: the current time.
        free: GPUs that no job holds.
        leaving: running jobs, of sweeps and others, that will soon be gone.
        ended: jobs of sweeps that have ended.
        ended_gpu_s: GPU-seconds that these have used, by user.

    """

    now_s: float
    free: FreeGpus
    leaving: Sequence[Job]
    ended: Mapping[SweepKey, Sequence[Job]]
    ended_gpu_s: Mapping[str, float]

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Site:
        """The inputs from this snapshot."""
        used: defaultdict[str, float] = defaultdict(float)
        for job in snapshot.ended:
            used[job.user] += job.executed_s(snapshot.now_s) * job.request.total
        leaving = tuple(job for job in snapshot.running if job.is_leaving)
        return cls(snapshot.now_s, AvailabilityProfile(snapshot).free_now(), leaving, _members(snapshot.ended), used)


_SHOWN = attrgetter("job_id", "points", "total_steps", "exploration", "request", "array_tasks", "has_completed")
_REPORTS: Cache[tuple[Floats, Floats]] = Cache()  # by job
_DECISIONS: Cache[SweepDecision] = Cache()


def _members(jobs: Iterable[Job]) -> dict[SweepKey, list[Job]]:
    """The jobs of each sweep. The pending tasks of an array are represented by the next one."""
    members: defaultdict[SweepKey, list[Job]] = defaultdict(list)
    for job in jobs:
        told = job.exploration
        if told is not None and told.sweep is not None:
            members[job.user, job.scope, told.sweep, told.metric, told.direction].append(job)
    return members


def _weighed(own: Sequence[Job]) -> tuple[Sequence[Job], Sequence[Job]]:
    """The jobs that are considered, and those that wait behind them (`MOST_FRESH`)."""
    if len(own) <= MOST_FRESH:
        return own, ()
    fresh = sorted((job for job in own if _state(job) is TrialState.WAITING), key=lambda job: job.job_id)
    behind = {job.job_id for job in fresh[MOST_FRESH:]}
    return [job for job in own if job.job_id not in behind], fresh[MOST_FRESH:]


def _trial(job: Job, state: TrialState | None = None) -> Trial:
    """The job as its sweep's strategy sees it."""
    direction = job.exploration.direction if job.exploration else Direction.MIN
    steps, values = _REPORTS.recall(job.job_id, (job.points, direction), lambda: oriented(job.points, direction))
    return Trial(
        job.job_id,
        state or _state(job),
        steps,
        values,
        float(job.total_steps) if job.total_steps else None,
        params=dict(job.exploration.params) if job.exploration else {},
        gpus=job.request.total,
        step_s=None if job.step_gpu_s is None else job.step_gpu_s / max(1, job.request.total),
        # Tasks of an array are stopped one by one, once they run: cancelling the array would cancel those as well.
        may_stop=job.exploration is not None and job.exploration.may_stop and job.array_tasks == 1,
        granted_step=job.granted_step,
    )


def _spared(decision: SweepDecision, leader: int) -> SweepDecision:
    """The decision without a stop of the sweep's best training: no strategy may take that away from a user."""
    runs = Verdict(leader, SweepAction.RUN, 1.0, "the best of its sweep is never stopped")
    kept = (runs if v.trial_id == leader and v.action is SweepAction.STOP else v for v in decision.verdicts)
    return SweepDecision(tuple(kept), decision.done)


def _start_took_s(job: Job) -> float | None:
    """How long the start-up of the job's current run took, in seconds; None until its reports show it.

    Its first report comes after some training: all steps up to it in a first run, one report interval in a later one.
    """
    if job.start_s is None or job.first_report_s is None or len(job.points) < 2:
        return None
    first, last = job.points[0], job.points[-1]
    if last.step <= first.step:
        return None
    step_s = (last.gpu_s - first.gpu_s) / (last.step - first.step) / max(1, job.request.total)
    steps = first.step if job.restarts == 0 else (last.step - first.step) / (len(job.points) - 1)
    return max(0.0, job.first_report_s - job.start_s - steps * step_s)


def _state(job: Job) -> TrialState:
    if job.is_leaving:
        return TrialState.LEAVING
    if job.state is JobState.RUNNING:
        return TrialState.RUNNING
    return TrialState.PAUSED if job.points or job.restarts else TrialState.WAITING


def _is_settled(job: Job, now_s: float) -> bool:
    """Whether it may be paused: it has made progress in its current run, so that its start was not in vain."""
    if job.start_s is None:
        return True
    return job.first_report_s is not None and (job.restarts == 0 or now_s > job.first_report_s)


def _merged(decisions: Iterable[SweepDecision]) -> list[Verdict]:
    """The trainings that a user's sweeps want to run, largest worth first; each sweep's own order is kept."""
    entries: list[tuple[float, int, int, Verdict]] = []
    for decision in decisions:
        wanted = [verdict for verdict in decision.verdicts if verdict.action is SweepAction.RUN]
        # Never more than the one before it, which keeps the sweep's order.
        worth = accumulate((verdict.worth for verdict in wanted), min)
        entries += ((-w, place, v.trial_id, v) for place, (w, v) in enumerate(zip(worth, wanted, strict=True)))
    return [verdict for *_, verdict in sorted(entries)]  # no job is in two sweeps, so no two verdicts are compared


def _shares(
    capacity: int,
    users: Sequence[str],
    wanted: Mapping[str, Sequence[Verdict]],
    jobs: Mapping[int, Job],
    site: _Site,
) -> dict[str, int]:
    """GPUs for each user: max-min fair. A leftover GPU goes to its present holder, else to the one who used least."""
    own = {user: [jobs[v.trial_id] for v in wanted[user]] for user in users}
    demand = {user: sum(job.request.total * job.array_tasks for job in own[user]) for user in users}
    held = dict.fromkeys(users, 0)
    used = {user: site.ended_gpu_s.get(user, 0.0) for user in users}
    for job in jobs.values():
        used[job.user] += job.executed_s(site.now_s) * job.request.total
        held[job.user] += job.request.total if job.holds_gpus else 0
    share = dict.fromkeys(users, 0)
    left = capacity
    while left > 0 and (lacking := [user for user in users if share[user] < demand[user]]):
        each = max(1, left // len(lacking))
        lacking.sort(key=lambda user: (held[user] <= share[user], used[user], user))
        for user in lacking[:left]:
            more = min(each, demand[user] - share[user])
            share[user] += more
            left -= more
    return share


def _choice(
    site: _Site,
    jobs: Mapping[int, Job],
    decisions: Iterable[SweepDecision],
    wanted: Mapping[str, Sequence[Verdict]],
    shares: Mapping[str, int],
) -> Choice:
    first: list[Verdict] = []
    later: list[Verdict] = []
    for user, verdicts in wanted.items():
        left = shares[user]
        for verdict in verdicts:
            gpus = jobs[verdict.trial_id].request.total
            (first if gpus <= left else later).append(verdict)
            left -= gpus if gpus <= left else 0
    wishes = {v.trial_id: Wish(place, v.reason) for place, v in enumerate((*first, *later))}
    rests = [v for decision in decisions for v in decision.verdicts if v.action is not SweepAction.RUN]
    wishes |= {v.trial_id: Wish(None, v.reason) for v in rests}
    stops = tuple(Stop(v.trial_id, v.reason) for v in rests if v.action is SweepAction.STOP)
    stopping = {stop.job_id for stop in stops}
    able = {i for i, job in jobs.items() if job.can_leave and i not in stopping and _is_settled(job, site.now_s)}
    free = site.free.copy()
    for job in (*site.leaving, *(jobs[job_id] for job_id in stopping if not jobs[job_id].is_leaving)):
        free.release(job.allocation)
    resting = [v for v in rests if v.trial_id in able]
    victims = {v.trial_id: v for v in (*resting, *reversed(later)) if v.trial_id in able}
    pausing = list(_making_room([jobs[v.trial_id] for v in first], victims, jobs, free))
    gone = {preemption.job_id for preemption in pausing}
    pausing += [Preemption(v.trial_id, v.reason) for v in resting if v.trial_id not in gone]
    return Choice(wishes, tuple(pausing), stops)


def _making_room(
    first: Iterable[Job], others: Mapping[int, Verdict], jobs: Mapping[int, Job], free: FreeGpus
) -> Iterator[Preemption]:
    """Running trainings to preempt for those with a better place. `others` are in the order in which they should leave.

    Only for a job that is known to start then (`Job.may_displace`), and only on nodes that it may use.
    """
    gone: set[int] = set()
    by_partition: dict[str, Iterator[Job]] = {}
    for gaining in first:
        if gaining.holds_gpus or not gaining.may_displace:
            continue
        left = (jobs[job_id] for job_id in others if job_id not in gone)
        victims = by_partition.setdefault(gaining.partition, free.serving(left, gaining.partition))
        while free.count([gaining.partition]) < gaining.request.total:
            if (victim := next(victims, None)) is None:
                break
            verdict = others[victim.job_id]
            why = f"; {verdict.reason}" if verdict.action is not SweepAction.RUN else ""
            yield Preemption(victim.job_id, f"makes room for job {gaining.job_id}{why}", gaining.job_id)
            gone.add(victim.job_id)
            free.release(victim.allocation)
        else:
            free.take_any(gaining.request.total, gaining.partition)
