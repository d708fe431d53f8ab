"""Muri's multi-round grouping: pairs, then pairs of pairs (SIGCOMM 2022, 4.2).

Which pairs to merge is a maximum-weight matching, here an exact one of a few jobs; `simulation.muri.matching` has one
for thousands of several sizes. Vertices that are alike (jobs of the same model and size) are counted, not listed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import rustworkx

from sched_policy.group.interleave import MAX_MEMBERS, Ordering, efficiency, iteration_s
from sched_policy.model import StageProfile
from sched_policy.snapshot import Floats

Kind = tuple[int, ...]  # the kinds of a group's members, ascending; equal groups interleave equally well
Group = tuple[int, ...]  # positions of the members in their bucket


class GroupTimes:
    """Numbers the profiles of jobs (their kinds), and caches iteration times of groups. It only grows.

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
        self._iteration_s: dict[Kind, float] = {}

    def kind(self, profile: StageProfile) -> int:
        """The kind of jobs with this profile: its number, from 0."""
        if profile not in self._kind_of:
            self._kind_of[profile] = len(self._profiles)
            self._profiles.append(profile)
        return self._kind_of[profile]

    def iteration_s(self, kinds: Iterable[int]) -> float:
        """Seconds in which each member of a group finishes one iteration."""
        members = tuple(sorted(kinds))
        if members not in self._iteration_s:
            self._iteration_s[members] = iteration_s([self._profiles[member] for member in members], self._ordering)
        return self._iteration_s[members]


class Rounds(GroupTimes):
    """Merges groups of jobs that ask for the same number of GPUs."""

    def fewest(self, kinds: Sequence[int]) -> list[Group]:
        """Jobs of these kinds, in order of priority, in as few groups as rounds of matching give."""
        groups: list[Group] = [(position,) for position in range(len(kinds))]
        for _ in range(self.max_members):
            surplus = len(groups) - -(-len(kinds) // self.max_members)
            merged = self.merged(kinds, groups, surplus)
            if len(merged) == len(groups):
                break
            groups = merged
        return groups

    def merged(self, kinds: Sequence[int], groups: Sequence[Group], most: int) -> list[Group]:
        """The groups after merging up to `most` matched pairs, those of high priority first.

        A pair's position in the list is that of its later group, as in the original.
        """
        kinds_of = [tuple(sorted([kinds[position] for position in group])) for group in groups]
        partner = _assign(kinds_of, self.matched(tuple(sorted(Counter(kinds_of).items()))))
        earlier = set(partner.values())
        left = most
        result: list[Group] = []
        for position, group in enumerate(groups):
            if position in partner:
                first = groups[partner[position]]
                result.extend([first + group] if left > 0 else [first, group])
                left -= 1
            elif position not in earlier:
                result.append(group)
        return result

    def matched(self, counted: tuple[tuple[Kind, int], ...]) -> dict[tuple[Kind, Kind], int]:
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
                    weights[a, b] = weights[b, a] = self.efficiency(members)
        return weights

    def efficiency(self, kind: Kind) -> float:
        """Interleaving efficiency of a group of these kinds (`interleave.efficiency`)."""
        return efficiency([self._profiles[member] for member in kind], self._ordering)


def _assign(kinds: Sequence[Kind], pairs: Mapping[tuple[Kind, Kind], int]) -> dict[int, int]:
    """Which group is paired with which earlier one: each with the earliest unpaired group of a matched kind.

    Every counted pair is made: were one left over, both its kinds would have an unpaired group, and the later of the
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
    for position, kind in enumerate(kinds):
        found = [
            (waiting[other][0], other, sort)
            for other, sort in wanted.get(kind, ())
            if left[sort] and waiting.get(other)
        ]
        if found:
            partner[position], other, sort = min(found)
            waiting[other].popleft()
            left[sort] -= 1
        else:
            waiting.setdefault(kind, deque()).append(position)
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
