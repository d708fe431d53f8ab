"""Slurm's jobs, nodes, reservations and load as frozen records. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from sched_policy.model import Switch
from slurm_plugin.client.gpu_memory import gpu_memory_of_node
from slurm_plugin.client.wait_reason import WaitReason, wait_reason

_OUT_OF_USE = frozenset({
    *("DOWN", "UNKNOWN", "ERROR", "FUTURE", "DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING", "NOT_RESPONDING"),
    *("MAINT", "MAINTENANCE", "POWER_DOWN", "POWERING_DOWN", "REBOOT_ISSUED", "INVALID_REG", "BLOCKED", "EXTERNAL"),
})  # fmt: skip
"""Node states in which Slurm starts no job. RESERVED is missing because leases cause it, too (reservations are read
themselves), and POWERED_DOWN because Slurm turns such a node on as soon as a job is placed there."""


LEAST_PRIORITY = 1
"""The lowest priority of a job that is not held; Slurm raises lower sums to it."""


REQUEUE_DELAY_S = 120.0
"""How long Slurm keeps a requeued job from starting, unless the site has set it."""


Amounts = tuple[tuple[str, int], ...]
"""How many there are of each generic resource, by name (`nvme`), and by name and type (`nvme:fast`)."""


class QueuedJob(Struct, frozen=True, gc=False):
    """One job or array task in Slurm's queue, with what decides on the order of starts.

    `ready` jobs wait for nothing but free resources or jobs of higher priority. `start_s` is None for a waiting job,
    `limit_s` is the time limit, None if there is none.
    """

    job_id: int
    partitions: tuple[str, ...]
    priority: int
    ready: bool
    start_s: float | None
    nodes: int = 1
    limit_s: float | None = None


class SlurmJob(Struct, frozen=True, gc=False):
    """One record of slurmctld's job table. A pending job array is one record with `array_tasks` > 1.

    Attributes:
        partition: one partition, or a list separated by commas.
        state: Slurm's long name (PENDING, RUNNING, COMPLETING, ...).
        priority: the priority in force.
        site_factor: None if Slurm does not show it, or if it cannot be made to move the job: an operator has set the
            priority, or the job is one of scrontab.
        eligible_s: earliest start, None while that is unknown (held, dependency).
        start_s: the start of a running job, or slurmctld's estimate for a pending one.
        suspended_s: how long a job that has started has not run since then: it was suspended, or its nodes clean up.
        time_limit_s: None if unlimited.
        least_limit_s: --time-min, to which backfill may shorten the time limit; 0 without it.
        gpus: the total asked for or allocated.
        gpus_per_node: GPUs of each node, None if their number is not fixed.
        gpu_nodes: (node, GPUs) of the allocation, empty while pending; all of its nodes' for a job that shares no node.
            Those asked for by job, task or socket count as spread evenly where Slurm does not show their indices.
        cpus: CPUs asked for or allocated. A waiting job with `cpus_per_gpu` will get more.
        least_memory_mib: --mem or --mem-per-cpu (Slurm does not show which), or the default; 0 with --mem-per-gpu.
        gres_per_node: asked for on each node, as sbatch's --gres takes it (`gpu:a100:2,shard:4`).
        shards_per_node: asked for of gres/shard, 0 for none.
        array_limit: how many tasks of its array may run at once (`sbatch -a 0-7%2`); None without such a limit. Not
            known of a task that waits beside its array's record, such as a requeued one.
        throttled_tasks: of `array_tasks`, those that this limit keeps waiting, as `array_limits.throttled` finds it.
        node_names: the nodes of the allocation.
        gpu_indices: (node, indices of the job's GPUs there), as far as known; read only for jobs that may
            have another number on each node, and for all while some job asks for shards.
        required_nodes: nodes that a waiting job must have.
        het_job_id: for components of a heterogeneous job, which start together, the id of the first; None for others.
        natives: the priorities that Slurm itself gives a waiting job, without a site factor: one for each partition of
            its list, none while it is held or may not start yet. They may be below `LEAST_PRIORITY`.
        nice: what its owner subtracts from the priority.
        features: --constraint as squeue prints it, empty for none; likewise `licenses`.
        exclusive: NODE if it shares its nodes with no other job, or USER, MCS, TOPO; empty for any.
        gpu_type: type of GPU asked for, empty for any; several are separated by commas.
        other_gres: asked for on each node beside GPUs and shards, as in `SlurmNode`.
        scattered_gres: the same by job, task or socket, as squeue prints it: how many a node gives is not known.
        scattered_gpus: whether GPUs are asked for by job, task or socket: Slurm refuses another number per node then.
        tmp_mib: --tmp, which each node must have.
        excluded_nodes: --exclude; known only where nodes and jobs are read together (`SlurmClient.look`).
        contiguous: --contiguous.
        requeues: false after --no-requeue, at submission or since, and for jobs of salloc and srun.
        deadline_s: when Slurm ends the job, and before if its time limit would not fit; None without --deadline.
        fair_share: that part of a waiting job's priority, None if Slurm shows none.
        most_switches: the number of --switches, 0 without it.
        accrue_s: time from which its age counts, None if it does not count.
        preempted: whether Slurm ends this run for another job, or did. The state says so only once all is cleaned up,
            and not of a run that ends by itself within its GraceTime.
        age_lag: how much higher its natives would be if Slurm computed them now. It computes them at once for a job
            that is changed, and for all others every PriorityCalcPeriod; with the lag they are comparable.
        requeue_delay_s: how long this cluster keeps a requeued job from starting.
        is_scrontab: whether Slurm has refused to update it, as all jobs of scrontab: squeue of 22.05 does not tell.

    """

    job_id: int
    name: str
    user: str
    uid: int
    account: str
    partition: str
    qos: str
    state: str
    reason: str
    priority: int
    site_factor: int | None
    submit_s: float
    eligible_s: float | None
    start_s: float | None
    time_limit_s: float | None
    nodes: int
    gpus: int
    gpus_per_node: int | None
    gpu_nodes: tuple[tuple[str, int], ...]
    reservation: str
    comment: str
    restarts: int
    array_tasks: int = 1
    array_job_id: int | None = None
    array_task_id: int | None = None
    array_limit: int | None = None
    throttled_tasks: int = 0
    admin_comment: str = ""
    tasks: int = 1
    cpus: int = 1
    gres_per_node: str = ""
    shards_per_node: int = 0
    node_names: tuple[str, ...] = ()
    gpu_indices: tuple[tuple[str, tuple[int, ...]], ...] = ()
    required_nodes: tuple[str, ...] = ()
    het_job_id: int | None = None
    natives: tuple[int, ...] = ()
    nice: int = 0
    features: str = ""
    licenses: str = ""
    exclusive: str = ""
    cpus_per_gpu: int = 0
    memory_mib: int = 0
    gpu_type: str = ""
    requeues: bool = True
    deadline_s: float | None = None
    fair_share: int | None = None
    most_switches: int = 0
    accrue_s: float | None = None
    preempted: bool = False
    age_lag: int = 0
    suspended_s: float = 0.0
    other_gres: Amounts = ()
    scattered_gres: str = ""
    scattered_gpus: bool = False
    tmp_mib: int = 0
    excluded_nodes: tuple[str, ...] = ()
    contiguous: bool = False
    least_memory_mib: int = 0
    least_limit_s: float = 0.0
    requeue_delay_s: float = REQUEUE_DELAY_S
    is_scrontab: bool = False

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions it may start in."""
        return tuple(self.partition.split(","))

    @property
    def is_held(self) -> bool:
        """Whether it waits for `scontrol release`, as Slurm's reason tells."""
        return self.waits_for is WaitReason.HELD

    @property
    def waits_for(self) -> WaitReason | None:
        """What keeps it waiting; None if it does not wait."""
        return wait_reason(self.reason) if self.state == "PENDING" else None

    @property
    def is_throttled(self) -> bool:
        """Whether the limit of its array lets no task of it start, by Slurm's reason or by `throttled_tasks`."""
        return self.waits_for is WaitReason.ARRAY_LIMIT or self.throttled_tasks >= self.array_tasks

    @property
    def is_outdated(self) -> bool:
        """Whether Slurm's reason is the limit of its array, although a task has ended: it has not tested it since."""
        return self.waits_for is WaitReason.ARRAY_LIMIT and self.throttled_tasks < self.array_tasks

    @property
    def reservations(self) -> frozenset[str]:
        """Those it may start in: a user may name several, and Slurm takes `name,` as well."""
        return frozenset(self.reservation.split(",")) - {""}

    @property
    def native_priority(self) -> int | None:
        """The best priority that Slurm itself gives the job; None if Slurm shows none."""
        return self.priority_with(0) if self.natives else None

    def priority_with(self, site_factor: int) -> int:
        """The best priority that the job has by now with this site factor; it must have `natives`."""
        natives = self.natives
        best = natives[0] if len(natives) == 1 else max(natives)
        return max(LEAST_PRIORITY, best + self.age_lag + site_factor)

    def is_cut_off(self, base_factor: int) -> bool:
        """Whether its --nice takes more from its priority than there is, which Slurm cuts off at `LEAST_PRIORITY`.

        `base_factor` is its site factor without our part. Ours would have to make up for what is cut off, and would be
        worth that much more as soon as the job's owner takes the --nice back.
        """
        return bool(self.natives) and max(self.natives) + self.age_lag + max(0, base_factor) < 0

    @property
    def is_in_force(self) -> bool:
        """Whether the priority in force is the sum of Slurm's own and the site factor; true if these are unknown.

        It may differ by 1, because Slurm rounds the parts. Backfill can restore an older priority after it has yielded
        its locks. For a job in several partitions squeue shows the priority in the partition that was tried last.
        """
        if not self.natives or self.site_factor is None:
            return True
        for native in self.natives:
            wanted = max(LEAST_PRIORITY, native + self.site_factor)
            if -1 <= self.priority - wanted <= 1:
                return True
        return False


class SlurmNode(Struct, frozen=True, gc=False):
    """One node. `state` is Slurm's base state with flags, e.g. `IDLE`, `MIXED+DRAIN`.

    `cpus` and `memory_mib` are what jobs can have in all, 0 if unknown; `..._taken` is what they hold. `gpu_types` are
    the types of its GPUs, empty if they have none. `gpus_taken` is 0 too where Slurm does not account GPUs.
    `other_gres` are its generic resources beside GPUs and shards, and `tmp_mib` its disk for --tmp, None if unknown.
    """

    name: str
    state: str
    gpus: int
    partitions: frozenset[str]
    shards: int = 0
    cpus: int = 0
    cpus_taken: int = 0
    memory_mib: int = 0
    memory_taken_mib: int = 0
    features: frozenset[str] = frozenset()
    gpu_types: frozenset[str] = frozenset()
    other_gres: Amounts = ()
    other_gres_taken: Amounts = ()
    tmp_mib: int | None = None
    gpus_taken: int = 0

    @property
    def gpu_memory_mib(self) -> int:
        """Memory of each GPU by its type or a feature; 0 if unknown."""
        return gpu_memory_of_node(self.gpu_types, self.features)[0]

    @property
    def gpu_memory_feature(self) -> str:
        """The feature that names the memory of its GPUs, for --constraint; empty if none does."""
        return gpu_memory_of_node(self.gpu_types, self.features)[1]

    @property
    def schedulable(self) -> bool:
        """Whether Slurm would start a new job on the node if there were room."""
        return takes_jobs(self.state)

    @property
    def is_down(self) -> bool:
        """Whether it has failed, or an admin has set it down: Slurm then requeues its jobs."""
        return "DOWN" in self.state.replace("*", "+").split("+")

    @property
    def is_powered_down(self) -> bool:
        """Whether Slurm would have to turn it on first, which takes minutes and, in a cloud, costs money."""
        return "POWERED_DOWN" in self.state.split("+")


def takes_jobs(state: str) -> bool:
    """Whether Slurm would start a new job on a node in this state if there were room."""
    flags = set(state.replace("*", "+NOT_RESPONDING").split("+"))
    if "POWERING_UP" in flags:
        flags -= {"NOT_RESPONDING"}  # it will respond soon
    return not flags & _OUT_OF_USE


class ShardRule(StrEnum):
    """How Slurm chooses the GPU of a job that asks for shards, among those of a node with enough of them free."""

    FIRST_FIT = "first-fit"
    """The one with the lowest index."""
    LEAST_LOADED = "least-loaded"
    """The one with most free shards, then the lowest index (SelectTypeParameters has LL_SHARED_GRES)."""


class SlurmReservation(Struct, frozen=True, gc=False):
    """One reservation. `nodes` are expanded host names.

    `cpus` is how many it has on them; 0 if Slurm does not tell, or if it has other resources of them, too.
    """

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    users: tuple[str, ...]
    flags: frozenset[str]
    cpus: int = 0


class ControllerLoad(Struct, frozen=True):
    """How busy slurmctld is, from sdiag; the daemon sends less when it is.

    `backfill_last_cycle_s` is the time that the last cycle worked, without the time that it slept. `backfills`: a cycle
    is under way, which may overwrite priorities that are written meanwhile. `backfill_began_s` is when the
    present cycle or the one before began, as sdiag shows it; 0 if there was none. `time_s` is slurmctld's own time, in
    whole seconds; 0 if it is not told.
    """

    server_threads: int
    last_cycle_s: float
    backfill_last_cycle_s: float
    jobs_pending: int
    backfills: bool = False
    backfill_began_s: float = 0.0
    time_s: float = 0.0

    def ahead_s(self, asked_s: float, answered_s: float) -> float:
        """How far our clock is ahead of slurmctld's, of which this was asked then; 0 where that cannot be seen.

        If it is not exact it is too much: a little early by Slurm's clock does no harm.
        """
        is_apart = self.time_s > 0 and not asked_s - 1.0 <= self.time_s <= answered_s
        return answered_s - self.time_s if is_apart else 0.0


class Topology(Struct, frozen=True):
    """The switches above each node, leaf first, as far as Slurm respects them; empty if it does not.

    `fault` says why the switches are unknown although Slurm respects a topology; "" if they are known.
    """

    switches: Mapping[str, tuple[Switch, ...]] = field(default_factory=dict)
    fault: str = ""

    @property
    def counts_switches(self) -> bool:
        """Whether it is a tree of switches (not blocks), so that a job's number of switches is defined."""
        above = next(iter(self.switches.values()), ())
        return bool(above) and not above[0].holds


class ClusterRecords(Struct, frozen=True):
    """All records that a pass reads, at one time. `limits_cpus`: some association or QOS has a limit on CPUs.

    `tiers` has the PriorityTier of each partition, as far as it is known. `enforces_limits`: Slurm keeps to the limits
    of associations and QOS, of which it is not known here what they leave. `preempts_by_qos`: it puts waiting jobs
    before those of the QOS that theirs may preempt, of which it is not known here which these are.
    """

    nodes: tuple[SlurmNode, ...]
    jobs: tuple[SlurmJob, ...]
    reservations: tuple[SlurmReservation, ...]
    shard_rule: ShardRule = ShardRule.FIRST_FIT
    topology: Topology = Topology()
    limits_cpus: bool = False
    tiers: Mapping[str, int] = field(default_factory=dict)
    enforces_limits: bool = False
    preempts_by_qos: bool = False
