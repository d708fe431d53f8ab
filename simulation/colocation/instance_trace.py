"""What a trace of instances holds: starts and deletes. No files here, see `instance_format`."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from simulation.colocation.placements.instance import Instance
from simulation.traces.trace import Rejected


class Action(StrEnum):
    """What happens to an instance."""

    START = "start"
    DELETE = "delete"


class InstanceEvent(Struct, frozen=True):
    """At `time_s` the instance known by `key` starts, or is deleted."""

    time_s: float
    action: Action
    key: int
    instance: Instance


class InstanceTrace(Struct, frozen=True):
    """Events in order of time, every delete after the start of its instance, and the lines that were left out."""

    events: tuple[InstanceEvent, ...]
    rejected: tuple[Rejected, ...] = ()
