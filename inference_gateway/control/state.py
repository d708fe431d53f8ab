"""What the control plane remembers over a restart, and what it tells others: JSON files, written in one step.

Slurm is asked first about what exists; the state file adds what Slurm does not know: which replicas were draining, how
long starts took, how many failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from explsched.atomic_file import replace_file, replace_file_durably
from explsched.log import event
from inference_gateway.control.replica import Replica
from inference_gateway.control.start_backoff import Attempts

_LOG = logging.getLogger("explsched.gateway")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ServiceMemory:
    """What is known of a service. `starts_s` are its latest start times, submission to serving."""

    attempts: Attempts = field(default_factory=Attempts)
    starts_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """All that is remembered."""

    replicas: tuple[Replica, ...] = ()
    services: dict[str, ServiceMemory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Override:
    """What a person has set by command for a service: at least so many replicas. `at_s` is when."""

    minimum: int
    at_s: float


def save(path: Path, value: object) -> bool:
    """Write a value as JSON: a reader finds the old file or the new one, also after a power cut. False: not written."""
    return _written(replace_file_durably, path, value)


def show(path: Path, value: object) -> bool:
    """Write what is out of date in a second: as `save`, but without waiting for the disk."""
    return _written(replace_file, path, value)


def _written(write: Callable[[Path, bytes], None], path: Path, value: object) -> bool:
    try:
        write(path, msgspec.json.encode(value))
    except OSError as error:
        event(_LOG, logging.ERROR, "state not written", file=str(path), why=error.strerror or str(error))
        return False
    return True


def read(path: Path, kind: type[_Value]) -> _Value | None:
    """The value of a file; None, with a line in the log, if there is none that can be understood."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        event(_LOG, logging.ERROR, "state not understood, going on without", file=str(path), why=str(error))
        return None
