"""Grouping in order of priority, without a matching: the ablation of Muri (SIGCOMM 2022) that tells its worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sched_policy.group.interleave import CONTENTION
from sched_policy.group.rounds import Bucket, Group, Grouper

_FOUR = 4
_CONTENTION_OF_FOUR = 1.3 / 1.015
"""What four jobs cost without matching, in the published simulator; with matching it is `CONTENTION[3]`."""


class InOrder(Grouper):
    """Each `max_members` jobs that follow each other are a group, as long as there are more jobs than GPUs for them."""

    def iteration_s(self, kinds: Iterable[int]) -> float:
        """As with matching, but four jobs cost less."""
        members = tuple(kinds)
        factor = _CONTENTION_OF_FOUR / CONTENTION[_FOUR - 1] if len(members) == _FOUR else 1.0
        return super().iteration_s(members) * factor

    def groups(self, buckets: Sequence[Bucket], capacity_gpus: int) -> list[list[Group]]:
        """The groups of each bucket, in the order of the buckets; every job is taken to be alone before."""
        surplus = sum(bucket.gpus * len(bucket.kinds) for bucket in buckets) - capacity_gpus
        result: list[list[Group]] = []
        for bucket in buckets:
            groups: list[Group] = []
            for start in range(0, len(bucket.kinds), self.max_members):
                places = tuple(range(start, min(start + self.max_members, len(bucket.kinds))))
                joining = min(len(places) - 1, max(0, -(-surplus // bucket.gpus)))
                surplus -= joining * bucket.gpus
                groups += [places[: joining + 1], *((place,) for place in places[joining + 1 :])]
            result.append(groups)
        return result
