"""The honest simulator: convention `slurm`.

The policy is asked at scheduling intervals, sees what the daemon would see, and its plan costs what it costs: a
preempted job holds its GPUs while it saves, a restarted one while it loads, gangs are placed on nodes, and jobs end
at their time limits. Where `Settings` says so, Slurm's backfill and its main scheduler start the jobs, each in a rhythm
of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from enum import IntEnum

from msgspec.structs import replace

from explsched.errors import ExplschedError
from sched_policy.group.interference import Interleaving
from sched_policy.plan import Plan, Start
from sched_policy.policy import Policy, SchedulingPolicy
from sched_policy.queue_order import queue_order
from sched_policy.validate import checked_plan
from simulation.cluster.job_table import Phase
from simulation.cluster.rhythm import Alarm
from simulation.cluster.settings import Estimates, Settings
from simulation.cluster.slurm_queue import backfilled, head
from simulation.cluster.world import World
from simulation.results.outcome import Ending, Outcome
from simulation.traces.trace import ClusterShape, Trace

Progress = Callable[[int, int], None]
"""Told (jobs ended, jobs in all) as the simulation goes on."""


class SimulationError(ExplschedError):
    """A simulation that cannot go on; the message names the policy and the jobs."""


class _Kind(IntEnum):
    """Events of one moment are handled in this order: first what frees GPUs, then what wants them, then the passes."""

    END = 0
    GPUS_FREE = 1
    SUBMIT = 2
    PASS = 3
    BACKFILL = 4
    MAIN = 5


def simulate(
    trace: Trace,
    cluster: ClusterShape,
    policy: SchedulingPolicy,
    settings: Settings,
    progress: Progress = lambda _n, _m: None,
) -> Outcome:
    """Replay a trace under a policy until every job has ended, or until `settings.until_s`.

    Raises `SimulationError` if jobs remain that the policy never starts, and `PolicyError` if it plans the impossible.
    """
    return _Simulation(trace, cluster, policy, settings).run(progress)


class _Simulation:
    def __init__(self, trace: Trace, cluster: ClusterShape, policy: SchedulingPolicy, settings: Settings) -> None:
        self._cluster = cluster
        self._policy = policy
        rhythms = {
            _Kind.PASS: settings.policy_rhythm,
            _Kind.BACKFILL: settings.backfill_rhythm,
            _Kind.MAIN: settings.main_rhythm,
        }
        self._alarms = {kind: Alarm(rhythm) for kind, rhythm in rhythms.items() if rhythm is not None}
        self._order: tuple[int, ...] = ()  # in which the policy put the queue last
        self._until_s = math.inf if settings.until_s is None else settings.until_s
        told = settings if policy.needs_durations else replace(settings, estimates=Estimates())
        # What sharing costs is measured under the mechanism by which the policy shares.
        interference = policy.sharing.interference if isinstance(policy, Policy) and policy.sharing else Interleaving()
        self._world = World(trace.jobs, cluster, told, interference)
        self._events = [(job.submit_s, _Kind.SUBMIT, row, 0) for row, job in enumerate(trace.jobs)]
        heapq.heapify(self._events)
        self._version = [0] * len(trace.jobs)
        self._handled = 0
        self._ended = 0

    def run(self, progress: Progress) -> Outcome:
        total = len(self._events)
        while self._events and self._events[0][0] <= self._until_s:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] == now_s:
                _, kind, row, version = heapq.heappop(self._events)
                self._handle(now_s, kind, row, version)
            self._world.note_usage(now_s)
            progress(self._ended, total)
        if self._events:
            self._world.close(self._until_s)
        elif not self._world.is_idle:
            waiting = self._world.snapshot(0.0).jobs
            raise SimulationError(
                f"policy {self._policy.name!r} never starts {len(waiting)} job(s) on an idle cluster, the first is "
                f"job {waiting[0].job_id} with {waiting[0].request.total} GPUs"
            )
        jobs, usage = self._world.records()
        return Outcome(self._policy.name, self._cluster, jobs, usage, self._handled)

    def _handle(self, now_s: float, kind: _Kind, row: int, version: int) -> None:
        if kind in self._alarms:
            if self._alarms[kind].rings(now_s):
                self._handled += 1
                self._look(now_s, kind)
            return
        if version != self._version[row]:
            return  # something else happened to the job since
        self._handled += 1
        if kind is _Kind.SUBMIT:
            self._world.submit(row)
        elif kind is _Kind.GPUS_FREE:
            self._world.yield_now(row, now_s)
        else:
            self._end(row, now_s)
        self._follow()
        for scheduler in self._alarms:
            self._request(scheduler, now_s)

    def _end(self, row: int, now_s: float, why: Ending | None = None) -> None:
        self._version[row] += 1
        self._world.end(row, now_s, why)
        self._ended += 1

    def _look(self, now_s: float, kind: _Kind) -> None:
        if kind is _Kind.PASS:
            self._pass(now_s)
        elif self._world.waiting.size:
            starts = backfilled if kind is _Kind.BACKFILL else head
            self._start(starts(self._order, self._world.snapshot(now_s)), now_s)

    def _pass(self, now_s: float) -> None:
        if not (self._world.waiting.size or self._world.reports_come or self._world.may_grow):
            return
        snapshot = self._world.snapshot(now_s)
        plan = checked_plan(self._policy, snapshot)
        self._carry_out(plan, now_s)
        changeable = self._world.waiting.size or self._world.may_grow
        replan_s = now_s if self._world.reports_come else plan.replan_s if changeable else math.inf
        if math.isfinite(replan_s):
            self._request(_Kind.PASS, replan_s)
        if len(self._alarms) > 1:  # Slurm starts jobs, too
            # What is being vacated counts as free in that order.
            self._order = queue_order(plan, self._world.snapshot(now_s))
            for scheduler in self._alarms.keys() - {_Kind.PASS}:
                self._request(scheduler, now_s)

    def _carry_out(self, plan: Plan, now_s: float) -> None:
        for stop in plan.stops:
            self._end(self._row(stop.job_id), now_s, Ending.STOPPED)
        for resize in plan.resizes:
            row = self._row(resize.job_id)
            if self._world.phase(row) is Phase.WAITING:
                self._world.resize(row, resize.request.total)
        yielding = [preemption.job_id for preemption in plan.preemptions]
        yielding += [resize.job_id for resize in plan.resizes]  # a running job takes its new size while it waits
        for row in map(self._row, yielding):
            if self._world.phase(row) is Phase.RUNNING:
                self._schedule(self._world.ask_to_yield(row, now_s), _Kind.GPUS_FREE, row)
        # A group's members are released together, onto GPUs that the policy chose.
        grouped = {job_id for group in plan.groups for job_id in group.job_ids}
        is_its_own = _Kind.BACKFILL not in self._alarms
        self._start((start for start in plan.starts if is_its_own or start.job_id in grouped), now_s)

    def _start(self, starts: Iterable[Start], now_s: float) -> None:
        for start in starts:
            self._world.start(self._row(start.job_id), start.placement, now_s)
        self._follow()

    def _row(self, job_id: int) -> int:
        row = self._world.row_of(job_id)
        if row is None:
            raise SimulationError(f"job {job_id} is not there any more")
        return row

    def _follow(self) -> None:
        """Expect the ends of running jobs when the world says they will be."""
        for row, end_s in self._world.new_ends():
            self._schedule(end_s, _Kind.END, row)

    def _schedule(self, time_s: float, kind: _Kind, row: int) -> None:
        """The job's next event; it replaces the one that was expected before."""
        self._version[row] += 1
        heapq.heappush(self._events, (time_s, kind, row, self._version[row]))

    def _request(self, scheduler: _Kind, not_before_s: float) -> None:
        """Have a scheduler look at the queue as soon as its rhythm allows."""
        look_s = self._alarms[scheduler].ask(not_before_s)
        if look_s is not None:
            heapq.heappush(self._events, (look_s, scheduler, -1, 0))
