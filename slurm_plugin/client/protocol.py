"""What explsched asks of Slurm, whichever adapter answers.

Reads return frozen records; writes are `Change` values handed over in one batch, and every change that Slurm
refuses comes back as a `ChangeFailure` naming it.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Sequence
from typing import Literal, Protocol

from explsched import interpreter
from explsched.errors import SlurmError
from explsched.log import event
from slurm_plugin.client.capabilities import Capabilities
from slurm_plugin.client.changes import Change, ChangeFailure
from slurm_plugin.client.cli import CliClient
from slurm_plugin.client.records import ClusterRecords, ControllerLoad, QueuedJob, SlurmJob, SlurmNode, SlurmReservation


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
        """The user's own jobs with a word in their comment that begins with `prefix`, also those that ended lately.

        Without site factors.
        """
        ...

    def queue(self) -> tuple[QueuedJob, ...]:
        """What runs and waits, of all users as far as they may be seen, each task of an array for itself."""
        ...

    def submit(self, script: str, options: Sequence[str]) -> int:
        """Submit a batch script with sbatch's options; returns the job's id."""
        ...

    def expected_start_s(self, script: str, options: Sequence[str]) -> float:
        """When Slurm would start such a job, in seconds since the epoch; nothing is submitted."""
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


_LOG = logging.getLogger("explsched.slurm")
_PROBE_S = 20.0


def choose(kind: Literal["auto", "pyslurm", "cli"], timeout_s: float) -> SlurmClient:
    """The adapter of that name; `auto` takes pyslurm where it works and the commands elsewhere.

    Raises `SlurmError` if pyslurm is asked for and does not work.
    """
    if kind == "cli":
        return CliClient(timeout_s)
    fault = probe_pyslurm()
    if fault is None:
        from slurm_plugin.client.pyslurm_ import PyslurmClient

        return PyslurmClient(timeout_s)
    if kind == "pyslurm":
        raise SlurmError(f"slurm.client is pyslurm, but pyslurm does not work here: {fault}")
    event(_LOG, logging.INFO, "using the s* commands", why=fault)
    return CliClient(timeout_s)


def probe_pyslurm() -> str | None:
    """Why pyslurm cannot be used, None if it can.

    Tried in a child process: importing pyslurm calls libslurm, which ends its process when Slurm is not set up.
    """
    code = "import pyslurm; pyslurm.Nodes.load(); pyslurm.Reservations"  # 24.11.0 has no reservations
    try:
        done = subprocess.run(interpreter.of_code(code), capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        return f"its import took longer than {_PROBE_S:.0f} s"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"its import ended the process with status {done.returncode}"
