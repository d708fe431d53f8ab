"""What Slurm tells by `scontrol show`."""

from __future__ import annotations

import subprocess

_PATIENCE_S = 10.0


def show(*entity: str) -> str:
    """Text of a job, a node or the configuration. Raises `OSError` or `subprocess.SubprocessError`."""
    command = ["scontrol", "show", *entity]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True, timeout=_PATIENCE_S)
    return done.stdout
