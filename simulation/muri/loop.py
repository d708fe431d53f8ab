"""The event loop of Muri's simulator, and the state and constants that it attaches to each job."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isclose
from typing import Protocol

from msgspec import Struct

from sched_policy.model import StageProfile
from simulation.results.outcome import JobRecord, TraceOutcome, Usage
from simulation.traces.trace import ClusterShape, Trace, TraceError, TraceJob

ITERATION_FACTOR = 1.015  # every iteration takes this much longer than the trace says, under every policy

# Seconds of overhead for 1, 2, 4, 8, 16, 32 GPUs; charged again at every event, see `loop.advance`.
_SIZES = (1, 2, 4, 8, 16, 32)
_OVERHEAD_S = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
_UNKNOWN_OVERHEAD_S = 10


def overhead_s(model: str, gpus: int) -> int:
    """Restart overhead in seconds; 10 for a model or a number of GPUs that the table does not have."""
    if model not in _OVERHEAD_S or gpus not in _SIZES:
        return _UNKNOWN_OVERHEAD_S
    return _OVERHEAD_S[model][_SIZES.index(gpus)]


class MuriJob(Struct, eq=False):
    """One job and how far it has come.

    Attributes:
        index: position in the trace, ordered by submission.
        trace: the job as the trace has it.
        gpus: GPUs of its gang.
        iteration_s: seconds of one iteration alone, the factor 1.015 included.
        profile: iteration and stage times alone.
        overhead_s: its own overhead.
        left: iterations left.
        grouped_iteration_s: seconds of one iteration now, in its group.
        group_overhead_s: overhead that is charged to it now, that of its whole group.
        executed_s: time it has held GPUs.
        key: what its policy sorts by.
        running: whether it holds GPUs.
        chosen_at: number of the event that last chose it to run.
        start_s: when it first ran; meaningful once it ran.
        ever_ran: whether it ever did.
        end_s: when it ended, infinity until then.
        preemptions: how often it lost its GPUs.

    """

    index: int
    trace: TraceJob
    gpus: int
    iteration_s: float
    profile: StageProfile
    overhead_s: int
    left: float
    grouped_iteration_s: float
    group_overhead_s: int
    executed_s: float = 0.0
    key: float = 0.0
    running: bool = False
    chosen_at: int = -1
    start_s: float = 0.0
    ever_ran: bool = False
    end_s: float = inf
    preemptions: int = 0

    @classmethod
    def of(cls, index: int, job: TraceJob) -> MuriJob:
        """The job before it starts.

        A trace without iteration counts is taken as one iteration per job. Rounding to nanoseconds undoes the
        noise of dividing the run time by the iterations: equal jobs must have exactly equal keys.
        """
        iteration_s = round(job.iteration_s * 1000.0, 6) * ITERATION_FACTOR / 1000.0
        overhead = overhead_s(job.model, job.gpus)
        left = float(job.iterations) if job.iterations > 0 else 1.0
        profile = _profile(job, iteration_s)
        return cls(index, job, job.gpus, iteration_s, profile, overhead, left, iteration_s, overhead)

    @property
    def may_be_grouped(self) -> bool:
        """Whether its stage times are known; a job without runs alone."""
        return self.trace.stages is not None


def _profile(job: TraceJob, iteration_s: float) -> StageProfile:
    """A job without stage times is all computation."""
    if job.stages is None:
        return StageProfile(iteration_s, 0.0, iteration_s, 0.0)
    return StageProfile(iteration_s, job.stages.io_s, job.stages.gpu_s, job.stages.net_s)


_ARRIVAL_REL = 1e-9


class Merging(Struct, frozen=True):
    """Which times count as one event.

    Attributes:
        mixed_rel: an arrival and a completion within this share of each other are one event, at the arrival's time.
        mixed_s: so are those within these seconds.
        completion_rel: completions within this share of each other are one event.
        completion_s: so are completions within these seconds.

    """

    mixed_rel: float = 0.0
    mixed_s: float = 0.0
    completion_rel: float = 1e-9
    completion_s: float = 0.0


class Discipline(Protocol):
    """What a policy of the family decides. It holds the active jobs, in the order that ties depend on."""

    @property
    def merging(self) -> Merging:
        """Which times count as one event."""
        ...

    @property
    def wake_s(self) -> float:
        """When the policy wants an event of its own; infinity if never."""
        ...

    @property
    def busy_gpus(self) -> int:
        """GPUs that hold jobs."""
        ...

    @property
    def idle_node_gpus(self) -> int:
        """GPUs of wholly idle nodes."""
        ...

    def arrive(self, job: MuriJob) -> None:
        """A job is submitted."""
        ...

    def leave(self, job: MuriJob) -> None:
        """A job has finished."""
        ...

    def schedule(self, now_s: float) -> Sequence[MuriJob]:
        """The jobs that hold GPUs from now on, in the policy's order, their iteration times and overheads set."""
        ...


def replay(policy: str, trace: Trace, cluster: ClusterShape, discipline: Discipline) -> TraceOutcome:
    """Run a trace to its end. Raises `TraceError` if a job needs more GPUs than there are, or can never start."""
    jobs = [MuriJob.of(index, job) for index, job in enumerate(trace.jobs)]
    for job in jobs:
        if not 0 < job.gpus <= cluster.gpus:
            raise TraceError(
                f"job {job.trace.job_id} asks for {job.gpus} GPUs (accepted: 1 to {cluster.gpus}, those of the cluster)"
            )
    arrivals = _arrivals(jobs)
    merging = discipline.merging
    usage: list[Usage] = []
    running: Sequence[MuriJob] = ()
    due: Sequence[MuriJob] = ()
    due_s = inf
    active = coming = events = 0
    last_s = 0.0
    while active or coming < len(arrivals):
        next_s = arrivals[coming][0] if coming < len(arrivals) else inf
        now_s, ended, arrives = _next(next_s, due_s, merging)
        if now_s > discipline.wake_s:
            now_s, ended, arrives = discipline.wake_s, False, False
        if now_s == inf:
            waiting = [job.trace.job_id for job in jobs if job.end_s == inf and not job.running]
            raise TraceError(f"policy {policy!r} can start no more jobs; waiting: {waiting[:10]}")
        if ended:
            _finish(due, last_s, now_s, discipline)
            active -= len(due)
            running = [job for job in running if job.running]
        if arrives:
            for job in arrivals[coming][1]:
                discipline.arrive(job)
            active += len(arrivals[coming][1])
            coming += 1
        advance(running, last_s, now_s)
        last_s = now_s
        chosen = discipline.schedule(now_s)
        _start_and_preempt(chosen, running, now_s, events)
        running = chosen
        due_s, due = _completions(running, now_s, merging)
        usage.append(Usage(now_s, discipline.busy_gpus, discipline.idle_node_gpus, len(running), active - len(running)))
        events += 1
    return TraceOutcome(policy, cluster, tuple(_record(job) for job in jobs), tuple(usage), events)


def _finish(due: Sequence[MuriJob], last_s: float, now_s: float, discipline: Discipline) -> None:
    """End jobs; what merging has left of their work is dropped."""
    for job in due:
        job.executed_s = job.executed_s + (now_s - last_s)
        job.end_s = now_s
        job.running = False
        discipline.leave(job)


def advance(running: Sequence[MuriJob], last_s: float, now_s: float) -> None:
    """Charge running jobs for the time since the last event.

    The overhead is subtracted at every event, whether or not the job was restarted: a quirk of the original that
    its figures depend on. So does the order of the additions: Tiresias' demotions compare the sum with a limit.
    """
    elapsed_s = now_s - last_s
    for job in running:
        worked_s = elapsed_s - job.group_overhead_s
        if worked_s > 0:
            job.left -= worked_s / job.grouped_iteration_s
        job.executed_s = job.executed_s + now_s - last_s


def _arrivals(jobs: Sequence[MuriJob]) -> list[tuple[float, list[MuriJob]]]:
    """Jobs by time of submission; times within a relative 1e-9 of the first are one event."""
    events: list[tuple[float, list[MuriJob]]] = []
    for job in jobs:
        submit_s = job.trace.submit_s
        if events and isclose(events[-1][0], submit_s, rel_tol=_ARRIVAL_REL):
            events[-1][1].append(job)
        else:
            events.append((submit_s, [job]))
    return events


def _next(arrival_s: float, due_s: float, merging: Merging) -> tuple[float, bool, bool]:
    """Time of the next event, whether jobs end then, and whether jobs arrive then."""
    if isclose(arrival_s, due_s, rel_tol=merging.mixed_rel, abs_tol=merging.mixed_s):
        return arrival_s, True, True
    return (due_s, True, False) if due_s < arrival_s else (arrival_s, False, True)


def _start_and_preempt(chosen: Sequence[MuriJob], before: Sequence[MuriJob], now_s: float, event: int) -> None:
    for job in chosen:
        job.chosen_at = event
        if not job.running:
            job.running = True
            if not job.ever_ran:
                job.ever_ran = True
                job.start_s = now_s
    for job in before:
        if job.chosen_at != event:
            job.running = False
            job.preemptions += 1


def _completions(running: Sequence[MuriJob], now_s: float, merging: Merging) -> tuple[float, list[MuriJob]]:
    """The next completions and their time: that of the first job, in the policy's order, of those merged."""
    if not running:
        return inf, []
    ends_s = [now_s + job.left * job.grouped_iteration_s for job in running]
    first_s = min(ends_s)
    # Several times the tolerance: a job may be merged with one that ends a little after the earliest.
    window_s = first_s + 4.0 * max(merging.completion_rel * first_s, merging.completion_s)
    near = [place for place, end_s in enumerate(ends_s) if end_s <= window_s]
    groups: list[tuple[float, list[MuriJob]]] = []
    for place in near:
        end_s, job = ends_s[place], running[place]
        for group_s, members in groups:
            if isclose(group_s, end_s, rel_tol=merging.completion_rel, abs_tol=merging.completion_s):
                members.append(job)
                break
        else:
            groups.append((end_s, [job]))
    return min(groups, key=lambda group: group[0])


def _record(job: MuriJob) -> JobRecord:
    trace = job.trace
    return JobRecord(
        job_id=trace.job_id,
        submit_s=trace.submit_s,
        start_s=job.start_s,
        end_s=job.end_s,
        gpus=job.gpus,
        run_s=trace.run_s * ITERATION_FACTOR,
        held_s=job.executed_s,
        preemptions=job.preemptions,
        user=trace.user,
    )
