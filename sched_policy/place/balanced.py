"""The Go scheduler's `balanced` placement: the least busy node (Pewpenguin/training-scheduler)."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.columns import Floats, Ints
from sched_policy.model import GpuRequest
from sched_policy.place.base import Indexed, Room, enough_memory
from sched_policy.place.scored import smallest_scores


class Balanced(Struct, frozen=True):
    """Spread tasks over the nodes: few tasks and many free GPUs, both per GPU of the node.

        score = tasks / GPUs of the node - available / GPUs of the node        smallest wins,

    where `available` counts free GPUs with the memory asked for.

    Where we deviate: ties go to the lower node index (the original: random); tasks are counted as of now, also when a
    later time is planned. Requests over several nodes: see `smallest_scores`.
    """

    def place(self, request: GpuRequest, room: Room) -> Indexed | None:
        """Choose nodes for a gang, None if it does not fit."""
        available = enough_memory(request, room)
        scores = (room.tasks - available) / np.maximum(room.nodes.gpus, 1)

        def score(_taken: Ints) -> Floats:
            return scores

        return smallest_scores(request, available, score)
