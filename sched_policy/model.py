"""Jobs and nodes as a policy sees them. Immutable; units are in the names.

Times are in seconds since the epoch (live) or since the start of a trace (simulation); policies only use
differences. The cluster at one moment is a `snapshot.Snapshot`; a policy answers with a `plan.Plan`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

NARROWED = " ["
"""Separates a partition's name from what a job needs of its nodes, where not all of them suit: `main [a100 8 CPUs]`."""


class JobState(StrEnum):
    """States a policy distinguishes. Jobs that have ended are not in a snapshot."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"


class Direction(StrEnum):
    """Whether a metric improves by falling (loss) or by rising (accuracy)."""

    MIN = "min"
    MAX = "max"


class NodeGpus(Struct, frozen=True, gc=False):
    """A number of GPUs on one node. `indices` names them where jobs share GPUs; empty if the job has them to itself."""

    node: str
    gpus: int
    indices: tuple[int, ...] = ()


class Switch(Struct, frozen=True, gc=False):
    """A switch of the network or a block of nodes. A gang of up to `holds` nodes is put below one such switch."""

    name: str
    holds: int = 0


class Node(Struct, frozen=True, gc=False):
    """A node and the GPUs that it offers.

    `schedulable` is false for a node that is down, drained or reserved for others: its running jobs
    continue, but no new ones are planned there. `gpu_memory_mib` is the memory of each GPU, 0 if unknown.
    `switches` are those above it, the leaf switch first, as many for each node that has any; empty where all are
    equally near.
    """

    name: str
    gpus: int
    partitions: frozenset[str] = frozenset()
    schedulable: bool = True
    gpu_memory_mib: int = 0
    switches: tuple[Switch, ...] = ()


class Absence(Struct, frozen=True, gc=False):
    """An interval in which whole nodes are not available to these jobs, for instance because they are reserved."""

    nodes: tuple[str, ...]
    start_s: float
    end_s: float


class GpuRequest(Struct, frozen=True, gc=False, cache_hash=True):
    """The GPUs that a job asks for. All of them are allocated together (gang scheduling), or none.

    With `per_node` set the job takes exactly that many GPUs on each of `nodes` nodes; without it, `total`
    GPUs on any nodes, at least `nodes` of them. `gpu_memory_mib` is the memory it needs on each GPU.
    `most_switches` is the number of leaf switches that its nodes may be below, where switches are known; 0 for any.
    """

    total: int
    nodes: int = 1
    per_node: int | None = None
    gpu_memory_mib: int = 0
    most_switches: int = 0

    @classmethod
    def on_each(cls, nodes: int, gpus_per_node: int) -> GpuRequest:
        """A request for `gpus_per_node` GPUs on each of `nodes` nodes."""
        return cls(total=nodes * gpus_per_node, nodes=nodes, per_node=gpus_per_node)


class GpuPart(Struct, frozen=True, gc=False):
    """The part of each GPU that a job asks for when it does not need whole GPUs; all fields are fractions of a GPU.

    `request` is its guaranteed share of time, `limit` the most it may use, `memory` its share of the memory.
    """

    request: float
    limit: float
    memory: float


class Elastic(Struct, frozen=True, gc=False):
    """The sizes at which a job can run: `least` GPUs, its doublings up to `most`, and `most` itself.

    All GPUs are on one node; with `per_node` set, on as many nodes as needed with `per_node` GPUs each, and both
    bounds are multiples of `per_node`. Only doublings, because a training divides its batch evenly and each change
    of size costs a restart.
    """

    least: int
    most: int
    per_node: int | None = None

    def requests(self) -> tuple[GpuRequest, ...]:
        """The sizes as requests, smallest first."""
        sizes = []
        size = self.least
        while size < self.most:
            sizes.append(size)
            size *= 2
        sizes.append(self.most)
        return tuple(GpuRequest.on_each(n // (self.per_node or n), self.per_node or n) for n in sizes)


MOST_OF_LIMIT = 0.97
"""A job whose earlier runs have taken more of its limit will not be done within it: they are not taken off."""
LARGEST_VALUE = 1e100
"""Policies take a larger magnitude of a metric for this one: squares and differences of values must not overflow."""


class ProgressPoint(Struct, frozen=True, gc=False):
    """One progress report.

    `gpu_s` is the GPU-seconds that the job had used when it reported, over all its runs, so that the curves of
    requeued jobs have no gaps. `value` is in the metric's own unit.
    """

    step: int
    gpu_s: float
    value: float


class StageProfile(Struct, frozen=True, order=True, gc=False):
    """One iteration of a training that runs alone, in seconds (Muri, SIGCOMM 2022).

    Stages overlap: their sum is not the iteration time.
    """

    iteration_s: float
    io_s: float
    gpu_s: float
    net_s: float

    @property
    def busy_s(self) -> float:
        """The sum of the stage times."""
        return self.io_s + self.gpu_s + self.net_s


Parameter = float | str | bool


class Exploration(Struct, frozen=True, gc=False):
    """What a training says about itself (in `sxbatch`, its comment, its command line or its reports).

    `checkpoint_signal` names the signal on which it saves a checkpoint; a job without one is never preempted.
    `may_stop` allows early stopping once nothing more can be learnt from it. `params` are its
    hyper-parameters, sorted by name; empty while none are known.
    """

    sweep: str | None = None
    metric: str = "loss"
    direction: Direction = Direction.MIN
    checkpoint_signal: str | None = None
    may_stop: bool = False
    params: tuple[tuple[str, Parameter], ...] = ()


class Job(Struct, frozen=True, gc=False):
    """A pending or running job.

    Attributes:
        job_id: Slurm's job id. For a pending job array this is the array's id, and `array_tasks` > 1.
        throttled_tasks: how many of these may not start yet, by the array's own limit.
        request: GPUs asked for; a running job holds `allocation`.
        eligible: false while the job is held or waits for a dependency or its begin time. Slurm's delay after a
            requeue does not count where it is lifted.
        submit_s: time of submission.
        start_s: start of the current run, None while pending.
        suspended_s: how long the current run has been suspended since then.
        first_report_s: first progress report of the current run, None before it. Until then the job is starting up
            (loading, resuming), which yields no progress and should not be paid for twice.
        queued_s: when it last entered the queue; None means at its submission.
        time_limit_s: wall-clock limit of a run, None if unlimited.
        expected_s: estimated total run time, None without an estimate.
        earlier_s: run time of the runs before the current one.
        total_steps: number of steps that the job has announced, None if unknown.
        points: progress of the job's metric, oldest first.
        restarts: how often the job has been requeued.
        profile: what an iteration spends in each resource, None if unknown.
        guaranteed: false for an opportunistic job, which uses what guaranteed jobs leave (AntMan).
        part: the part of each GPU that it asks for, None if it asks for whole GPUs or does not say.
        may_share: whether other jobs may be placed on its GPUs; false for a job that asked for whole GPUs.
        asked_to_leave: the running job has been asked to leave, by us or by Slurm; its GPUs will soon be free.
        is_spared: the job is not preempted although it allows it: its preemption budget is spent, its work is done, or
            other jobs would have to leave with it.
        elastic: the sizes at which it can run, None if only at the one it asks for.
        may_displace: whether running jobs may be preempted for it, because it is known that it would start then.
        user_silent_s: recent run time of its user in trainings of sweeps that ended without enough reports for a curve.
        scope: policies compare and preempt only jobs with the same scope (`sched_policy.queue_order`).
        peers: jobs of one scope with the same value may exchange their places in Slurm's order.
        fair_share: the fair-share factor of its owner, None if unknown. A job of another owner may be preempted for
            this one only if both factors are known and this one is much higher.
        lane: for the resource manager, jobs of one lane differ only in fair share, age and size.
        native_priority: what the resource manager itself computes; it decides between scopes, and which places exist.
        is_overdue: it has waited longer than a policy may let a job wait.
        granted_step: the step of its last report when its sweep last let it continue; infinity where none was recorded.
        has_completed: of a training that has ended: whether it is known to have succeeded.

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
    suspended_s: float = 0.0
    first_report_s: float | None = None
    queued_s: float | None = None
    time_limit_s: float | None = None
    expected_s: float | None = None
    earlier_s: float = 0.0
    allocation: tuple[NodeGpus, ...] = ()
    exploration: Exploration | None = None
    total_steps: int | None = None
    points: tuple[ProgressPoint, ...] = ()
    restarts: int = 0
    array_tasks: int = 1
    throttled_tasks: int = 0
    profile: StageProfile | None = None
    guaranteed: bool = True
    part: GpuPart | None = None
    may_share: bool = True
    asked_to_leave: bool = False
    is_spared: bool = False
    elastic: Elastic | None = None
    may_displace: bool = True
    user_silent_s: float = 0.0
    scope: str = ""
    peers: str = ""
    native_priority: float = 0.0
    is_overdue: bool = False
    fair_share: float | None = None
    lane: str = ""
    granted_step: float = float("inf")
    has_completed: bool = False

    @property
    def queue(self) -> str:
        """The partition's name, without what `partition` may say of the nodes that suit the job."""
        return self.partition.partition(NARROWED)[0] if NARROWED in self.partition else self.partition

    @property
    def is_of_sweep(self) -> bool:
        """Whether the job says that it belongs to a sweep; without reports this is only a claim."""
        return self.exploration is not None and self.exploration.sweep is not None

    @property
    def productive_since_s(self) -> float:
        """When the current run began to make progress; infinity while the job is still starting up."""
        if self.first_report_s is not None:
            return self.first_report_s
        return float("inf") if self.points or self.start_s is None else self.start_s

    @property
    def holds_gpus(self) -> bool:
        """Whether the job's GPUs are in use: it runs, or its processes are being ended."""
        return self.state is not JobState.PENDING

    @property
    def planned_s(self) -> float:
        """How long a run is planned for: its time limit, else its expected run time; infinity without both.

        At least one second: a job that has outlived its estimate still occupies its GPUs.
        """
        if self.time_limit_s is not None:
            return self.time_limit_s
        return float("inf") if self.expected_s is None else max(1.0, self.expected_s - self.earlier_s)

    def end_s(self, now_s: float) -> float:
        """Until when its GPUs are reserved: now for one past its planned end or completing, infinity if unknown."""
        if self.state is JobState.COMPLETING:
            return now_s
        if self.start_s is None:
            return float("inf")
        return max(now_s, self.start_s + self.suspended_s + self.planned_s)

    def run_s(self, now_s: float) -> float:
        """Run time of the current run, 0 for a pending job."""
        return 0.0 if self.start_s is None else max(0.0, now_s - self.start_s - self.suspended_s)

    def executed_s(self, now_s: float) -> float:
        """Run time so far, over all runs."""
        return self.earlier_s + self.run_s(now_s)

    def waited_s(self, now_s: float) -> float:
        """Time in the queue before the current run; until now for a pending job."""
        since_s = self.submit_s if self.queued_s is None else self.queued_s
        return max(0.0, (now_s if self.start_s is None else self.start_s) - since_s)

    @property
    def step_gpu_s(self) -> float | None:
        """GPU-seconds of a step, None if unknown. At least as since its first report: it may go on from another job."""
        told = self.points if self.restarts else self.points[-1:]  # its last run may have begun anew
        if (furthest := max(told, key=lambda point: point.step, default=None)) is None or furthest.step <= 0:
            return None
        steps, gpu_s = furthest.step - self.points[0].step, furthest.gpu_s - self.points[0].gpu_s
        return max(furthest.gpu_s / furthest.step, gpu_s / steps if steps else 0.0)

    @property
    def left_gpu_s(self) -> float | None:
        """GPU-seconds to its last step at its own rate; None unless it reports its steps and their total."""
        step_gpu_s = self.step_gpu_s if self.total_steps else None
        return None if step_gpu_s is None else max(0.0, (self.total_steps or 0) - self.points[-1].step) * step_gpu_s

    def left_s(self, now_s: float) -> float:
        """Estimated run time left; else its limit, less earlier runs if it saves and they leave enough; or infinity."""
        if (known_s := self.known_left_s(now_s)) is not None:
            return known_s
        left_s = self.end_s(now_s) - now_s if self.holds_gpus else self.planned_s
        return left_s - self.earlier_s if self.allows_preemption and self.earlier_s < MOST_OF_LIMIT * left_s else left_s

    def known_left_s(self, now_s: float) -> float | None:
        """Remaining run time at its current size; None where only its time limit is known, which is no estimate.

        Extrapolated from its own rate for a job that reports its steps and their total; otherwise from its estimate.
        """
        if (left_gpu_s := self.left_gpu_s) is not None:
            return left_gpu_s / max(self.request.total, 1)
        return None if self.expected_s is None else max(0.0, self.expected_s - self.executed_s(now_s))

    @property
    def allows_preemption(self) -> bool:
        """Whether the job allows preemption: it saves a checkpoint on a signal."""
        return self.exploration is not None and self.exploration.checkpoint_signal is not None

    @property
    def is_preemptible(self) -> bool:
        """Whether it may be preempted now: it allows it, has budget left, and is not overdue."""
        return self.allows_preemption and not self.is_spared and not self.is_overdue

    @property
    def is_leaving(self) -> bool:
        """Whether its GPUs will soon be free: it has been asked to leave, or its processes are being ended."""
        return self.asked_to_leave or self.state is JobState.COMPLETING

    @property
    def can_leave(self) -> bool:
        """Whether it runs, may be preempted, and has not been asked to leave yet."""
        return self.state is JobState.RUNNING and self.is_preemptible and not self.asked_to_leave

    def may_leave(self, now_s: float, quantum_s: float) -> bool:
        """Whether it can leave, and has run undisturbed for `quantum_s` since `productive_since_s`."""
        return self.can_leave and now_s >= self.productive_since_s + quantum_s
