"""Muri's multi-round grouping: pairs, then pairs of pairs, until the groups fit the cluster (SIGCOMM 2022, 4.2).

Which pairs to merge is a maximum-weight matching, here an exact one; `simulation.muri.matching` has one for thousands
of jobs. Vertices that are alike (jobs of the same model and size) are counted, not listed.
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
    efficiency,
    iteration_s,
)
from sched_policy.model import StageProfile
from sched_policy.snapshot import Floats

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
        """How many pairs of each two kinds a maximum-weight matching has."""
        counted = tuple(sorted(Counter(kinds).items()))
        if counted not in self._matchings:
            self._matchings[counted] = self.matched(counted)
        return self._matchings[counted]

    def matched(self, counted: Sequence[tuple[Kind, int]]) -> dict[tuple[Kind, Kind], int]:
        """How many pairs of each two of these kinds to make, given how many groups there are of each."""
        present = [kind for kind, _ in counted]
        kind_of = np.repeat(np.arange(len(present)), [count for _, count in counted])
        pairs = match(self.weights(present)[np.ix_(kind_of, kind_of)])
        counts = Counter((present[kind_of[first]], present[kind_of[second]]) for first, second in pairs)
        return dict(sorted(counts.items()))

    def weights(self, kinds: Sequence[Kind]) -> Floats:
        """Interleaving efficiency of each two groups merged; 0 where they would be too many."""
        weights = np.zeros((len(kinds), len(kinds)))
        for a, first in enumerate(kinds):
            for b in range(a, len(kinds)):
                members = tuple(sorted(first + kinds[b]))
                if len(members) <= self.max_members:
                    weights[a, b] = weights[b, a] = self._efficiency(members)
        return weights

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
