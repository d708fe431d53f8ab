"""What can go wrong between explsched and Slurm."""

from __future__ import annotations

from explsched.errors import ExplschedError


class SlurmError(ExplschedError):
    """Slurm refused, is missing, answered something unreadable or cannot be reached."""


class SlurmUnreachableError(SlurmError):
    """slurmctld does not answer (down, restarting, timed out). Worth trying again later."""
