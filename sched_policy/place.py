"""Placement: which GPUs a job gets. Nodes with the smallest score win, ties go to the lower index."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.model import GpuRequest
from sched_policy.snapshot import Bools, Floats, Ints, Nodes

Indexed = tuple[tuple[int, int], ...]
"""A placement as ((node index, GPUs), ...)."""


class Room(Struct, frozen=True, eq=False):
    """Where a job may go: free GPUs per node (0 where it may not) and jobs on each node now, both of shape (N,)."""

    free: Ints
    tasks: Ints
    nodes: Nodes


class Place(Protocol):
    """Chooses nodes for gangs.

    `binds` is whether a job has to go where this says; elsewhere the resource manager's own choice is as good.
    """

    @property
    def binds(self) -> bool:
        """Whether the nodes are part of the decision."""
        ...

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


def place_near(place: Place, request: GpuRequest, room: Room) -> Indexed | None:
    """Where `place` puts a request; over several nodes, those that are near each other in the network.

    As Slurm's topology/tree and topology/block: below the lowest switch with enough room, of several the one with the
    least, and there on as few leaf switches as possible. Nodes without a common switch hold no gang.
    """
    anywhere = place.place(request, room)
    if anywhere is None or len(anywhere) == 1 or not room.nodes.switches:
        return anywhere
    leaves = room.nodes.switches[0][1]
    gpus = np.where(leaves > 0, enough_memory(request, room), 0)
    if request.per_node is not None:
        gpus = np.where(gpus >= request.per_node, request.per_node, 0)
    for holds, switches in room.nodes.switches:
        room_below, nodes_below = np.bincount(switches, gpus), np.bincount(switches, gpus > 0)
        for switch in np.argsort(room_below, kind="stable").tolist():
            if room_below[switch] >= request.total and nodes_below[switch] >= request.nodes:
                few = _fewest(request, np.where(switches == switch, gpus, 0), leaves)
                near = place.place(request, replace(room, free=np.where(np.isin(leaves, few), room.free, 0)))
                if near is not None and few.size <= (request.most_switches or few.size):
                    return near
        if request.nodes <= holds:
            return None
    return None


def _fewest(request: GpuRequest, gpus: Ints, leaves: Ints) -> Ints:
    """As few leaf switches as hold a request: those with the most room, as the last one that with the least."""
    room, nodes = np.bincount(leaves, gpus), np.bincount(leaves, gpus > 0)
    most_first = np.argsort(-room, kind="stable")
    enough = (room[most_first].cumsum() >= request.total) & (nodes[most_first].cumsum() >= request.nodes)
    full = most_first[: int(np.argmax(enough))]
    is_enough = (room >= request.total - room[full].sum()) & (nodes >= request.nodes - nodes[full].sum())
    return np.append(full, most_first[is_enough[most_first]][-1])


class Consolidate(Struct, frozen=True):
    """Keep jobs together and large holes whole, like Slurm's own best fit and Muri's `yarn` scheme."""

    binds: ClassVar[bool] = False

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """The fullest nodes that hold the gang or its shares; over several nodes the emptiest, hence few."""
        free = enough_memory(request, room)
        return smallest_scores(request, free, lambda _taken: free, -free)


NodeScore = Callable[[Ints | int], Floats | Ints]
"""Scores of all nodes, shape (N,), given how many GPUs the task would take on each: as many numbers, or one for all."""


def smallest_scores(
    request: GpuRequest, available: Ints, score: NodeScore, filling: Ints | None = None
) -> Indexed | None:
    """The nodes with the smallest scores that together hold the request, None if there are not enough of them.

    * `per_node` GPUs on each of k nodes: the k nodes with the smallest scores for one share.
    * any GPUs: one node that has them all, if there is one and the request allows one node; otherwise nodes are filled
      in order of `filling`; without it of the score they have when all their available GPUs are taken.

    A request for no GPUs fits nowhere. `available` is 0 where the task may not go.
    """
    if request.total <= 0:
        return None
    if request.per_node is not None:
        enough = available >= request.per_node
        if np.count_nonzero(enough) < request.nodes:
            return None
        best = _in_order(enough, score(request.per_node))
        return tuple((node, request.per_node) for node in best[: request.nodes].tolist())
    if request.nodes <= 1:
        whole = np.flatnonzero(available >= request.total)
        if whole.size:
            scores = score(request.total)[whole]
            return ((int(whole[np.argmin(scores)]), request.total),)
    return _filled(request, available, _in_order(available > 0, score(available) if filling is None else filling))


def _in_order(eligible: Bools, scores: Floats | Ints) -> Ints:
    nodes = np.flatnonzero(eligible)
    return nodes[np.argsort(scores[nodes], kind="stable")]


def _filled(request: GpuRequest, available: Ints, order: Ints) -> Indexed | None:
    if order.size < request.nodes or not request.nodes <= request.total <= int(available[order].sum()):
        return None
    taken: list[tuple[int, int]] = []
    left = request.total
    for node in order.tolist():
        still_needed = max(0, request.nodes - len(taken) - 1)
        gpus = min(int(available[node]), left - still_needed)
        taken.append((node, gpus))
        left -= gpus
        if left == 0:
            break
    return tuple(taken)
