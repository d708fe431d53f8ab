"""A Slurm that answers from memory, notes what it is asked to change, and refuses what a test says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurm_plugin.client.capabilities import Capabilities
from slurm_plugin.client.changes import Change, ChangeFailure
from slurm_plugin.client.records import ClusterRecords, ControllerLoad, SlurmJob, SlurmNode, SlurmReservation
from slurm_plugin.client.version import SlurmVersion

NODES = tuple(SlurmNode(f"n{i}", "IDLE", 4, frozenset({"main"})) for i in (1, 2, 3, 4))


@dataclass
class FakeSlurm:
    """`applied` has the changes of each call of `apply`, in order."""

    records: tuple[SlurmJob, ...] = ()
    refuses: Callable[[Change], bool] = lambda _change: False
    settings: dict[str, str] = field(default_factory=lambda: {"ClusterName": f"fake of process {os.getpid()}"})
    applied: list[tuple[Change, ...]] = field(default_factory=list)
    name: str = "fake"

    def capabilities(self) -> Capabilities:
        return Capabilities(SlurmVersion(24, 11, 5), self.settings)

    def jobs(self) -> tuple[SlurmJob, ...]:
        return self.records

    def tagged_jobs(self, prefix: str) -> tuple[SlurmJob, ...]:
        return tuple(job for job in self.records if job.comment.startswith(prefix))

    def submit(self, script: str, options: Sequence[str]) -> int:
        raise NotImplementedError

    def nodes(self) -> tuple[SlurmNode, ...]:
        return NODES

    def reservations(self) -> tuple[SlurmReservation, ...]:
        return ()

    def look(self) -> ClusterRecords:
        return ClusterRecords(self.nodes(), self.jobs(), self.reservations())

    def load(self) -> ControllerLoad:
        return ControllerLoad(1, 0, 0.0, 0.0, 0)

    def apply(self, changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
        self.applied.append(tuple(changes))
        return tuple(ChangeFailure(change, "refused") for change in changes if self.refuses(change))
