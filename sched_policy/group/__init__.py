"""Groups: which jobs share the same GPUs."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from sched_policy.place import Place
from sched_policy.plan import Group, Preemption, Ranking, Start
from sched_policy.snapshot import Snapshot


class Shared(Struct, frozen=True):
    """What a way of sharing decides: all its placements name the GPUs (`NodeGpus.indices`)."""

    starts: tuple[Start, ...] = ()
    groups: tuple[Group, ...] = ()
    preemptions: tuple[Preemption, ...] = ()


class Sharing(Protocol):
    """Decides which jobs share GPUs."""

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Shared:
        """Starts, groups and preemptions for the jobs of a snapshot, best first."""
        ...
