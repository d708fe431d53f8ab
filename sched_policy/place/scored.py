"""What `simple` and `balanced` share: nodes with the smallest score win, ties go to the lower node index."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sched_policy.columns import Floats, Ints
from sched_policy.model import GpuRequest
from sched_policy.place.base import Indexed

NodeScore = Callable[[Ints], Floats]
"""Scores of all nodes, given how many GPUs the task would take on each; both of shape (N,)."""


def smallest_scores(request: GpuRequest, available: Ints, score: NodeScore) -> Indexed | None:
    """The nodes with the smallest scores that together hold the request, None if there are not enough of them.

    The Go scheduler knows one node per task; what goes beyond that is ours:

    * `per_node` GPUs on each of k nodes: the k nodes with the smallest scores for one share.
    * any GPUs: one node that has them all, if there is one and the request allows one node; otherwise nodes are filled
      in order of the score they have when all their available GPUs are taken.

    A request for no GPUs fits nowhere. `available` is 0 where the task may not go.
    """
    if request.total <= 0:
        return None
    if request.per_node is not None:
        best = _in_order(available >= request.per_node, score(np.full_like(available, request.per_node)))
        if best.size < request.nodes:
            return None
        return tuple((node, request.per_node) for node in best[: request.nodes].tolist())
    if request.nodes <= 1:
        best = _in_order(available >= request.total, score(np.full_like(available, request.total)))
        if best.size:
            return ((int(best[0]), request.total),)
    return _filled(request, available, _in_order(available > 0, score(available)))


def _in_order(eligible: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], scores: Floats) -> Ints:
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
