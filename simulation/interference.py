"""How much jobs that share GPUs slow each other down in a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import floor
from typing import Protocol

from msgspec import Struct

from sched_policy.group.interleave import MAX_MEMBERS, iteration_s
from sched_policy.model import Job, StageProfile


class Interference(Protocol):
    """How much jobs that share GPUs slow each other, for one mechanism of sharing."""

    def slowdown(self, job: Job, others: Sequence[Job]) -> float:
        """How many times longer an iteration of `job` takes beside `others` on the same GPUs than alone; at least 1."""
        ...


class Interleaving(Struct, frozen=True):
    """Slowdown of jobs whose stages interleave on the same GPUs, with the measured contention (Muri).

    If a job's stages are unknown, or there are more jobs than a group may have, n jobs are each n times slower.
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
    """Opportunistic jobs run in the gaps of guaranteed ones, which are not slowed (AntMan, OSDI 2020)."""

    def slowdown(self, job: Job, others: Sequence[Job]) -> float:
        """1 for a guaranteed job; for an opportunistic one the largest slowdown by any of the others."""
        return max((self._beside(job, other) for other in others), default=1.0)

    def _beside(self, job: Job, other: Job) -> float:
        if job.guaranteed:
            return 1.0
        if not other.guaranteed or job.profile is None or other.profile is None:
            return 2.0
        return max(1.0, opportunistic_iteration_s(job.profile, other.profile) / job.profile.iteration_s)


@lru_cache(maxsize=1 << 14)
def opportunistic_iteration_s(job: StageProfile, guaranteed: StageProfile) -> float:
    """Seconds of one iteration of an opportunistic job in the gaps that a guaranteed job leaves, as Muri models AntMan.

    Each stage of the job runs while the guaranteed job is in another stage. The result is a whole number of the
    guaranteed job's iterations, 0 if none is needed; the caller takes the maximum with the job's own iteration time.
    """
    gap_io, gap_gpu, gap_net = (
        guaranteed.gpu_s + guaranteed.net_s,
        guaranteed.io_s + guaranteed.net_s,
        guaranteed.io_s + guaranteed.gpu_s,
    )
    gpu_s, net_s = job.gpu_s, job.net_s

    rounds, rest_s = _laps(job.io_s, gap_io)
    if rest_s > 0:
        rounds += 1
        gpu_s -= min(gpu_s, guaranteed.net_s, gap_io - rest_s)

    laps, rest_s = _laps(gpu_s, gap_gpu)
    rounds += laps
    if rest_s > 0:
        rounds += 1
        if rest_s < guaranteed.io_s:
            net_s -= min(net_s, gap_net - rest_s)

    laps, rest_s = _laps(net_s, gap_net)
    rounds += laps
    if rest_s > guaranteed.io_s:
        rounds += 1
    return rounds * guaranteed.iteration_s


def _laps(need_s: float, gap_s: float) -> tuple[int, float]:
    """Whole gaps that a stage fills, and the rest in seconds. If the gaps are empty, the stage counts as the rest."""
    if gap_s <= 0:
        return 0, need_s
    return floor(need_s / gap_s), need_s % gap_s
