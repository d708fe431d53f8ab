"""What explsched asks of Slurm, whichever adapter answers.

Reads return frozen records; writes are `Change` values handed over in one batch, and every change that Slurm
refuses comes back as a `ChangeFailure` naming it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm_plugin.client.capabilities import Capabilities
from slurm_plugin.client.changes import Change, ChangeFailure
from slurm_plugin.client.records import ClusterRecords, ControllerLoad, SlurmJob, SlurmNode, SlurmReservation


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
