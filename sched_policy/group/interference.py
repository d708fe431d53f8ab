"""How much jobs slow each other down on the GPUs they share. Sharing is never free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from sched_policy.group.antman import opportunistic_iteration_s
from sched_policy.group.interleave import MAX_MEMBERS, iteration_s
from sched_policy.model import Job


class Interference(Protocol):
    """A mechanism of sharing, and what it costs."""

    def slowdown(self, job: Job, others: Sequence[Job]) -> float:
        """How many times longer an iteration of `job` takes beside `others` on the same GPUs than alone; at least 1."""
        ...


class Interleaving(Struct, frozen=True):
    """Members of a group take turns on their stages (Muri, SIGCOMM 2022), the measured contention included.

    Jobs of unknown stages, or more than a group may have, slice time: each is as many times slower as there are jobs.
    """

    def slowdown(self, job: Job, others: Sequence[Job]) -> float:
        """The group's iteration time over the job's own."""
        if not others:
            return 1.0
        profiles = [member.profile for member in (job, *others) if member.profile is not None]
        if job.profile is None or len(profiles) <= len(others) or len(profiles) > MAX_MEMBERS:
            return 1.0 + len(others)
        return max(1.0, iteration_s(profiles) / job.profile.iteration_s)


class Guarantee(Struct, frozen=True):
    """Opportunistic jobs run in the gaps that guaranteed ones leave, which feel nothing of it (AntMan, OSDI 2020)."""

    def slowdown(self, job: Job, others: Sequence[Job]) -> float:
        """1 for a guaranteed job; for an opportunistic one the worst of what each neighbour costs it."""
        return max((self._beside(job, other) for other in others), default=1.0)

    def _beside(self, job: Job, other: Job) -> float:
        if job.guaranteed:
            return 1.0
        if not other.guaranteed or job.profile is None or other.profile is None:
            return 2.0
        return max(1.0, opportunistic_iteration_s(job.profile, other.profile) / job.profile.iteration_s)
