"""What a replica's job tells the gateway, as files in the replica's directory.

    endpoint   where it will listen: JSON, written by the job when it has a port
    leaving    it was told to end: present from then on

Files, because the directory is on storage that gateway and nodes share anyway, and a file is still there when the
gateway is restarted. An endpoint says nothing about readiness; only an answer over HTTP does. Standard library only:
this runs in jobs.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from explsched.atomic_file import replace_file


@dataclass(frozen=True, slots=True)
class Registration:
    """Where the replica of a job listens. `restarts` tells the runs of a requeued job apart."""

    host: str
    port: int
    job_id: int
    restarts: int = 0


def register(directory: Path, registration: Registration) -> None:
    """Tell where the replica will listen; a reader finds the whole file or none."""
    replace_file(directory / "endpoint", json.dumps(asdict(registration)))
    (directory / "leaving").unlink(missing_ok=True)


def registered(directory: Path) -> Registration | None:
    """What the job told; None if nothing yet, or nothing that can be understood."""
    try:
        return Registration(**json.loads((directory / "endpoint").read_text(encoding="ascii")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        return None


def leave(directory: Path) -> None:
    """Tell that the replica is about to end."""
    (directory / "leaving").touch()


def leaving(directory: Path) -> bool:
    """Whether the replica is about to end. Asked of every replica every second, so without the cost of a `Path`."""
    return os.path.exists(f"{directory}/leaving")  # noqa: PTH110
