"""What explsched asks of Slurm, whichever adapter answers.

Reads return frozen records; writes are `Change` values handed over in one batch, and every change that Slurm
refuses comes back as a `ChangeFailure` naming it. Times are seconds since the epoch, memory is MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from sched_policy.errors import ExplschedError
from slurm_plugin.client.capabilities import Capabilities


class SlurmError(ExplschedError):
    """Slurm refused, is missing, answered something unreadable or cannot be reached."""


class SlurmUnreachableError(SlurmError):
    """slurmctld does not answer (down, restarting, timed out). Worth trying again later."""


class SlurmJob(Struct, frozen=True):
    """One record of slurmctld's job table. A pending job array is one record with `array_tasks` > 1.

    `state` is Slurm's long name (PENDING, RUNNING, COMPLETING, ...). `gpus` is the total asked for or
    allocated, `gpus_per_node` is set when each node's share is fixed. `gpu_nodes` is (node, GPUs) of the
    allocation, empty while pending. `site_factor` is None where Slurm does not tell. `time_limit_s` None means
    unlimited. `eligible_s` is when the job may start at the earliest, None while that is not known (held, dependency).
    `start_s` is the real start of a running job, or slurmctld's estimate for a pending one. `gres_per_node` is what is
    asked for on each node, as sbatch's --gres takes it (`gpu:a100:2,shard:4`).

    `shards_per_node` is what the job asks of gres/shard, 0 for none. `node_names` are the nodes of the allocation, and
    `gpu_indices` is (node, indices of its GPUs there) as far as Slurm tells; it is asked only where jobs want shards.
    `required_nodes` are those that a waiting job must have.
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


class SlurmNode(Struct, frozen=True):
    """One node. `state` is Slurm's base state with flags, e.g. `IDLE`, `MIXED+DRAIN`."""

    name: str
    state: str
    gpus: int
    partitions: frozenset[str]
    shards: int = 0

    @property
    def schedulable(self) -> bool:
        """Whether Slurm would start a new job here when there is room."""
        flags = set(self.state.replace("*", "+NOT_RESPONDING").split("+"))
        bad = {
            "DOWN",
            "DRAIN",
            "DRAINING",
            "DRAINED",
            "FAIL",
            "FAILING",
            "MAINT",
            "UNKNOWN",
            "NOT_RESPONDING",
            "POWERED_DOWN",
            "POWERING_DOWN",
            "REBOOT_ISSUED",
            "FUTURE",
            "ERROR",
        }
        return not flags & bad


class ShardRule(StrEnum):
    """How Slurm chooses the GPU of a job that asks for shards, among those of a node with enough of them free."""

    FIRST_FIT = "first-fit"
    """The one with the lowest index."""
    LEAST_LOADED = "least-loaded"
    """The one with most shards free, of equals the lowest index (SelectTypeParameters has LL_SHARED_GRES)."""


class SlurmReservation(Struct, frozen=True):
    """One reservation. `nodes` are expanded host names."""

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    users: tuple[str, ...]
    flags: frozenset[str]


class ControllerLoad(Struct, frozen=True):
    """How busy slurmctld is, from sdiag. Used to leave it alone when it is."""

    server_threads: int
    agent_queue: int
    last_cycle_s: float
    backfill_last_cycle_s: float
    jobs_pending: int


class SetSiteFactor(Struct, frozen=True):
    """Set the additive site factor of a job's priority. 0 resets it."""

    job_id: int
    site_factor: int


class CreateReservation(Struct, frozen=True):
    """Create a lease: `start_s` and `duration_min` (whole minutes), for `users` on `nodes`."""

    name: str
    start_s: float
    duration_min: int
    nodes: tuple[str, ...]
    users: tuple[str, ...]
    partition: str
    flags: tuple[str, ...] = ("FLEX", "NO_HOLD_JOBS_AFTER", "IGNORE_JOBS")


class ExtendReservation(Struct, frozen=True):
    """Let an existing lease end later; the start of one that has begun is fixed."""

    name: str
    end_s: float


class DeleteReservation(Struct, frozen=True):
    """Remove a lease."""

    name: str


class AttachReservation(Struct, frozen=True):
    """Attach a pending job to a lease; an empty name detaches it."""

    job_id: int
    reservation: str


class SignalJob(Struct, frozen=True):
    """Send a signal (name without SIG) to the batch script of a running job.

    `sxrun` passes it on to its command, and srun to the tasks of a step.
    """

    job_id: int
    signal: str


class RequeueJob(Struct, frozen=True):
    """Put a running batch job back to the queue. A job that has ended by then is left alone.

    Slurm makes it eligible only after the life of a credential (two minutes); `StartAtOnce` lifts that.
    """

    job_id: int


class StartAtOnce(Struct, frozen=True):
    """Make a pending job eligible now. Works only once a requeue is through, and is safe some seconds after that.

    See `steering.requeue_delay`.
    """

    job_id: int


class CancelJob(Struct, frozen=True):
    """Cancel a job."""

    job_id: int


class ClearDependency(Struct, frozen=True):
    """Let a pending job start without waiting for the jobs it depends on."""

    job_id: int


class SetAdminComment(Struct, frozen=True):
    """Replace the AdminComment of a job in any state. Only operators may write there."""

    job_id: int
    admin_comment: str


class TargetJob(Struct, frozen=True):
    """Let a pending job start on exactly these nodes (none: on any), and say so in its AdminComment.

    Slurm refuses it for a job that has started meanwhile.
    """

    job_id: int
    nodes: tuple[str, ...]
    admin_comment: str


class SetGres(Struct, frozen=True):
    """Let a pending job ask for other generic resources on each node, such as `gpu:a100:2`."""

    job_id: int
    gres: str


class SetNodeCount(Struct, frozen=True):
    """Let a pending job ask for so many nodes, with so many tasks and CPUs in all."""

    job_id: int
    nodes: int
    tasks: int
    cpus: int


Change = (
    SetSiteFactor
    | CreateReservation
    | ExtendReservation
    | DeleteReservation
    | AttachReservation
    | SignalJob
    | RequeueJob
    | StartAtOnce
    | CancelJob
    | ClearDependency
    | SetAdminComment
    | TargetJob
    | SetGres
    | SetNodeCount
)


class ChangeFailure(Struct, frozen=True):
    """A change that Slurm refused, and its words."""

    change: Change
    message: str


class ClusterRecords(Struct, frozen=True):
    """All that a pass looks at, read at one time."""

    nodes: tuple[SlurmNode, ...]
    jobs: tuple[SlurmJob, ...]
    reservations: tuple[SlurmReservation, ...]
    shard_rule: ShardRule = ShardRule.FIRST_FIT


class SlurmClient(Protocol):
    """Access to one Slurm cluster. Every call may raise `SlurmError`; none blocks longer than its timeout."""

    @property
    def name(self) -> str:
        """The adapter's name as configuration accepts it: `cli` or `pyslurm`."""
        ...

    def capabilities(self) -> Capabilities:
        """What this Slurm can do."""
        ...

    def jobs(self) -> tuple[SlurmJob, ...]:
        """All jobs that wait, run or complete, in one request whatever their number."""
        ...

    def tagged_jobs(self, prefix: str) -> tuple[SlurmJob, ...]:
        """The user's own jobs whose comment begins with `prefix`, those that ended lately included; no site factors."""
        ...

    def submit(self, script: str, options: Sequence[str]) -> int:
        """Submit a batch script with sbatch's options; returns the job's id."""
        ...

    def nodes(self) -> tuple[SlurmNode, ...]:
        """All nodes."""
        ...

    def reservations(self) -> tuple[SlurmReservation, ...]:
        """All reservations."""
        ...

    def look(self) -> ClusterRecords:
        """Nodes, jobs and reservations."""
        ...

    def load(self) -> ControllerLoad:
        """How busy slurmctld is."""
        ...

    def apply(self, changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
        """Carry out the changes in order, in one batch; return those that Slurm refused."""
        ...
