"""Maximum-weight matching: which pairs to merge.

Vertices that are alike (jobs of the same model and size) are counted, not listed: a matching of thousands of jobs is
then a problem over a few dozen kinds. Many different kinds are first matched in clusters, whose prices tell which few
edges matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import rustworkx
from msgspec import Struct

from sched_policy.snapshot import Bools, Floats, Ints

_SCALE = 1_000_000_000  # rustworkx matches on integers
EXACT_VERTICES = 64  # up to here the blossom algorithm runs on all edges; it takes about two milliseconds
MOST_KINDS = 64  # with more kinds the relaxation gets slow, and they are clustered
_LANDMARKS = 12
_EDGES_PER_VERTEX = 20


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

    Exact up to `EXACT_VERTICES` vertices. Up to `MOST_KINDS` kinds, the linear relaxation is solved, its whole pairs
    are made but for one of each sort, and the vertices that are left are matched exactly; the relaxed optimum bounds
    what that can lose. With more kinds, an exact matching on the promising edges alone.

    Args:
        counts: vertices of each kind, length K.
        weights: shape (K, K), symmetric; the diagonal is the weight of pairs within a kind; entries <= 0 are no edges.

    """
    left = np.asarray(counts, dtype=np.int64)
    pairs = np.zeros(weights.shape, dtype=np.int64)
    sparse = False
    if left.sum() > EXACT_VERTICES:
        sparse = len(left) > MOST_KINDS
        if not sparse:
            pairs += np.maximum(np.floor(relaxed(left, weights).pairs + 1e-6).astype(np.int64) - 1, 0)
            left = left - pairs.sum(axis=0) - pairs.sum(axis=1)
    kind_of = np.repeat(np.arange(len(left)), left)
    edges = weights[np.ix_(kind_of, kind_of)]
    if sparse:
        edges = np.where(_promising(edges), edges, 0.0)
    for first, second in match(edges):
        pairs[kind_of[first], kind_of[second]] += 1
    return pairs


def _promising(weights: Floats) -> Bools:
    """Edges that a maximum matching is likely to use, shape (n, n), symmetric.

    Vertices with similar weights form clusters. The relaxed matching of the clusters prices their vertices; an edge
    is worth its weight less both prices. Kept are every vertex's best edges, and those between clusters that the
    relaxed matching pairs.
    """
    cluster_of = _clusters(weights)
    sizes = np.bincount(cluster_of)
    mean = np.zeros((len(weights), len(sizes)))
    mean[np.arange(len(weights)), cluster_of] = 1.0 / sizes[cluster_of]
    solved = relaxed(sizes, mean.T @ weights @ mean)
    paired = solved.pairs > 1e-9
    price = solved.prices[cluster_of]
    worth = np.where(weights > 0, weights - price[:, None] - price[None, :], -np.inf)
    np.fill_diagonal(worth, -np.inf)
    best = np.argpartition(-worth, _EDGES_PER_VERTEX, axis=1)[:, :_EDGES_PER_VERTEX]
    kept = np.zeros(weights.shape, dtype=np.bool_)
    np.put_along_axis(kept, best, values=True, axis=1)
    return kept | kept.T | (paired | paired.T)[np.ix_(cluster_of, cluster_of)]


def _clusters(weights: Floats) -> Ints:
    """A cluster for each vertex, shape (n,), by median cut over the weights of a few landmarks' edges."""
    count = len(weights)
    features = weights[:, np.linspace(0, count - 1, _LANDMARKS).astype(np.int64)]
    sets: list[Ints] = [np.arange(count)]
    while len(sets) < MOST_KINDS:
        spreads = [np.ptp(features[members], axis=0) for members in sets]
        widest = int(np.argmax([spread.max() for spread in spreads]))
        members, values = sets.pop(widest), features[:, np.argmax(spreads[widest])]
        below = values[members] < np.median(values[members])
        if not below.any():  # half of the values and more are the smallest one
            below = values[members] == values[members].min()
        if below.all():
            sets.append(members)
            break  # no set has two different vertices
        sets += [members[below], members[~below]]
    result = np.empty(count, dtype=np.int64)
    for number, members in enumerate(sets):
        result[members] = number
    return result


class Relaxed(Struct, frozen=True, eq=False):
    """An optimal fractional matching.

    Attributes:
        pairs: how many pairs of kinds a <= b, shape (K, K), zero elsewhere.
        prices: what one more vertex of a kind would add to the weight, shape (K,).

    """

    pairs: Floats
    prices: Floats


def relaxed(counts: Ints, weights: Floats) -> Relaxed:
    """Maximise the weight of pairs with each kind used at most `counts` times, fractions allowed (HiGHS)."""
    from scipy.optimize import linprog  # scipy loads in half a second, which small problems need not pay
    from scipy.sparse import coo_array

    first, second = np.nonzero(np.triu(weights) > 0)
    pairs = np.zeros(weights.shape)
    if not len(first):
        return Relaxed(pairs, np.zeros(len(counts)))
    edge = np.arange(len(first))
    uses = coo_array(
        (np.ones(2 * len(edge)), (np.concatenate([first, second]), np.concatenate([edge, edge]))),
        shape=(len(counts), len(edge)),
    ).tocsr()  # entries of a pair within a kind add up to 2
    solved = linprog(-weights[first, second], A_ub=uses, b_ub=counts, bounds=(0, None), method="highs-ds")
    if not solved.success:
        raise RuntimeError(f"the relaxed matching has a solution, but the solver says: {solved.message}")
    pairs[first, second] = solved.x
    return Relaxed(pairs, -np.asarray(solved.ineqlin.marginals))
