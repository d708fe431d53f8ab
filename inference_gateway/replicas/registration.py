"""What a replica's job tells the gateway, as files in the replica's directory.

    key        its API key, mode 0600, written by the gateway before it submits the job
    endpoint   where it will listen: JSON, written by the job when it has a port
    leaving    it was told to end: present from then on

Files, because the directory is on storage that gateway and nodes share anyway, and a file is still there when the
gateway is restarted. An endpoint says nothing about readiness; only an answer over HTTP does. Standard library only:
this runs in jobs.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Registration:
    """Where the replica of a job listens. `restarts` tells the runs of a requeued job apart."""

    host: str
    port: int
    job_id: int
    restarts: int = 0


def make_key(directory: Path) -> str:
    """Write a new random key that only this user may read."""
    key = secrets.token_urlsafe(32)
    handle = os.open(directory / "key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(key)
    return key


def read_key(directory: Path) -> str:
    """The replica's key. Raises `OSError`."""
    return (directory / "key").read_text(encoding="ascii")


def register(directory: Path, registration: Registration) -> None:
    """Tell where the replica will listen; a reader finds the whole file or none."""
    new = directory / f"endpoint.{registration.job_id}.new"
    new.write_text(json.dumps(asdict(registration)), encoding="ascii")
    new.replace(directory / "endpoint")
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
    """Whether the replica is about to end."""
    return (directory / "leaving").exists()
