"""Muri's multi-round grouping: pairs, then pairs of pairs, until the groups fit the cluster (SIGCOMM 2022, 4.2).

Which pairs to merge is a maximum-weight matching. Vertices that are alike (jobs of the same model and size) are
counted, not listed: a matching of thousands of jobs is then a problem over a few dozen kinds. Many different kinds are
first matched in clusters, whose prices tell which few edges matter.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import rustworkx
from msgspec import Struct

from sched_policy.group.interleave import (
    MAX_MEMBERS,
    Ordering,
    efficiencies,
    efficiency,
    iteration_s,
    stage_table,
)
from sched_policy.model import StageProfile
from sched_policy.snapshot import Bools, Floats, Ints

MOST_AT_ONCE = 1000
Kind = tuple[int, ...]  # the kinds of a group's members, ascending; equal groups interleave equally well
Group = tuple[int, ...]  # positions of the members in their bucket


class Bucket(Struct, frozen=True):
    """Jobs that want the same number of GPUs, in order of priority; `kinds` index the profiles of a `Grouper`.

    `together` are groups that exist already and are merged as a whole, every job in one; None: all are alone.
    """

    gpus: int
    kinds: tuple[int, ...]
    together: tuple[Group, ...] | None = None

    @property
    def groups(self) -> list[Group]:
        """The groups to begin with."""
        return [(place,) for place in range(len(self.kinds))] if self.together is None else list(self.together)


class Paces:
    """Numbers for profiles, and how fast groups of them are. Make one for a replay or for a plan: it only grows.

    Attributes:
        max_members: jobs per group at most.

    """

    def __init__(self, max_members: int = MAX_MEMBERS, ordering: Ordering = Ordering.BEST) -> None:
        if not 1 <= max_members <= MAX_MEMBERS:
            raise ValueError(f"groups have 1 to {MAX_MEMBERS} members, not {max_members}")
        self.max_members = max_members
        self._ordering = ordering
        self._profiles: list[StageProfile] = []
        self._kind_of: dict[StageProfile, int] = {}
        self._pace_s: dict[Kind, float] = {}

    def kind(self, profile: StageProfile) -> int:
        """The number of this profile, under which jobs refer to it."""
        if profile not in self._kind_of:
            self._kind_of[profile] = len(self._profiles)
            self._profiles.append(profile)
        return self._kind_of[profile]

    def iteration_s(self, kinds: Iterable[int]) -> float:
        """Seconds in which each member of a group finishes one iteration."""
        members = tuple(sorted(kinds))
        if members not in self._pace_s:
            self._pace_s[members] = iteration_s([self._profiles[member] for member in members], self._ordering)
        return self._pace_s[members]


class Grouper(Paces):
    """Groups jobs of the same number of GPUs so that together they need no more GPUs than there are.

    It remembers efficiencies and matchings, so the same question is answered once. Make one for a replay or for a plan:
    it only grows.
    """

    def __init__(self, max_members: int = MAX_MEMBERS, ordering: Ordering = Ordering.BEST) -> None:
        super().__init__(max_members, ordering)
        self._gamma: dict[Kind, float] = {}
        self._matchings: dict[tuple[tuple[Kind, int], ...], dict[tuple[Kind, Kind], int]] = {}

    def groups(self, buckets: Sequence[Bucket], capacity_gpus: int) -> list[list[Group]]:
        """The groups of each bucket, in the order of the buckets.

        In each round the best pairs of groups are found in every bucket, and merged, bucket by bucket, as long as
        the groups together want more than `capacity_gpus`. After as many rounds as a group may have members, the
        groups can still want more: then some have to wait.
        """
        result: list[list[Group]] = [bucket.groups for bucket in buckets]
        surplus = sum(bucket.gpus * len(groups) for bucket, groups in zip(buckets, result, strict=True)) - capacity_gpus
        for _ in range(self.max_members):
            if surplus <= 0:
                break
            before = surplus
            for number, bucket in enumerate(buckets):
                if surplus > 0:
                    merges = -(-surplus // bucket.gpus)
                    result[number], merged = self._round(bucket, result[number], merges)
                    surplus -= merged * bucket.gpus
            if surplus == before:
                break
        return result

    def _round(self, bucket: Bucket, groups: list[Group], most: int) -> tuple[list[Group], int]:
        """Merge up to `most` matched pairs, those of high priority first; the new groups and how many were merged.

        A pair's place in the list is that of its later half, as in the original.
        """
        kinds = [tuple(sorted([bucket.kinds[place] for place in group])) for group in groups]
        partner = _assign(kinds, self._matching(kinds))
        earlier = set(partner.values())
        merged = 0
        result: list[Group] = []
        for place, group in enumerate(groups):
            if place in partner:
                first = groups[partner[place]]
                result.extend([first + group] if merged < most else [first, group])
                merged += merged < most
            elif place not in earlier:
                result.append(group)
        return result, merged

    def _matching(self, kinds: Sequence[Kind]) -> dict[tuple[Kind, Kind], int]:
        """How many pairs of each two kinds a maximum-weight matching has.

        More than `MOST_AT_ONCE` kinds are matched in parts, in order of their numbers: memory grows with the square.
        """
        counted = tuple(sorted(Counter(kinds).items()))
        if counted not in self._matchings:
            self._matchings[counted] = {
                pair: count
                for start in range(0, len(counted), MOST_AT_ONCE)
                for pair, count in self._matched(counted[start : start + MOST_AT_ONCE])
            }
        return self._matchings[counted]

    def _matched(self, counted: Sequence[tuple[Kind, int]]) -> Iterable[tuple[tuple[Kind, Kind], int]]:
        present = [kind for kind, _ in counted]
        pairs = match_kinds([count for _, count in counted], self._weights(present))
        return (((present[a], present[b]), int(pairs[a, b])) for a, b in np.argwhere(pairs > 0).tolist())

    def _weights(self, kinds: Sequence[Kind]) -> Floats:
        """Interleaving efficiency of each two groups merged; 0 where they would be too many."""
        weights = np.zeros((len(kinds), len(kinds)))
        if len(kinds) > MOST_KINDS:
            self._fill_at_once(weights, kinds)
            return weights
        for a, first in enumerate(kinds):
            for b in range(a, len(kinds)):
                members = tuple(sorted(first + kinds[b]))
                if len(members) <= self.max_members:
                    weights[a, b] = weights[b, a] = self._efficiency(members)
        return weights

    def _fill_at_once(self, weights: Floats, kinds: Sequence[Kind]) -> None:
        """The same by arrays, for groups of each two sizes together."""
        known = stage_table(self._profiles)
        of_size = {size: [a for a, kind in enumerate(kinds) if len(kind) == size] for size in range(1, MAX_MEMBERS)}
        for size, rows in of_size.items():
            for other, columns in of_size.items():
                if rows and columns and size <= other and size + other <= self.max_members:
                    first = known[[kinds[a] for a in rows]].repeat(len(columns), axis=0)
                    second = np.tile(known[[kinds[b] for b in columns]], (len(rows), 1, 1))
                    block = efficiencies(np.concatenate([first, second], axis=1), self._ordering)
                    weights[np.ix_(rows, columns)] = block.reshape(len(rows), len(columns))
                    weights[np.ix_(columns, rows)] = weights[np.ix_(rows, columns)].T

    def _efficiency(self, kind: Kind) -> float:
        if kind not in self._gamma:
            self._gamma[kind] = efficiency([self._profiles[member] for member in kind], self._ordering)
        return self._gamma[kind]


def _assign(kinds: Sequence[Kind], pairs: Mapping[tuple[Kind, Kind], int]) -> dict[int, int]:
    """Which group is paired with which earlier one: each with the earliest that still waits for its kind.

    Every counted pair is made: were one left over, both its kinds would have a group waiting, and the later of the
    two would have found the earlier.
    """
    left = dict(pairs)
    wanted: dict[Kind, list[tuple[Kind, tuple[Kind, Kind]]]] = {}
    for sort in pairs:
        wanted.setdefault(sort[0], []).append((sort[1], sort))
        if sort[0] != sort[1]:
            wanted.setdefault(sort[1], []).append((sort[0], sort))
    waiting: dict[Kind, deque[int]] = {}
    partner: dict[int, int] = {}
    for place, kind in enumerate(kinds):
        found = [
            (waiting[other][0], other, sort)
            for other, sort in wanted.get(kind, ())
            if left[sort] and waiting.get(other)
        ]
        if found:
            partner[place], other, sort = min(found)
            waiting[other].popleft()
            left[sort] -= 1
        else:
            waiting.setdefault(kind, deque()).append(place)
    return partner


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
