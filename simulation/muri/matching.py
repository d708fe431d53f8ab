"""Muri's grouping of thousands of jobs, and its policies `muri-s` and `muri-l` (SIGCOMM 2022).

The grouping is that of the paper and its simulator: candidates in order of priority, multi-round matching
(`sched_policy.group.rounds`). A matching of thousands of jobs is a problem over a few dozen kinds; many different kinds
are first matched in clusters, whose prices tell which few edges matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from sched_policy.catalog import PolicyOptions
from sched_policy.group.gpus import GpuMap
from sched_policy.group.interleave import MAX_MEMBERS, SLOTS, Ordering, iteration_times_s, stage_table
from sched_policy.group.muri import Candidates, Interleave, Rows, Shape, shape_of, together
from sched_policy.group.rounds import Group, Kind, Rounds, match
from sched_policy.order import Srsf
from sched_policy.place import Room
from sched_policy.policies import GROUPED, SHORTEST_FIRST
from sched_policy.policy import Policy
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot
from simulation.baselines import LeastAttainedService

MOST_AT_ONCE = 1000
EXACT_VERTICES = 64  # up to here the blossom algorithm runs on all edges; it takes about two milliseconds
MOST_KINDS = 64  # with more kinds the relaxation gets slow, and they are clustered
_LANDMARKS = 12
_EDGES_PER_VERTEX = 20


def muri_s(options: PolicyOptions) -> Policy:
    """Muri with known durations."""
    summary = "interleaving groups of up to 4 jobs (Muri), shortest remaining service first"
    sharing = Interleave(ByEfficiency(), options.quantum_s)
    return Policy("muri-s", summary, Srsf(), sharing=sharing, needs=(SHORTEST_FIRST, GROUPED))


def muri_l(options: PolicyOptions) -> Policy:
    """Muri without durations."""
    # In queues, as Tiresias: by continuous attained service jobs would change places, and restart, at every quantum.
    summary = "interleaving groups of up to 4 jobs (Muri), least attained service in few queues first"
    return Policy(
        "muri-l",
        summary,
        LeastAttainedService(options.las_limits_gpu_s, options.starvation),
        sharing=Interleave(ByEfficiency(), options.quantum_s),
        needs=(GROUPED,),
    )


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


class Grouper(Rounds):
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
                    merged = self.merged(bucket.kinds, result[number], -(-surplus // bucket.gpus))
                    surplus -= (len(result[number]) - len(merged)) * bucket.gpus
                    result[number] = merged
            if surplus == before:
                break
        return result

    def matched(self, counted: tuple[tuple[Kind, int], ...]) -> dict[tuple[Kind, Kind], int]:
        """How many pairs of each two of these kinds to make, given how many groups there are of each."""
        if counted not in self._matchings:
            self._matchings[counted] = self.newly_matched(counted)
        return self._matchings[counted]

    def newly_matched(self, counted: tuple[tuple[Kind, int], ...]) -> dict[tuple[Kind, Kind], int]:
        """The same for kinds that have not been matched before."""
        return super().matched(counted)

    def efficiency(self, kind: Kind) -> float:
        """That of a group of these kinds."""
        if kind not in self._gamma:
            self._gamma[kind] = super().efficiency(kind)
        return self._gamma[kind]


class ByEfficiency(Struct, frozen=True):
    """Groups of up to `MAX_MEMBERS` jobs, as large as it takes for the candidates to fit the cluster."""

    def joinable(self, snapshot: Snapshot, settled: set[int], held: GpuMap) -> set[int]:  # noqa: ARG002
        """Nobody: a matching takes all."""
        return set()

    def groups(self, of: Candidates) -> list[Rows]:
        """Groups of candidates as positions in the snapshot. Candidates that run together stay together."""
        snapshot = of.snapshot
        grouper = ManyJobs()
        known: list[tuple[list[int], Bucket]] = []
        alone: list[Rows] = []
        capacity = int(of.room.sum())
        for (request, _partition, shares), members in _slots(of).items():
            if not shares:
                alone.extend((row,) for row in members)
                capacity -= request.total * len(members)
                continue
            kinds = tuple(grouper.kind(profile) for row in members if (profile := snapshot.jobs[row].profile))
            running = together(range(len(members)), [*map(of.held.gpus, members)].__getitem__)
            known.append((members, Bucket(request.total, kinds, running)))
        merged = grouper.groups([bucket for _, bucket in known], capacity)
        for (members, _), groups in zip(known, merged, strict=True):
            alone.extend(tuple(members[position] for position in group) for group in groups)
        return alone


def _slots(of: Candidates) -> dict[Shape, list[int]]:
    """The jobs that get GPUs: each slot that fits admits the next `MAX_MEMBERS` jobs of its shape, or one alone."""
    snapshot = of.snapshot
    shapes: dict[Shape, list[int]] = {}
    for row in of.movable:
        shapes.setdefault(shape_of(snapshot, row), []).append(row)
    members = {shape: MAX_MEMBERS if shape[2] else 1 for shape in shapes}
    room = of.room.copy()
    no_tasks = np.zeros_like(room)
    slots: dict[Shape, int] = dict.fromkeys(shapes, 0)
    rank_in_shape = dict.fromkeys(shapes, 0)
    full: set[Shape] = set()
    for row in of.movable:
        shape = shape_of(snapshot, row)
        rank_in_shape[shape] += 1
        if shape in full or rank_in_shape[shape] <= members[shape] * slots[shape]:
            continue  # no room, or admitted with an earlier slot
        usable = np.where(snapshot.nodes.usable(shape[1]), room, 0)
        placed = of.place.place(shape[0], Room(usable, no_tasks, snapshot.nodes))
        if placed is None:
            full.add(shape)
            continue
        slots[shape] += 1
        for node, gpus in placed:
            room[node] -= gpus
    return {shape: rows[: members[shape] * slots[shape]] for shape, rows in shapes.items() if slots[shape]}


class ManyJobs(Grouper):
    """Matches thousands of jobs nearly as well as the exact matching."""

    def newly_matched(self, counted: tuple[tuple[Kind, int], ...]) -> dict[tuple[Kind, Kind], int]:
        """How many pairs of each two of these kinds to make, given how many groups there are of each.

        More than `MOST_AT_ONCE` kinds are matched in parts, in order of their numbers: memory grows with the square.
        """
        found: dict[tuple[Kind, Kind], int] = {}
        for start in range(0, len(counted), MOST_AT_ONCE):
            part = counted[start : start + MOST_AT_ONCE]
            present = [kind for kind, _ in part]
            pairs = match_kinds([count for _, count in part], self.weights(present))
            found |= {(present[a], present[b]): int(pairs[a, b]) for a, b in np.argwhere(pairs > 0).tolist()}
        return found

    def weights(self, kinds: Sequence[Kind]) -> Floats:
        """The same by arrays where there are many kinds, for groups of each two sizes together."""
        if len(kinds) <= MOST_KINDS:
            return super().weights(kinds)
        weights = np.zeros((len(kinds), len(kinds)))
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
        return weights


def efficiencies(groups: Floats, ordering: Ordering = Ordering.BEST) -> Floats:
    """`efficiency` of many groups at once, shape (M,); `groups` as for `iteration_times_s`."""
    return np.asarray(groups[:, :, 1:].sum(axis=(1, 2)) / (SLOTS * iteration_times_s(groups, ordering)))


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
