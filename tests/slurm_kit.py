"""Slurm for tests without one: its records, and a double that answers from memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from msgspec.structs import replace

from explsched.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.client.capabilities import Capabilities, SlurmVersion
from slurm_plugin.client.changes import CancelJob, Change, ChangeFailure, ClearDependency, NotNow, Unanswered
from slurm_plugin.client.records import ClusterRecords, ControllerLoad, QueuedJob, SlurmJob, SlurmNode, SlurmReservation

NODES = tuple(SlurmNode(f"n{i}", "IDLE", 4, frozenset({"main"})) for i in (1, 2, 3, 4))
NOW_S = 1_800_000_000.0
"""When jobs are submitted to a `FakeSlurm`."""

_ACTIVE = ("PENDING", "RUNNING", "COMPLETING")


def record(job_id: int, **fields: Any) -> SlurmJob:
    """A job that waits for four GPUs of one node, unless `fields` say otherwise."""
    base = SlurmJob(
        job_id=job_id,
        name="j",
        user="ada",
        uid=1000,
        account="",
        partition="main",
        qos="",
        state="PENDING",
        reason="Priority",
        priority=1,
        site_factor=0,
        submit_s=0.0,
        eligible_s=0.0,
        start_s=None,
        time_limit_s=3600.0,
        nodes=1,
        gpus=4,
        gpus_per_node=4,
        gpu_nodes=(),
        reservation="",
        comment="",
        restarts=0,
    )
    return replace(base, **fields)


@dataclass
class FakeSlurm:
    """A Slurm with some jobs, which it has by id in `known`.

    It refuses the changes that `refuses` says, in the words of `says`, and with a `refusal` all of them and every
    submission, for that reason; those that `postpones` says it refuses for the moment, and those that `loses` says
    never reach it.
    With `silent` nothing answers, or else nothing in `mute`; with `forgets` sbatch takes the job and its answer is
    lost. `asked` are the names of what was called, `applied` has the changes of each call of `apply`, `carried_out`
    those that were not refused. `leases` are all reservations there are.
    """

    jobs_at_first: InitVar[Sequence[SlurmJob]] = ()
    refuses: Callable[[Change], bool] = lambda _change: False
    postpones: Callable[[Change], bool] = lambda _change: False
    loses: Callable[[Change], bool] = lambda _change: False
    says: str = "refused"
    refusal: str = ""
    settings: dict[str, str] = field(default_factory=lambda: {"ClusterName": f"fake of process {os.getpid()}"})
    silent: bool = False
    mute: frozenset[str] = frozenset()
    forgets: bool = False
    known: dict[int, SlurmJob] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    submissions: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    starts_s: dict[str, float] = field(default_factory=dict)
    applied: list[tuple[Change, ...]] = field(default_factory=list)
    carried_out: list[Change] = field(default_factory=list)
    name: str = "fake"
    leases: tuple[SlurmReservation, ...] = ()

    def __post_init__(self, jobs_at_first: Sequence[SlurmJob]) -> None:
        self.known |= {job.job_id: job for job in jobs_at_first}

    @property
    def cancelled(self) -> list[int]:
        """Ids of the jobs that were cancelled, in order."""
        return [change.job_id for change in self.carried_out if isinstance(change, CancelJob)]

    @property
    def released(self) -> list[int]:
        """Ids of the jobs whose dependency was cleared, in order."""
        return [change.job_id for change in self.carried_out if isinstance(change, ClearDependency)]

    def set(self, job_id: int, **fields: Any) -> None:
        """Something happens to a job."""
        self.known[job_id] = replace(self.known[job_id], **fields)

    def active(self) -> list[SlurmJob]:
        """Jobs that have not ended."""
        return [job for job in self.known.values() if job.state in _ACTIVE]

    def capabilities(self) -> Capabilities:
        self._answer("capabilities")
        return Capabilities(SlurmVersion(24, 11, 5), self.settings)

    def jobs(self) -> tuple[SlurmJob, ...]:
        self._answer("jobs")
        return tuple(self.active())

    def tagged_jobs(self, prefix: str) -> tuple[SlurmJob, ...]:
        self._answer("tagged_jobs")
        jobs = self.known.values()
        return tuple(job for job in jobs if any(word.startswith(prefix) for word in job.comment.split()))

    def queue(self) -> tuple[QueuedJob, ...]:
        self._answer("queue")
        return tuple(
            QueuedJob(
                job.job_id,
                job.partitions,
                job.priority,
                ready=job.state == "PENDING",
                start_s=None if job.state == "PENDING" else job.start_s,
                nodes=job.nodes,
                limit_s=job.time_limit_s,
            )
            for job in self.active()
        )

    def submit(self, script: str, options: Sequence[str]) -> int:
        self._answer("submit")
        if self.refusal:
            raise SlurmError(self.refusal)
        self.submissions.append((script, tuple(options)))
        given = dict(option.removeprefix("--").split("=", 1) for option in options if "=" in option)
        number = len(self.known) + 1
        told = {"name": given["job-name"], "comment": given["comment"], "qos": given.get("qos", "")}
        self.known[number] = record(number, **told, submit_s=NOW_S, eligible_s=NOW_S, gpus=0, gpus_per_node=None)
        if self.forgets:
            raise SlurmUnreachableError("sbatch: no answer")
        return number

    def expected_start_s(self, script: str, options: Sequence[str]) -> float:
        """By QOS, as `starts_s` tells; of others nothing is told."""
        self._answer("expected_start_s")
        qos = next((option.removeprefix("--qos=") for option in options if option.startswith("--qos=")), "")
        if qos not in self.starts_s:
            raise SlurmError(f"sbatch --test-only tells no start: invalid qos {qos}")
        return self.starts_s[qos]

    def nodes(self) -> tuple[SlurmNode, ...]:
        self._answer("nodes")
        return NODES

    def reservations(self) -> tuple[SlurmReservation, ...]:
        self._answer("reservations")
        return self.leases

    def look(self) -> ClusterRecords:
        return ClusterRecords(self.nodes(), self.jobs(), self.reservations())

    def load(self) -> ControllerLoad:
        self._answer("load")
        return ControllerLoad(1, 0.0, 0.0, 0)

    def apply(self, changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
        self._answer("apply")
        self.applied.append(tuple(changes))
        refused = [change for change in changes if self.refusal or self.refuses(change)]
        postponed = [change for change in changes if self.postpones(change)]
        lost = [change for change in changes if self.loses(change)]
        for change in changes:
            if change not in (*refused, *postponed, *lost):
                self.carried_out.append(change)
                if isinstance(change, CancelJob):
                    self.set(change.job_id, state="CANCELLED")
        told = [ChangeFailure(change, self.refusal or self.says) for change in refused]
        told += (NotNow(change, "the DB index is being set") for change in postponed)
        return (*told, *(Unanswered(change, "not known: scontrol ended before it came to this") for change in lost))

    def _answer(self, call: str) -> None:
        self.asked.add(call)
        if self.silent or call in self.mute:
            raise SlurmUnreachableError("squeue: no answer from slurmctld")
