"""What `checkpointing.sh` does and tells: a training as a user might write it in shell."""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".sh")
UNTIL_REQUEUED = 100_000
"""Steps of a first run that must be interrupted."""


def done(directory: Path) -> list[tuple[int, ...]]:
    """(run, step, GPUs on the node, nodes) of each step."""
    path = directory / "done"
    return [tuple(map(int, line.split())) for line in path.read_text().splitlines()] if path.exists() else []
