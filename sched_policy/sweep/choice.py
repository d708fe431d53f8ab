"""From a snapshot to what its sweeps want: which of their jobs run, wait, make room and end.

In each scope by itself, GPUs are shared between users in equal parts; what one cannot use is shared among the others.
Inside a user's part his sweeps compete by the probability that their best is still to come: the k-th training of a
sweep counts that probability divided by k, so that two equal sweeps are served alike and one that is done gives
everything to the other.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from msgspec import Struct

from sched_policy.model import Direction, Job, JobState
from sched_policy.plan import Preemption, Stop
from sched_policy.snapshot import Snapshot
from sched_policy.sweep.recall import DecisionMemory, ReportMemory
from sched_policy.sweep.trials import Strategy, Sweep, SweepAction, SweepDecision, Trial, TrialState, Verdict

SweepKey = tuple[str, str, str, str]
"""User, sweep, metric with its direction, and scope (`sched_policy.queue_order`)."""


class Wish(Struct, frozen=True):
    """What a sweep wants of one of its jobs. `place` counts from 0 over all sweeps; None: it should not run now."""

    place: int | None
    reason: str


MOST_FRESH = 4096
"""Of a sweep's trainings that have never run so many are weighed, in the order of their ids. The others wait behind
them: to weigh 100,000 again in each pass would keep the daemon from everything else."""


@dataclass(frozen=True)
class Choice:
    """What the sweeps of a snapshot want.

    Attributes:
        wishes: of each job of a sweep, by job id.
        preemptions: running jobs that should make room, or should not run now.
        stops: jobs of which nothing more is expected, waiting ones too.

    """

    wishes: Mapping[int, Wish]
    preemptions: tuple[Preemption, ...] = ()
    stops: tuple[Stop, ...] = ()


_BEHIND = Wish(None, f"waits behind the first {MOST_FRESH} of its sweep that have never run")


class Sweeps(Struct, frozen=True):
    """How jobs of sweeps are scheduled.

    Attributes:
        strategy: decides inside each sweep.
        restart_s: what starting a paused training again costs, where nothing has been measured.
        checkpoint_s: what pausing one costs.

    """

    strategy: Strategy
    restart_s: float = 30.0
    checkpoint_s: float = 10.0

    def choose(self, snapshot: Snapshot) -> Choice:
        """Decide about all sweeps of the snapshot, in each scope by itself."""
        members = _members(snapshot)
        if not members:
            return Choice({})
        scopes = sorted({key[3] for key in members})
        choices = [self._of_scope({k: own for k, own in members.items() if k[3] == s}, snapshot) for s in scopes]
        _DECISIONS.forget_all_but(members)
        _REPORTS.forget_all_but(job.points for job in (*snapshot.jobs, *snapshot.ended))
        wishes = {job_id: wish for choice in choices for job_id, wish in choice.wishes.items()}
        return Choice(
            wishes,
            tuple(preemption for choice in choices for preemption in choice.preemptions),
            tuple(stop for choice in choices for stop in choice.stops),
        )

    def _of_scope(self, members: Mapping[SweepKey, Sequence[Job]], snapshot: Snapshot) -> Choice:
        """What sweeps of one scope want of the GPUs that they hold and those that nobody does."""
        users = sorted({key[0] for key in members})
        sweeping = {job.job_id for jobs in members.values() for job in jobs}
        others = sum(job.request.total for job in snapshot.running if job.job_id not in sweeping)
        capacity = max(0, snapshot.nodes.capacity - others)
        jobs = {job.job_id: job for jobs in members.values() for job in jobs}
        rough = {user: capacity // len(users) + (capacity % len(users) > n) for n, user in enumerate(users)}
        decisions: dict[SweepKey, SweepDecision] = {}
        behind: dict[int, Wish] = {}
        for key, own in members.items():
            sweeps_of_user = sum(other[0] == key[0] for other in members)
            weighed, rest = _weighed(own)
            behind |= {job.job_id: _BEHIND for job in rest}
            sweep = self._sweep(key, weighed, snapshot)
            gpus = max(1, rough[key[0]] // sweeps_of_user)
            decisions[key] = _DECISIONS.recall(key, self.strategy, sweep, gpus)
        wanted = {user: _merged(user, decisions) for user in users}
        shares = _shares(capacity, users, wanted, jobs, snapshot)
        choice = _choice(snapshot, jobs, decisions, wanted, shares)
        return replace(choice, wishes={**behind, **choice.wishes})

    def _sweep(self, key: SweepKey, own: Sequence[Job], snapshot: Snapshot) -> Sweep:
        ended = [job for job in snapshot.ended if _key(job) == key]
        trials = [_trial(job, snapshot.now_s) for job in own]
        trials += [_trial(job, snapshot.now_s, TrialState.ENDED) for job in ended]
        took_s = [seconds for job in own if (seconds := _start_took_s(job)) is not None]
        # Whole seconds: a decision is remembered for as long as nothing that matters has changed.
        restart_s = float(round(median(took_s))) if took_s else self.restart_s
        return Sweep.of(trials, restart_s, self.checkpoint_s)


class _Latest:
    """Remembers the choice for the snapshot that was asked about last: order and plan share one computation."""

    def __init__(self) -> None:
        self._kept: tuple[Snapshot, Sweeps, Choice] | None = None

    def recall(self, sweeps: Sweeps, snapshot: Snapshot) -> Choice:
        kept = self._kept
        if kept is None or kept[0] is not snapshot or kept[1] != sweeps:
            kept = self._kept = snapshot, sweeps, sweeps.choose(snapshot)
        return kept[2]


_LATEST = _Latest()
_REPORTS = ReportMemory()
_DECISIONS = DecisionMemory()


def chosen(sweeps: Sweeps, snapshot: Snapshot) -> Choice:
    """What the sweeps of the snapshot want, computed once per snapshot."""
    return _LATEST.recall(sweeps, snapshot)


def _key(job: Job) -> SweepKey | None:
    """Jobs whose metrics compare: same user, sweep, metric and direction; None for a job of no sweep."""
    exploration = job.exploration
    if exploration is None or exploration.sweep is None:
        return None
    return job.user, exploration.sweep, f"{exploration.metric}:{exploration.direction}", job.scope


def _members(snapshot: Snapshot) -> dict[SweepKey, list[Job]]:
    """Those that run or may start. Of the tasks of an array that wait, the next one stands for all."""
    members: dict[SweepKey, list[Job]] = {}
    for job in snapshot.jobs:
        key = _key(job)
        if key is not None and (job.holds_gpus or job.eligible):
            members.setdefault(key, []).append(job)
    return members


def _weighed(own: Sequence[Job]) -> tuple[Sequence[Job], Sequence[Job]]:
    """The jobs that a decision is made about, and those that wait behind them."""
    fresh = sorted((job for job in own if _state(job) is TrialState.WAITING), key=lambda job: job.job_id)
    if len(fresh) <= MOST_FRESH:
        return own, ()
    behind = {job.job_id for job in fresh[MOST_FRESH:]}
    return [job for job in own if job.job_id not in behind], fresh[MOST_FRESH:]


def _trial(job: Job, now_s: float, state: TrialState | None = None) -> Trial:
    """The job as its sweep's strategy sees it."""
    steps, values = _REPORTS.recall(job.points, job.exploration.direction if job.exploration else Direction.MIN)
    last = job.points[-1] if job.points else None
    known = last is not None and last.step > 0
    return Trial(
        job.job_id,
        state or _state(job),
        steps,
        values,
        float(job.total_steps) if job.total_steps else None,
        params=dict(job.exploration.params) if job.exploration else {},
        gpus=job.request.total,
        step_s=last.gpu_s / last.step / max(1, job.request.total) if last is not None and known else None,
        may_pause=job.may_yield,
        # Tasks of an array are stopped one by one, once they run: who cancels the array cancels those, too.
        may_stop=job.exploration is not None and job.exploration.may_stop and job.array_tasks == 1,
        settled=_is_settled(job, now_s),
    )


def _start_took_s(job: Job) -> float | None:
    """How long the job's present run took from its start until it trained; None while its reports do not tell.

    Its first report comes after some training: after all its steps in a first run, after one report's in a later one.
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
    if job.state is JobState.COMPLETING or job.yielding:
        return TrialState.LEAVING
    if job.state is JobState.RUNNING:
        return TrialState.RUNNING
    return TrialState.PAUSED if job.points or job.restarts else TrialState.WAITING


def _is_settled(job: Job, now_s: float) -> bool:
    """Whether it has made progress in its present run that a pause would be worth: it has reported since it loaded."""
    if job.start_s is None:
        return True
    return job.first_report_s is not None and (job.restarts == 0 or now_s > job.first_report_s)


def _merged(user: str, decisions: Mapping[SweepKey, SweepDecision]) -> list[Verdict]:
    """What a user's sweeps want to run, the worthiest first; a sweep's own order is kept."""
    entries: list[tuple[float, int, int, Verdict]] = []
    for key, decision in decisions.items():
        if key[0] == user:
            wanted = [verdict for verdict in decision.verdicts if verdict.action is SweepAction.RUN]
            # Never more than the one before it, or its sweep's order would not be kept.
            worth = accumulate((verdict.worth for verdict in wanted), min)
            entries += ((-w, place, v.trial_id, v) for place, (w, v) in enumerate(zip(worth, wanted, strict=True)))
    return [verdict for *_, verdict in sorted(entries, key=lambda entry: entry[:3])]


def _shares(
    capacity: int,
    users: Sequence[str],
    wanted: Mapping[str, Sequence[Verdict]],
    jobs: Mapping[int, Job],
    snapshot: Snapshot,
) -> dict[str, int]:
    """GPUs for each user: max-min fair. An odd GPU goes to who holds it already, else to who has used least."""
    own = {user: [jobs[v.trial_id] for v in wanted[user]] for user in users}
    demand = {user: sum(job.request.total * job.array_tasks for job in own[user]) for user in users}
    held = dict.fromkeys(users, 0)
    used = dict.fromkeys(users, 0.0)
    for job in (*jobs.values(), *(job for job in snapshot.ended if job.user in used)):
        used[job.user] += job.executed_s(snapshot.now_s) * job.request.total
    for job in jobs.values():
        held[job.user] += job.request.total if job.holds_gpus else 0
    share = dict.fromkeys(users, 0)
    left = capacity
    while left > 0:
        lacking = [user for user in users if share[user] < demand[user]]
        if not lacking:
            break
        each = left // len(lacking)
        if each == 0:
            lacking.sort(key=lambda user: (held[user] <= share[user], used[user], user))
            for user in lacking[:left]:
                share[user] += 1
            break
        for user in lacking:
            more = min(each, demand[user] - share[user])
            share[user] += more
            left -= more
    return share


def _choice(
    snapshot: Snapshot,
    jobs: Mapping[int, Job],
    decisions: Mapping[SweepKey, SweepDecision],
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
    rests = [v for decision in decisions.values() for v in decision.verdicts if v.action is not SweepAction.RUN]
    wishes |= {v.trial_id: Wish(None, v.reason) for v in rests}
    stops = tuple(Stop(v.trial_id, v.reason) for v in rests if v.action is SweepAction.STOP)
    stopping = {stop.job_id for stop in stops}
    able = {
        job_id
        for job_id, job in jobs.items()
        if job.state is JobState.RUNNING
        and job.may_yield
        and not job.yielding
        and job_id not in stopping
        and _is_settled(job, snapshot.now_s)
    }
    pausing = [Preemption(v.trial_id, v.reason) for v in rests if v.trial_id in able]
    coming = {preemption.job_id for preemption in pausing} | stopping
    coming |= {job.job_id for job in snapshot.running if job.yielding or job.state is JobState.COMPLETING}
    free = snapshot.nodes.capacity - sum(job.request.total for job in snapshot.running if job.job_id not in coming)
    pausing += _making_room([jobs[v.trial_id] for v in first], [(jobs[v.trial_id], v) for v in later], able, free)
    return Choice(wishes, tuple(pausing), stops)


def _making_room(
    first: Sequence[Job], later: Sequence[tuple[Job, Verdict]], able: Container[int], free: int
) -> Iterator[Preemption]:
    """Running trainings that make room for those that go first, the least wanted first.

    Only for a job that is known to start then (`Job.may_displace`).
    """
    gaining = [job for job in first if not job.holds_gpus and job.may_displace]
    lacking = sum(job.request.total for job in gaining) - max(0, free)
    for job, verdict in reversed(later):
        if lacking > 0 and job.job_id in able:
            reason = f"others of its owner's sweeps go first; {verdict.reason}"
            yield Preemption(job.job_id, reason, gaining[0].job_id)
            lacking -= job.request.total
