"""Event-driven simulation of a cluster: the `slurm` conventions.

The policy plans at scheduling intervals from what the daemon would know. Decisions have their real costs: a preempted
job holds its GPUs while it saves, a restarted one while it loads, gangs are placed on nodes, and jobs end at their time
limits.

Where `Settings` says so, Slurm's own two schedulers start the jobs, given the order that the policy gave the queue
last. slurmctld runs the main scheduler at most once in `batch_sched_delay` after something has changed, and every
`sched_interval`; it takes the queue in order of priority, and once a job does not fit, all others of the partition wait
for backfill. Backfill runs every `bf_interval`, and plans a start for every job that does not fit. Both know
time limits only, and choose the nodes themselves. Jobs that the policy has not ordered yet come last.

Where jobs ask for shards of a GPU, both give every free one to the next in the queue, suitable or not: so the policy
decides the order, as the daemon's steering would hand it to Slurm, and not how many share.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from msgspec.structs import replace

from explsched.errors import ExplschedError
from sched_policy.backfill import ALL, Backfill
from sched_policy.checked import checked_plan
from sched_policy.model import Job, JobState, NodeGpus
from sched_policy.place import Consolidate
from sched_policy.plan import Plan, Start
from sched_policy.policy import SchedulingPolicy
from sched_policy.profile import AvailabilityProfile
from sched_policy.queue_order import queue_order
from sched_policy.snapshot import Snapshot
from simulation.cluster.cluster_state import ClusterState
from simulation.cluster.job_table import JobPhase
from simulation.cluster.settings import Estimates, EstimateSource, Settings, Timer
from simulation.pairs import interference_of
from simulation.results.outcome import Ending, TraceOutcome
from simulation.traces.trace import ClusterShape, Trace
from slurm_plugin.client.records import ShardRule
from slurm_plugin.steering.release import Releases, choice, foreseen
from slurm_plugin.steering.slurm_order import wanted_order

AS_SLURM = Backfill(ALL, queue_depth=500, window_s=86_400.0)
"""Slurm's own: conservative, with bf_max_job_test and bf_window as they are by default."""

_PLACE = Consolidate()


def main_starts(order: Sequence[int], snapshot: Snapshot, rests: Container[int] = ()) -> Iterator[Start]:
    """Starts by the main scheduler: what fits, up to the first job of each partition that does not."""
    profile = AvailabilityProfile(snapshot)
    blocked: set[str] = set()
    for job in _queue(order, snapshot, rests):
        if job.partition in blocked:
            continue
        here = profile.fits_now(job.request, job.planned_s, job.partition, _PLACE)
        if here is None:
            blocked.add(job.partition)
            continue
        profile.start(here, snapshot.now_s + job.planned_s)
        yield Start(job.job_id, profile.named(here), "at the head of the queue, and it fits")


def backfill_starts(order: Sequence[int], snapshot: Snapshot, rests: Container[int] = ()) -> Sequence[Start]:
    """Starts by backfill: what fits without delaying a job with higher priority."""
    profile = AvailabilityProfile(snapshot)
    return AS_SLURM.schedule(profile, snapshot.now_s, _queue(order, snapshot, rests), _PLACE).starts


def shard_starts(order: Sequence[int], snapshot: Snapshot, shards: int, rule: ShardRule) -> Iterator[Start]:
    """Starts on free shards, in order of priority; of several nodes the first with one."""
    free = {node: _free(held, shards) for node, held in _held_by_gpu(snapshot).items()}
    for job in _queue(order, snapshot):
        found = ((node, gpu) for node, left in free.items() if (gpu := choice(left, 1, rule)) is not None)
        here = next(found, None)
        if here is None:
            return
        node, gpu = here
        free[node][gpu] -= 1
        yield Start(job.job_id, (NodeGpus(node, 1, (gpu,)),), "next in the queue, and a shard is free")


def steered(plan: Plan, snapshot: Snapshot, shards: int, rule: ShardRule) -> tuple[int, ...]:
    """The order in which the daemon's steering has Slurm consider jobs that ask for one shard each."""
    held = _held_by_gpu(snapshot)
    by_node: defaultdict[str, list[Start]] = defaultdict(list)
    for start in plan.starts:
        if start.placement[0].indices:
            by_node[start.placement[0].node].append(start)
    released: list[int] = []
    for node, starts in by_node.items():
        each = {start.job_id: 1 for start in starts}
        holders = {gpu: ids for gpu, ids in enumerate(held[node]) if ids}
        released += foreseen(starts, holders, _free(held[node], shards), each, rule)
    return wanted_order(plan, snapshot, Releases(tuple(released)))


def _free(held: Sequence[tuple[int, ...]], shards: int) -> list[int]:
    return [shards - len(ids) for ids in held]


def _held_by_gpu(snapshot: Snapshot) -> Mapping[str, list[tuple[int, ...]]]:
    """The jobs on every GPU of every node."""
    held: dict[str, list[tuple[int, ...]]] = {node.name: [()] * node.gpus for node in snapshot.nodes}
    for job in snapshot.running:
        for share in job.allocation:
            for gpu in share.indices:
                held[share.node][gpu] += (job.job_id,)
    return held


def _queue(order: Sequence[int], snapshot: Snapshot, rests: Container[int] = ()) -> list[Job]:
    """The waiting jobs without those that rest: those of the order first, then the others in order of submission."""
    place = {job_id: number for number, job_id in enumerate(order)}
    waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING and job.job_id not in rests]
    return sorted(waiting, key=lambda job: (place.get(job.job_id, len(place)), job.submit_s, job.job_id))


Progress = Callable[[int, int], None]
"""Called with (jobs ended, jobs in all) as the simulation goes on."""

Watch = Callable[[Snapshot], None]
"""Called before each pass of the policy with what it sees."""


_MOST_VAIN_PASSES = 1000


class SimulationError(ExplschedError):
    """A simulation that cannot go on; the message names the policy and the jobs."""


class _Kind(IntEnum):
    """Events of one moment are handled in this order: first what frees GPUs, then what requests them, then passes."""

    END = 0
    GPUS_FREE = 1
    SUBMIT = 2
    POLICY = 3
    BACKFILL = 4
    MAIN = 5


def simulate(
    trace: Trace,
    cluster: ClusterShape,
    policy: SchedulingPolicy,
    settings: Settings,
    progress: Progress = lambda _n, _m: None,
    watch: Watch = lambda _snapshot: None,
) -> TraceOutcome:
    """Replay a trace under a policy until every job has ended, or until `settings.until_s`.

    Raises `SimulationError` if jobs remain that the policy never starts, and `PolicyError` for an invalid plan.
    """
    return _Simulation(trace, cluster, policy, settings, watch).run(progress)


class _Simulation:
    def __init__(
        self, trace: Trace, cluster: ClusterShape, policy: SchedulingPolicy, settings: Settings, watch: Watch
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._watch = watch
        self._shards, self._shard_rule = settings.shards, settings.shard_rule
        if self._shards is not None and any(job.gpus != 1 for job in trace.jobs):
            raise SimulationError("shards are of one GPU, and the trace has jobs of several")
        periods = {
            _Kind.POLICY: settings.policy_period,
            _Kind.BACKFILL: settings.backfill_period,
            _Kind.MAIN: settings.main_period,
        }
        self._timers = {kind: Timer(period) for kind, period in periods.items() if period is not None}
        self._order: tuple[int, ...] = ()  # the queue as the policy ordered it last
        self._rests: frozenset[int] = frozenset()
        self._until_s = math.inf if settings.until_s is None else settings.until_s
        known = settings if policy.needs_durations else replace(settings, estimates=Estimates())
        self._learns_run_times = known.estimates.source is EstimateSource.LEARNT
        self._state = ClusterState(trace.jobs, cluster, known, interference_of(policy))
        self._events = [(job.submit_s, _Kind.SUBMIT, row, 0) for row, job in enumerate(trace.jobs)]
        heapq.heapify(self._events)
        self._version = [0] * len(trace.jobs)
        self._handled = 0
        self._ended = 0
        self._vain_passes = 0  # in a row

    def run(self, progress: Progress) -> TraceOutcome:
        total = len(self._events)
        while self._events and self._events[0][0] <= self._until_s:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] == now_s:
                _, kind, row, version = heapq.heappop(self._events)
                self._handle(now_s, kind, row, version)
            self._state.note_usage(now_s)
            progress(self._ended, total)
        if self._events:
            self._state.close(self._until_s)
        elif not self._state.is_idle:
            waiting = self._state.snapshot(0.0).jobs
            raise SimulationError(
                f"policy {self._policy.name!r} never starts {len(waiting)} job(s) on an idle cluster, the first is "
                f"job {waiting[0].job_id} with {waiting[0].request.total} GPUs"
            )
        jobs, usage = self._state.records()
        return TraceOutcome(
            self._policy.name, self._cluster, jobs, usage, self._handled, predicted=self._state.predicted
        )

    def _handle(self, now_s: float, kind: _Kind, row: int, version: int) -> None:
        if kind in self._timers:
            if self._timers[kind].fires(now_s):
                self._handled += 1
                self._run_pass(now_s, kind)
                self._schedule_ends()
            return
        if version != self._version[row]:
            return  # replaced by a later event of the job
        self._handled += 1
        if kind is _Kind.SUBMIT:
            self._state.submit(row)
        elif kind is _Kind.GPUS_FREE:
            self._state.requeue(row, now_s)
        else:
            self._end(row, now_s)
        self._schedule_ends()
        for scheduler in self._timers:
            self._request_pass(scheduler, now_s)

    def _end(self, row: int, now_s: float, why: Ending | None = None) -> None:
        self._version[row] += 1
        self._state.end(row, now_s, why)
        self._ended += 1
        self._vain_passes = 0

    def _run_pass(self, now_s: float, kind: _Kind) -> None:
        if kind is _Kind.POLICY:
            self._policy_pass(now_s)
        elif self._state.waiting.size and self._shards is not None:
            snapshot = self._state.snapshot(now_s)
            self._start(shard_starts(self._order, snapshot, self._shards, self._shard_rule), now_s)
        elif self._state.waiting.size:
            starts = backfill_starts if kind is _Kind.BACKFILL else main_starts
            self._start(starts(self._order, self._state.snapshot(now_s), self._rests), now_s)

    def _policy_pass(self, now_s: float) -> None:
        if not (self._state.waiting.size or self._state.expects_reports or self._state.may_grow):
            return
        snapshot = self._state.snapshot(now_s)
        self._watch(snapshot)
        plan = checked_plan(self._policy, snapshot)
        self._state.note_plan(plan.held_back)
        self._apply(plan, now_s)
        changeable = self._state.waiting.size or self._state.may_grow
        replan_s = now_s if self._state.expects_reports else plan.replan_s if changeable else math.inf
        if self._learns_run_times:  # a reservation that has not begun by its time: what fits before it has changed
            replan_s = min(replan_s, snapshot.next_s(one.start_s for one in plan.reservations))
        if math.isfinite(replan_s):
            self._request_pass(_Kind.POLICY, replan_s)
        if len(self._timers) > 1:  # Slurm starts jobs, too
            # GPUs that are being vacated count as free in that order.
            then = self._state.snapshot(now_s)
            self._rests = plan.rests
            if self._shards is None:
                self._order = queue_order(plan, then)
            else:
                self._order = steered(plan, then, self._shards, self._shard_rule)
            for scheduler in self._timers.keys() - {_Kind.POLICY}:
                self._request_pass(scheduler, now_s)

    def _apply(self, plan: Plan, now_s: float) -> None:
        for stop in plan.stops:
            self._end(self._row(stop.job_id), now_s, Ending.STOPPED)
        for scheduler in self._timers if plan.stops else ():  # their GPUs are free now
            self._request_pass(scheduler, now_s)
        for resize in plan.resizes:
            row = self._row(resize.job_id)
            if self._state.phase(row) is JobPhase.WAITING:
                self._state.resize(row, resize.request.total)
        if plan.preemptions:
            self._vain_passes = 0 if self._state.any_works(now_s) else self._vain_passes + 1
        if self._vain_passes > _MOST_VAIN_PASSES:
            raise SimulationError(
                f"policy {self._policy.name!r} preempts all jobs before they get to work, {_MOST_VAIN_PASSES} times "
                "in a row: its slices are shorter than a restart takes (--checkpoint, --restart; utility.quantum_s)"
            )
        leaving = [preemption.job_id for preemption in plan.preemptions]
        leaving += [resize.job_id for resize in plan.resizes]  # a running job takes its new size while it waits
        for row in map(self._row, leaving):
            if self._state.phase(row) is JobPhase.RUNNING:
                self._schedule(self._state.preempt(row, now_s), _Kind.GPUS_FREE, row)
        if self._shards is not None:
            return  # Slurm starts all jobs
        # A group's members are released together, onto GPUs that the policy chose.
        grouped = {job_id for group in plan.groups for job_id in group.job_ids}
        policy_starts_jobs = _Kind.BACKFILL not in self._timers
        self._start((start for start in plan.starts if policy_starts_jobs or start.job_id in grouped), now_s)

    def _start(self, starts: Iterable[Start], now_s: float) -> None:
        for start in starts:
            self._state.start(self._row(start.job_id), start.placement, now_s)
            # The last plan does not know how long its order holds once this job runs.
            self._request_pass(_Kind.POLICY, now_s)

    def _row(self, job_id: int) -> int:
        row = self._state.row_of(job_id)
        if row is None:
            raise SimulationError(f"job {job_id} has left the cluster")
        return row

    def _schedule_ends(self) -> None:
        """Schedule the ends of running jobs that have changed."""
        for row, end_s in self._state.new_ends():
            self._schedule(end_s, _Kind.END, row)

    def _schedule(self, time_s: float, kind: _Kind, row: int) -> None:
        """The job's next event; it replaces the one that was scheduled before."""
        self._version[row] += 1
        heapq.heappush(self._events, (time_s, kind, row, self._version[row]))

    def _request_pass(self, scheduler: _Kind, not_before_s: float) -> None:
        """Schedule a pass of a scheduler at the next time that its period allows."""
        pass_s = self._timers[scheduler].request(not_before_s)
        if pass_s is not None:
            heapq.heappush(self._events, (pass_s, scheduler, -1, 0))
