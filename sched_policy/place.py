"""Placement: which GPUs a job gets.

`Simple` and `Balanced` are the Go scheduler's (Pewpenguin/training-scheduler): the node with the smallest score wins,
ties go to the lower index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
from msgspec import Struct

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

    The Go scheduler knows one node per task; what goes beyond that is ours:

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


class Balanced(Struct, frozen=True):
    """Spread tasks over the nodes: few tasks and many free GPUs, both per GPU of the node.

        score = tasks / GPUs of the node - available / GPUs of the node        smallest wins,

    where `available` counts free GPUs with the memory asked for.

    Where we deviate: ties go to the lower node index (the original: random); tasks are counted as of now, also when a
    later time is planned. Requests over several nodes: see `smallest_scores`.
    """

    binds: ClassVar[bool] = True

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """Choose nodes for a gang, None if it does not fit."""
        available = enough_memory(request, room)
        scores = (room.tasks - available) / np.maximum(room.nodes.gpus, 1)

        def score(_taken: Ints | int) -> Floats:
            return scores

        return smallest_scores(request, available, score)


class Simple(Struct, frozen=True):
    """One task per node: only wholly idle nodes, the one with the least to spare.

    A task asks for n GPUs of at least m MiB. With `available` GPUs of that memory on a node,

        score = 0.7 (available - n) + 0.3 (sum of the memory of all available GPUs - m n)        smallest wins.

    The formula is kept as it is, although memory counts in MiB (the original: MB) and therefore swamps the GPU term: in
    effect the node with the least total memory wins, and GPUs decide only between nodes of equal memory.

    Where we deviate: ties go to the lower node index (the original: random); a node is idle if all its GPUs are free,
    so that the rule also answers for a later time; a node of unknown memory is taken to have what is asked; GPUs of one
    node all have the same memory. Requests over several nodes: see `smallest_scores`.
    """

    gpu_weight: float = 0.7
    memory_weight: float = 0.3
    binds: ClassVar[bool] = True

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """Choose idle nodes for a gang, None if it does not fit."""
        available = np.where(room.free == room.nodes.gpus, enough_memory(request, room), 0)
        asked_mib = request.gpu_memory_mib
        memory_mib = np.where(room.nodes.gpu_memory_mib > 0, room.nodes.gpu_memory_mib, asked_mib)

        def score(taken: Ints | int) -> Floats:
            spare_mib = available * memory_mib - asked_mib * taken
            return self.gpu_weight * (available - taken) + self.memory_weight * spare_mib

        return smallest_scores(request, available, score)
