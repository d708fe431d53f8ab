"""What a policy sees (`Snapshot`) and what it answers (`Plan`). Immutable; units are in the names.

Times are seconds since the epoch (live) or since the start of a trace (simulation); policies only use
differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class JobState(StrEnum):
    """States a policy distinguishes. Jobs that have ended are not in a snapshot."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"


class Direction(StrEnum):
    """Whether a metric gets better by falling (loss) or by rising (accuracy)."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """A number of GPUs on one node."""

    node: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node and the GPUs that jobs can be given there.

    `schedulable` is false for a node that is down, drained or reserved by somebody else: its running jobs
    go on, new ones are not planned there.
    """

    name: str
    gpus: int
    partitions: frozenset[str] = frozenset()
    schedulable: bool = True


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a job asks for. All of it starts together (gang) or none of it.

    With `per_node` set the job takes exactly that many GPUs on each of `nodes` nodes; without it, `total`
    GPUs spread over any nodes, at least `nodes` of them.
    """

    total: int
    nodes: int = 1
    per_node: int | None = None

    @classmethod
    def on_each(cls, nodes: int, gpus_per_node: int) -> GpuRequest:
        """A request for `gpus_per_node` GPUs on each of `nodes` nodes."""
        return cls(total=nodes * gpus_per_node, nodes=nodes, per_node=gpus_per_node)


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """One progress report.

    `gpu_s` counts the GPU-seconds the job had held when it reported, all its runs together, so that curves of
    requeued jobs have no gaps. `value` is in the metric's own unit.
    """

    step: int
    gpu_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a job told about itself when it was submitted (`sxbatch`, or the job's comment).

    `checkpoint_signal` names the signal on which the job saves a checkpoint: only with it a job may be
    preempted. `may_stop` is the job's consent to be cancelled when it has nothing left to learn.
    """

    sweep: str | None = None
    metric: str = "loss"
    direction: Direction = Direction.MIN
    checkpoint_signal: str | None = None
    may_stop: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A job that waits or runs.

    Attributes:
        job_id: Slurm's job id. For a pending job array this is the array's id, and `array_tasks` > 1.
        request: GPUs asked for; a running job holds `allocation`.
        eligible: false while the job is held, waits for a dependency or for its begin time.
        submit_s: time of submission.
        start_s: start of the current run, None while pending.
        first_report_s: first progress report of the current run, None before it. Until then the job is starting up
            (loading, resuming), which earns nothing and should not be paid for twice.
        time_limit_s: wall-clock limit, None if unlimited.
        attained_gpu_s: GPU-seconds held in all runs so far.
        total_steps: steps the job said it will run, None if unknown.
        points: progress of the job's metric, oldest first.
        restarts: how often the job has been requeued.
        yielding: the running job has been asked to make room; its GPUs will soon be free.

    """

    job_id: int
    request: GpuRequest
    submit_s: float
    name: str = ""
    user: str = ""
    partition: str = ""
    state: JobState = JobState.PENDING
    eligible: bool = True
    start_s: float | None = None
    first_report_s: float | None = None
    time_limit_s: float | None = None
    allocation: tuple[NodeGpus, ...] = ()
    attained_gpu_s: float = 0.0
    exploration: Exploration | None = None
    total_steps: int | None = None
    points: tuple[ProgressPoint, ...] = ()
    restarts: int = 0
    array_tasks: int = 1
    yielding: bool = False

    @property
    def holds_gpus(self) -> bool:
        """Whether the job's GPUs are taken (it runs, or its processes are being ended)."""
        return self.state is not JobState.PENDING

    def end_s(self, now_s: float) -> float:
        """The latest time at which the job's GPUs are free again; infinity without a time limit.

        A job past its limit, or one that is being cleaned up, is expected to leave at once.
        """
        if self.state is JobState.COMPLETING:
            return now_s
        if self.start_s is None or self.time_limit_s is None:
            return float("inf")
        return max(now_s, self.start_s + self.time_limit_s)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment: everything a policy may know."""

    now_s: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]

    @property
    def pending(self) -> tuple[Job, ...]:
        """Jobs that wait and may start, in the snapshot's order."""
        return tuple(job for job in self.jobs if job.state is JobState.PENDING and job.eligible)

    @property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold GPUs, in the snapshot's order."""
        return tuple(job for job in self.jobs if job.holds_gpus)


@dataclass(frozen=True, slots=True)
class Score:
    """The order's verdict on one job. Higher runs first; equal scores fall back to (submit time, job id)."""

    job_id: int
    value: float
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """The job can start now on these GPUs."""

    job_id: int
    placement: tuple[NodeGpus, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """The job cannot start now; it is promised these GPUs from `start_s` to `end_s`."""

    job_id: int
    placement: tuple[NodeGpus, ...]
    start_s: float
    end_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Preemption:
    """The running job should checkpoint and go back to the queue. Only for jobs that opted in."""

    job_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The running job should end early: nothing left to learn. Only for jobs that opted in."""

    job_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What should happen next, each entry with a reason a person can read.

    `scores` holds every job of the snapshot, best first.
    """

    scores: tuple[Score, ...] = ()
    starts: tuple[Start, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    stops: tuple[Stop, ...] = ()
    notes: tuple[str, ...] = field(default=())
