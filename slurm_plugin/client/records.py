"""What Slurm tells, as frozen records. Times are seconds since the epoch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct, field

from sched_policy.model import Switch

_OUT_OF_USE = frozenset({
    *("DOWN", "UNKNOWN", "ERROR", "FUTURE", "DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING", "NOT_RESPONDING"),
    *("MAINT", "MAINTENANCE", "POWER_DOWN", "POWERING_DOWN", "REBOOT_ISSUED", "INVALID_REG", "BLOCKED", "EXTERNAL"),
})  # fmt: skip
"""Not here: RESERVED, which leases bring about, too (the reservation itself tells), and POWERED_DOWN, for Slurm turns
such a node on as soon as a job is given to it."""


LEAST_PRIORITY = 1
"""Slurm cuts priorities off here; 0 means held."""


class QueuedJob(Struct, frozen=True, gc=False):
    """One job or array task in Slurm's queue: as much as tells whose turn it is.

    `ready` jobs wait for nothing but room or jobs of higher priority. `start_s` is the start of a job that runs, and
    None of one that waits. `limit_s` is its time limit, None where it has none.
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

    `state` is Slurm's long name (PENDING, RUNNING, COMPLETING, ...). `gpus` is the total asked for or
    allocated, `gpus_per_node` is set when each node's share is fixed. `gpu_nodes` is (node, GPUs) of the
    allocation, empty while pending. `site_factor` is None where Slurm does not tell. `time_limit_s` None means
    unlimited. `eligible_s` is when the job may start at the earliest, None while that is not known (held, dependency).
    `start_s` is the real start of a running job, or slurmctld's estimate for a pending one. `gres_per_node` is what is
    asked for on each node, as sbatch's --gres takes it (`gpu:a100:2,shard:4`).

    `shards_per_node` is what the job asks of gres/shard, 0 for none. `node_names` are the nodes of the allocation, and
    `gpu_indices` is (node, indices of its GPUs there) as far as Slurm tells; it is asked only where jobs want shards.
    `required_nodes` are those that a waiting job must have. `het_job_id` is the first component's id for each component
    of a heterogeneous job, which start together or not at all; None for other jobs.

    `natives` are the priorities that Slurm itself gives a waiting job, without any site factor: one for each partition
    of its list, none while it is held or may not start yet. What lies below `LEAST_PRIORITY` has its effect only with a
    site factor. `priority` is the one in force. `nice` is what its owner
    takes off. `partition` may be a list. `features` (--constraint) and `licenses` are as squeue prints them, empty for
    none. `exclusive` is with whom alone it shares its nodes: NODE for nobody, USER, MCS, TOPO; empty for all. `cpus`
    is less than a waiting job with `cpus_per_gpu` will get. `fair_share` is that part of a waiting job's priority, None
    where Slurm tells none. `requeues` is false where its owner has said --no-requeue, then or since. `gpu_type` is the
    type of GPU that is asked for, empty for any; several are separated by commas. `most_switches` is what --switches
    says, 0 without it. `accrue_s` is from when on its age counts, None where it does not.

    `age_lag` is how much higher its natives would be by now, had Slurm just computed them: it does that of a job that
    is changed at once, of all others each PriorityCalcPeriod. So jobs are compared by one clock, as Slurm will itself.
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
    fair_share: int | None = None
    most_switches: int = 0
    accrue_s: float | None = None
    age_lag: int = 0

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions it may start in."""
        return tuple(self.partition.split(","))

    @property
    def native_priority(self) -> int | None:
        """The best priority that Slurm itself gives it; None where it tells none."""
        return self.priority_with(0) if self.natives else None

    def priority_with(self, site_factor: int) -> int:
        """The best priority that it has by now with a site factor; only where Slurm tells its own."""
        natives = self.natives
        best = natives[0] if len(natives) == 1 else max(natives)
        return max(LEAST_PRIORITY, best + self.age_lag + site_factor)

    @property
    def is_in_force(self) -> bool:
        """Whether the priority in force is what Slurm's own and the site factor add up to; true where nothing is known.

        Slurm rounds the parts, so one may be off by 1. Backfill writes an older priority back over a new one when it
        has let go of its locks meanwhile. Of a job in several partitions squeue shows the one tried last.
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

    `cpus` and `memory_mib` are what jobs can have in all, 0 where that is not known; `..._taken` is what they hold.
    `gpu_types` are the types of its GPUs, as far as they have one.
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

    @property
    def gpu_memory_mib(self) -> int:
        """Memory of each GPU, as far as its type or a feature tells; 0 where neither does."""
        return gpu_memory_of_node(self.gpu_types, self.features)[0]

    @property
    def gpu_memory_feature(self) -> str:
        """The feature that tells, for --constraint; empty where none does."""
        return gpu_memory_of_node(self.gpu_types, self.features)[1]

    @property
    def schedulable(self) -> bool:
        """Whether Slurm would start a new job here when there is room."""
        flags = set(self.state.replace("*", "+NOT_RESPONDING").split("+"))
        if "POWERING_UP" in flags:
            flags -= {"NOT_RESPONDING"}  # it will
        return not flags & _OUT_OF_USE


class ShardRule(StrEnum):
    """How Slurm chooses the GPU of a job that asks for shards, among those of a node with enough of them free."""

    FIRST_FIT = "first-fit"
    """The one with the lowest index."""
    LEAST_LOADED = "least-loaded"
    """The one with most shards free, of equals the lowest index (SelectTypeParameters has LL_SHARED_GRES)."""


class SlurmReservation(Struct, frozen=True, gc=False):
    """One reservation. `nodes` are expanded host names."""

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    users: tuple[str, ...]
    flags: frozenset[str]


class ControllerLoad(Struct, frozen=True):
    """How busy slurmctld is, from sdiag. Used to leave it alone when it is.

    `backfill_last_cycle_s` is what the last cycle worked, without the time that it slept. `backfills` tells whether a
    cycle is under way: what is written meanwhile it may overwrite. `backfill_began_s` is when the last one began, that
    one or the one before; 0 where none has.
    """

    server_threads: int
    last_cycle_s: float
    backfill_last_cycle_s: float
    jobs_pending: int
    backfills: bool = False
    backfill_began_s: float = 0.0


class Topology(Struct, frozen=True):
    """Where nodes are in the network as Slurm heeds it: what is above each, leaf first; empty where all are alike.

    `fault` says why that is not known although Slurm heeds a network; "" where it is.
    """

    switches: Mapping[str, tuple[Switch, ...]] = field(default_factory=dict)
    fault: str = ""

    @property
    def counts_switches(self) -> bool:
        """Whether it is a tree of switches, so that it can be told below how many a job is."""
        above = next(iter(self.switches.values()), ())
        return bool(above) and not above[0].holds


class ClusterRecords(Struct, frozen=True):
    """All that a pass looks at, read at one time."""

    nodes: tuple[SlurmNode, ...]
    jobs: tuple[SlurmJob, ...]
    reservations: tuple[SlurmReservation, ...]
    shard_rule: ShardRule = ShardRule.FIRST_FIT
    topology: Topology = Topology()


# Slurm itself counts no GPU memory. Sites name it: `gpu:a100_80gb:4`, features such as `gpumem80g` or `vram-24gb`; and
# some models come in one size only.
_MIB_PER_GIB = 1024
_LARGEST_GIB = 1024
_ONE_SIZE_GIB = {
    "t4": 16,
    "p100": 16,
    "a10": 24,
    "a30": 24,
    "l4": 24,
    "3090": 24,
    "4090": 24,
    "5090": 32,
    "a40": 48,
    "l40": 48,
    "l40s": 48,
    "a6000": 48,
    "h100": 80,
    "h200": 141,
    "b200": 180,
    "mi300x": 192,
}
"""Models that are sold with one size of memory, or almost always (H100). A100 and V100 are not among them."""
_MODEL = re.compile(r"(?<![a-z0-9])(?:[abhlptv]\d{1,4}s?|mi\d{3}x?|\d{4})(?![a-z0-9])")
_SIZE = re.compile(r"(?<!\d)(\d{1,4})gi?b?(?![a-z0-9])")


def gpu_memory_of_node(gpu_types: Iterable[str], features: Iterable[str]) -> tuple[int, str]:
    """MiB of each GPU, and the feature that tells, "" where the type does; (0, "") where nothing does, or both differ.

    Of GPUs of several sizes the smallest counts.
    """
    by_type = [found for name in gpu_types if (found := gpu_memory_mib(name))]
    telling = {name: found for name in sorted(features) if (found := gpu_memory_mib(name))}
    sizes = by_type or list(telling.values())
    if not sizes:
        return 0, ""
    least_mib = min(sizes)
    return least_mib, next((name for name, found in telling.items() if found == least_mib), "")


@lru_cache(maxsize=4096)
def gpu_memory_mib(name: str) -> int:
    """What the name of a type or feature tells: a size beside a model or a word for GPU memory, else the model's own.

    A size alone (`512g`) may be that of the node.
    """
    words = name.lower().replace("_", "-")
    model = _MODEL.search(words)
    size = _SIZE.search(words)
    if size is None:  # `gpumem80g`
        size = re.search(r"(?:gpu|vram|mem)[a-z-]*(\d{1,4})g", words)
    if size and 0 < int(size[1]) <= _LARGEST_GIB and (model or "gpu" in words or "vram" in words):
        return int(size[1]) * _MIB_PER_GIB
    return _ONE_SIZE_GIB.get(model[0], 0) * _MIB_PER_GIB if model else 0
