"""Maximum-weight matching: which pairs to merge.

Vertices that are alike (jobs of the same model and size) are counted, not listed: a matching of thousands of jobs is
then a problem over a few dozen kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import rustworkx
from scipy.optimize import linprog
from scipy.sparse import coo_array

from sched_policy.columns import Floats, Ints

_SCALE = 1_000_000_000  # rustworkx matches on integers
EXACT_VERTICES = 48  # up to here the blossom algorithm runs on all vertices; it takes about a millisecond


def match(weights: Floats) -> list[tuple[int, int]]:
    """Exact maximum-weight matching of n vertices (Edmonds' blossom algorithm), pairs (i, j) with i < j, sorted.

    Args:
        weights: shape (n, n), symmetric; entries <= 0 are no edges, the diagonal is ignored.

    """
    rows, columns = np.nonzero(np.triu(weights, 1) > 0)
    scaled = (weights[rows, columns] * _SCALE).astype(np.int64)
    graph = rustworkx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(len(weights)))
    graph.add_edges_from(list(zip(rows.tolist(), columns.tolist(), scaled.tolist(), strict=True)))
    pairs = rustworkx.max_weight_matching(graph, weight_fn=int)
    return sorted((min(pair), max(pair)) for pair in pairs)


def match_kinds(counts: Sequence[int], weights: Floats) -> Ints:
    """How many pairs of each two kinds to make: shape (K, K), entries (a, b) with a <= b, zero elsewhere.

    Exact up to `EXACT_VERTICES` vertices. Above, the linear relaxation is solved, its whole pairs are made but for
    one of each sort, and the vertices that are left are matched exactly. `upper_bound` says how far that can be from
    the maximum.

    Args:
        counts: vertices of each kind, length K.
        weights: shape (K, K), symmetric; the diagonal is the weight of pairs within a kind; entries <= 0 are no edges.

    """
    left = np.asarray(counts, dtype=np.int64)
    pairs = np.zeros(weights.shape, dtype=np.int64)
    if left.sum() > EXACT_VERTICES:
        pairs += np.maximum(np.floor(_relaxed(left, weights) + 1e-6).astype(np.int64) - 1, 0)
        left = left - pairs.sum(axis=0) - pairs.sum(axis=1)
    kind_of = np.repeat(np.arange(len(left)), left)
    for first, second in match(weights[np.ix_(kind_of, kind_of)]):
        pairs[kind_of[first], kind_of[second]] += 1
    return pairs


def upper_bound(counts: Sequence[int], weights: Floats) -> float:
    """No matching weighs more than this (the linear relaxation without odd-set constraints)."""
    pairs = _relaxed(np.asarray(counts, dtype=np.int64), weights)
    return float((pairs * weights).sum())


def _relaxed(counts: Ints, weights: Floats) -> Floats:
    """Fractional pairs of kinds, shape (K, K), upper triangle: each kind is used at most `counts` times."""
    first, second = np.nonzero(np.triu(weights) > 0)
    pairs = np.zeros(weights.shape)
    if not len(first):
        return pairs
    edge = np.arange(len(first))
    uses = coo_array(
        (np.ones(2 * len(edge)), (np.concatenate([first, second]), np.concatenate([edge, edge]))),
        shape=(len(counts), len(edge)),
    ).tocsr()  # entries of a pair within a kind add up to 2
    solved = linprog(-weights[first, second], A_ub=uses, b_ub=counts, bounds=(0, None), method="highs-ds")
    if not solved.success:
        raise RuntimeError(f"the relaxed matching has a solution, but the solver says: {solved.message}")
    pairs[first, second] = solved.x
    return pairs
