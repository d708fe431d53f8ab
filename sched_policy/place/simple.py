"""The Go scheduler's `simple` placement: the tightest idle node (Pewpenguin/training-scheduler)."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.columns import Floats, Ints
from sched_policy.model import GpuRequest
from sched_policy.place.base import Indexed, Room, enough_memory
from sched_policy.place.scored import smallest_scores


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

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """Choose idle nodes for a gang, None if it does not fit."""
        available = np.where(room.free == room.nodes.gpus, enough_memory(request, room), 0)
        asked_mib = request.gpu_memory_mib
        memory_mib = np.where(room.nodes.gpu_memory_mib > 0, room.nodes.gpu_memory_mib, asked_mib)

        def score(taken: Ints) -> Floats:
            spare_mib = available * memory_mib - asked_mib * taken
            return self.gpu_weight * (available - taken) + self.memory_weight * spare_mib

        return smallest_scores(request, available, score)
