"""AntMan (OSDI 2020) as Muri's simulator models it: an opportunistic job in the idle stages of a guaranteed one."""

from __future__ import annotations

from functools import lru_cache
from math import floor

from sched_policy.model import StageProfile


@lru_cache(maxsize=1 << 14)
def opportunistic_iteration_s(job: StageProfile, guaranteed: StageProfile) -> float:
    """Seconds of one iteration of an opportunistic job in the gaps that a guaranteed job leaves.

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
    """Whole gaps that a stage fills, and what remains. A guaranteed job without such gaps counts as one endless gap."""
    if gap_s <= 0:
        return 0, need_s
    return floor(need_s / gap_s), need_s % gap_s
