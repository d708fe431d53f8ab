"""Jobs and nodes as a policy sees them. Immutable; units are in the names.

Times are seconds since the epoch (live) or since the start of a trace (simulation); policies only use
differences. The cluster at one moment is a `snapshot.Snapshot`, the answer a `plan.Plan`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

NARROWED = " ["
"""After a partition's name begins what its nodes must have, where not all of them suit a job: `main [a100 8 CPUs]`."""


class JobState(StrEnum):
    """States a policy distinguishes. Jobs that have ended are not in a snapshot."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"


class Direction(StrEnum):
    """Whether a metric gets better by falling (loss) or by rising (accuracy)."""

    MIN = "min"
    MAX = "max"


class NodeGpus(Struct, frozen=True, gc=False):
    """A number of GPUs on one node; `indices` says which, where jobs share GPUs (empty: held alone)."""

    node: str
    gpus: int
    indices: tuple[int, ...] = ()


class Switch(Struct, frozen=True, gc=False):
    """A switch of the network or a block of nodes. A gang of up to `holds` nodes is put below one such switch."""

    name: str
    holds: int = 0


class Node(Struct, frozen=True, gc=False):
    """A node and the GPUs that jobs can be given there.

    `schedulable` is false for a node that is down, drained or reserved by somebody else: its running jobs
    go on, new ones are not planned there. `gpu_memory_mib` is the memory of each of its GPUs, 0 if unknown. `switches`
    are those above it, the leaf switch first, as many for each node that has any; empty where all are equally near.
    """

    name: str
    gpus: int
    partitions: frozenset[str] = frozenset()
    schedulable: bool = True
    gpu_memory_mib: int = 0
    switches: tuple[Switch, ...] = ()


class Absence(Struct, frozen=True, gc=False):
    """A time in which nodes are somebody else's, as by a reservation. It takes them whole."""

    nodes: tuple[str, ...]
    start_s: float
    end_s: float


class GpuRequest(Struct, frozen=True, gc=False, cache_hash=True):
    """What a job asks for. All of it starts together (gang) or none of it.

    With `per_node` set the job takes exactly that many GPUs on each of `nodes` nodes; without it, `total`
    GPUs spread over any nodes, at least `nodes` of them. `gpu_memory_mib` is the memory it needs on each GPU.
    `most_switches` is how many leaf switches its nodes may be below, where switches are known; 0 for any number.
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
    """What a job asks of each of its GPUs where it asks for no whole ones, as fractions of the GPU.

    `request` is the share of time that is kept for it, `limit` the most it may use, `memory` its share of the memory.
    """

    request: float
    limit: float
    memory: float


class Elastic(Struct, frozen=True, gc=False):
    """The sizes at which a job can run: `least` to `most` GPUs, in doublings of `least`, and `most` itself.

    All its GPUs are on one node, or, with `per_node` set, on as many nodes as it takes with `per_node` GPUs on each.
    Both bounds are multiples of it then. Doublings, because trainings divide a batch evenly, and every step between
    sizes costs a restart.
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


class ProgressPoint(Struct, frozen=True, gc=False):
    """One progress report.

    `gpu_s` counts the GPU-seconds the job had held when it reported, all its runs together, so that curves of
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
        """Stage times together."""
        return self.io_s + self.gpu_s + self.net_s


Parameter = float | str | bool


class Exploration(Struct, frozen=True, gc=False):
    """What a job told about itself (`sxbatch`, the job's comment, its command line, its reports).

    `checkpoint_signal` names the signal on which the job saves a checkpoint: only with it a job may be
    preempted. `may_stop` is the job's consent to be cancelled when it has nothing left to learn. `params` are its
    hyper-parameters by name, in the names' order; empty while none are known.
    """

    sweep: str | None = None
    metric: str = "loss"
    direction: Direction = Direction.MIN
    checkpoint_signal: str | None = None
    may_stop: bool = False
    params: tuple[tuple[str, Parameter], ...] = ()


class Job(Struct, frozen=True, gc=False):
    """A job that waits or runs.

    Attributes:
        job_id: Slurm's job id. For a pending job array this is the array's id, and `array_tasks` > 1.
        request: GPUs asked for; a running job holds `allocation`.
        eligible: false while the job is held, waits for a dependency or for its begin time. The delay after a requeue
            does not count where it is lifted.
        submit_s: time of submission.
        start_s: start of the current run, None while pending.
        first_report_s: first progress report of the current run, None before it. Until then the job is starting up
            (loading, resuming), which earns nothing and should not be paid for twice.
        queued_s: when it last joined the queue; None means at its submission.
        time_limit_s: wall-clock limit of a run, None if unlimited.
        expected_s: estimated run time in all, None without an estimate.
        earlier_s: run time of the runs before the current one.
        total_steps: steps the job said it will run, None if unknown.
        points: progress of the job's metric, oldest first.
        restarts: how often the job has been requeued.
        profile: what an iteration spends in each resource, None if unknown.
        guaranteed: false for an opportunistic job, which takes what guaranteed ones leave (AntMan).
        part: what it asks of a GPU that it shares, None if it asks for whole GPUs or for nothing in particular.
        may_share: whether others may be put on its GPUs; false for a job that asked for whole GPUs.
        yielding: the running job has been asked to make room; its GPUs will soon be free.
        is_spared: the job is left alone whatever it consented to: it has been preempted as often as its budget allows,
            or others would have to leave with it.
        elastic: the sizes at which it can run, None if only at the one it asks for.
        may_displace: whether running jobs may make room for it: it is known that it would start then.
        user_silent_s: run time that its user has lately had in trainings of sweeps that ended without having reported
            enough for a curve.
        scope: whose job it is: policies judge and preempt among jobs of one scope only (`sched_policy.queue_order`).
        peers: jobs of one scope with the same value may exchange their places in Slurm's order.
        fair_share: how far the resource manager's fair share favours its owner, None where that is not known. Only
            where it is, and much higher than another's, that other one's job may have to make room for this one.
        lane: jobs of one lane differ in the resource manager's eyes by fair share, age and size only.
        native_priority: the priority that the resource manager itself gives; it decides between scopes, and which
            places there are.
        is_overdue: it has waited longer than any policy may let a job wait.
        granted_step: the step of its last report when its sweep last let it run on; infinity where a decision follows
            each report, or nobody took note.

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
    profile: StageProfile | None = None
    guaranteed: bool = True
    part: GpuPart | None = None
    may_share: bool = True
    yielding: bool = False
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

    @property
    def queue(self) -> str:
        """The partition itself, where `partition` stands for those of its nodes that suit the job."""
        return self.partition.partition(NARROWED)[0] if NARROWED in self.partition else self.partition

    @property
    def is_of_sweep(self) -> bool:
        """Whether the job says that it belongs to a sweep: without reports that is nothing but a claim."""
        return self.exploration is not None and self.exploration.sweep is not None

    @property
    def productive_since_s(self) -> float:
        """When the present run began to earn; in the infinite future while the job is still starting up."""
        if self.first_report_s is not None:
            return self.first_report_s
        return float("inf") if self.points or self.start_s is None else self.start_s

    @property
    def holds_gpus(self) -> bool:
        """Whether the job's GPUs are taken (it runs, or its processes are being ended)."""
        return self.state is not JobState.PENDING

    @property
    def planned_s(self) -> float:
        """How long a run is booked for: the time limit, else what is expected of the job; infinity without both.

        At least a second: a job that should be over but is not must not be booked as if it took no room.
        """
        if self.time_limit_s is not None:
            return self.time_limit_s
        return float("inf") if self.expected_s is None else max(1.0, self.expected_s - self.earlier_s)

    def end_s(self, now_s: float) -> float:
        """The time by which the job's GPUs are booked; infinity where nothing tells.

        A job past its time, or one that is being cleaned up, is expected to leave at once.
        """
        if self.state is JobState.COMPLETING:
            return now_s
        if self.start_s is None:
            return float("inf")
        return max(now_s, self.start_s + self.planned_s)

    def run_s(self, now_s: float) -> float:
        """Run time of the present run, 0 for a job that waits."""
        return 0.0 if self.start_s is None else max(0.0, now_s - self.start_s)

    def executed_s(self, now_s: float) -> float:
        """Run time so far, all runs together."""
        return self.earlier_s + self.run_s(now_s)

    def waited_s(self, now_s: float) -> float:
        """Time in the queue before the present run; until now for a job that waits."""
        since_s = self.submit_s if self.queued_s is None else self.queued_s
        return max(0.0, (now_s if self.start_s is None else self.start_s) - since_s)

    def left_s(self, now_s: float) -> float:
        """Expected run time left; infinity when nothing tells.

        A job that reports its steps and their total is extrapolated from its own rate; any other is taken at its
        estimate, or at the time limit of its present run.
        """
        if self.total_steps and self.points and self.points[-1].step > 0:
            last = self.points[-1]
            per_step_gpu_s = last.gpu_s / last.step
            return max(0.0, self.total_steps - last.step) * per_step_gpu_s / max(self.request.total, 1)
        if self.expected_s is not None:
            return max(0.0, self.expected_s - self.executed_s(now_s))
        return self.end_s(now_s) - now_s if self.holds_gpus else self.planned_s

    def known_left_s(self, now_s: float) -> float | None:
        """Run time left at its present size; None where only its time limit is known, which tells nothing of that."""
        is_known = self.expected_s is not None or bool(self.total_steps and self.points)
        return self.left_s(now_s) if is_known else None

    @property
    def consents(self) -> bool:
        """Whether the job consented to be preempted: it saves a checkpoint on a signal."""
        return self.exploration is not None and self.exploration.checkpoint_signal is not None

    @property
    def can_leave(self) -> bool:
        """Whether it runs, may be preempted, and has not been asked to make room yet."""
        return self.state is JobState.RUNNING and self.may_yield and not self.yielding

    def may_leave(self, now_s: float, quantum_s: float) -> bool:
        """Whether it can leave, and has been left alone for `quantum_s` since `productive_since_s`."""
        return self.can_leave and now_s >= self.productive_since_s + quantum_s

    @property
    def may_yield(self) -> bool:
        """Whether the job may be preempted now: it consented, has budget left, and has not waited too long."""
        return self.consents and not self.is_spared and not self.is_overdue
