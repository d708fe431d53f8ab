"""What explsched changes in Slurm: a batch of `Change` values. Times are seconds since the epoch."""

from __future__ import annotations

from msgspec import Struct


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
    """Put a running batch job back into the queue. Nothing is done if the job has ended meanwhile.

    Slurm makes it eligible only after the life of a credential (two minutes); `StartAtOnce` lifts that.
    """

    job_id: int


class StartAtOnce(Struct, frozen=True):
    """Make a pending job eligible now. After a requeue this is safe from `standing.SETTLE_S` on."""

    job_id: int


class DelayStart(Struct, frozen=True):
    """Let a pending job start at `until_s` at the earliest."""

    job_id: int
    until_s: int


class CancelJob(Struct, frozen=True):
    """Cancel a job."""

    job_id: int


class ClearDependency(Struct, frozen=True):
    """Let a pending job start without waiting for the jobs it depends on."""

    job_id: int


class SetAdminComment(Struct, frozen=True):
    """Replace the AdminComment of a job in any state. Slurm lets only administrators write there, not operators."""

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
    """Let a pending job ask for this number of nodes, and this number of tasks and CPUs in all."""

    job_id: int
    nodes: int
    tasks: int
    cpus: int


JobChange = (
    SetSiteFactor
    | AttachReservation
    | SignalJob
    | RequeueJob
    | StartAtOnce
    | DelayStart
    | CancelJob
    | ClearDependency
    | SetAdminComment
    | TargetJob
    | SetGres
    | SetNodeCount
)
Change = JobChange | CreateReservation | ExtendReservation | DeleteReservation


class ChangeFailure(Struct, frozen=True):
    """A change that Slurm refused, and its message."""

    change: Change
    message: str


NOT_KNOWN = "not known: "
"""How the message begins where Slurm may have carried out the change."""


class Unanswered(ChangeFailure, frozen=True):
    """A change that Slurm may have carried out or not, or never got; the message says why that is not known."""


class NotNow(ChangeFailure, frozen=True):
    """A change that Slurm refuses while its database does not answer, after 5 s each; it may take it later.

    Of jobs without a database, of which Slurm may say the same for their whole run, it is a `ChangeFailure`.
    """
