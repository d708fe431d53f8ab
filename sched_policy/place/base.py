"""What every placement has in common."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct

from sched_policy.columns import Ints, Nodes
from sched_policy.model import GpuRequest

Indexed = tuple[tuple[int, int], ...]
"""A placement as ((node index, GPUs), ...)."""


class Room(Struct, frozen=True, eq=False):
    """Where a job may go: free GPUs per node (0 where it may not) and jobs on each node now, both of shape (N,)."""

    free: Ints
    tasks: Ints
    nodes: Nodes


class Place(Protocol):
    """Chooses nodes for gangs."""

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """All GPUs of the request, or None if it does not fit.

        A request that does not fit must not fit with less room either: backfill relies on it.
        """
        ...


def enough_memory(request: GpuRequest, room: Room) -> Ints:
    """Free GPUs on nodes whose GPUs have the memory the request needs; a node of unknown memory counts."""
    if request.gpu_memory_mib <= 0:
        return room.free
    memory_mib = room.nodes.gpu_memory_mib
    fits = (memory_mib == 0) | (memory_mib >= request.gpu_memory_mib)
    return np.where(fits, room.free, 0)
