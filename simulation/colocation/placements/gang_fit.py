"""Which GPU of a node takes which memory entry of a training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sched_policy.columns import Ints
from simulation.colocation.placements.gpu_loads import GpuLoads


def fit_entries(entries_mib: Sequence[int], gpus: Ints, loads: GpuLoads) -> Ints:
    """Gives these GPUs as many entries of a training on their node as fit there, the same training for each node.

    The GPUs of a node, the one with the least free memory first, each take the largest entry that is left and fits. As
    whatever fits a GPU also fits one with more room, no other assignment gives away more entries. Equal room: the GPU
    with the larger sum of requests first, then the lower index.

    Args:
        entries_mib: what each GPU of the training needs, largest first.
        gpus: indices of the GPUs that may be used, ascending.
        loads: the books of the cluster.

    Returns:
        The index of the entry that each of `gpus` takes, -1 for none; same shape.

    """
    needs_mib = np.array(entries_mib, dtype=np.int64)
    free_mib = (loads.capacity_mib - loads.memory_mib)[gpus]
    order = np.lexsort((-loads.request_ppb[gpus], free_mib, loads.node[gpus]))
    node = loads.node[gpus[order]]
    turn = np.arange(order.size) - np.searchsorted(node, node)  # 0 for the first GPU of each node, 1 for the second...
    left = np.ones((len(loads.nodes), needs_mib.size), dtype=np.bool_)
    taken = np.full(gpus.size, -1, dtype=np.int64)
    for place in range(int(turn.max(initial=-1)) + 1):
        now = order[turn == place]
        fits = left[loads.node[gpus[now]]] & (needs_mib <= free_mib[now, None])
        now, entry = now[fits.any(axis=1)], fits.argmax(axis=1)[fits.any(axis=1)]
        left[loads.node[gpus[now]], entry] = False
        taken[now] = entry
    return taken
