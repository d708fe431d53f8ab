"""Placement: which GPUs a job gets."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec import Struct

from sched_policy.model import GpuRequest
from sched_policy.snapshot import Ints, Nodes

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


class Consolidate(Struct, frozen=True):
    """Keep jobs together and large holes whole, like Slurm's own best fit and Muri's `yarn` scheme."""

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """Choose nodes for a gang request, None if it does not fit. A request for no GPUs fits nowhere."""
        if request.total <= 0:
            return None
        free = enough_memory(request, room)
        if request.per_node is not None:
            return _fixed_share(request.per_node, request.nodes, free)
        return _any_share(request.total, request.nodes, free)


def _fixed_share(per_node: int, nodes: int, free: Ints) -> Indexed | None:
    fitting = np.flatnonzero(free >= per_node)
    if fitting.size < nodes:
        return None
    fullest = fitting[np.argsort(free[fitting], kind="stable")][:nodes]
    return tuple((int(node), per_node) for node in fullest)


def _any_share(total: int, nodes: int, free: Ints) -> Indexed | None:
    usable = np.flatnonzero(free > 0)
    if usable.size < nodes or int(free[usable].sum()) < total or total < nodes:
        return None
    if nodes == 1:
        whole = np.flatnonzero(free >= total)
        if whole.size:
            return ((int(whole[np.argmin(free[whole])]), total),)
    taken: list[tuple[int, int]] = []
    left = total
    for node in usable[np.argsort(-free[usable], kind="stable")]:
        still_needed = max(0, nodes - len(taken) - 1)
        gpus = min(int(free[node]), left - still_needed)
        taken.append((int(node), gpus))
        left -= gpus
        if left == 0:
            return tuple(taken)
    return None
