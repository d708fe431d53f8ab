"""`interleave.iteration_s` for many groups at once. Apart from it, because Muri's own simulator runs without NumPy."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from sched_policy.columns import Floats
from sched_policy.group.interleave import CONTENTION, SLOTS, STEADY_REL, Ordering


def iteration_times_s(groups: Floats, ordering: Ordering = Ordering.BEST) -> Floats:
    """Seconds in which each member of a group finishes one iteration, shape (M,).

    Args:
        groups: shape (M, n, 4): iteration, io, gpu and net seconds of the n <= 4 members of M groups.
        ordering: how the members' stages are put in order.

    """
    size = groups.shape[1]
    if size == 1:
        return np.asarray(groups[:, 0, 0])
    stages = groups[:, :, 1:].transpose(1, 2, 0)
    times_s = [_steady_s(stages[list(order)]) for order in permutations(range(size))]
    if size == 2:
        (io_a, gpu_a, net_a), (io_b, gpu_b, net_b) = stages
        times_s.append(np.maximum(io_a, gpu_b + net_b) + np.maximum(io_b, gpu_a + net_a))
    pick = np.min if ordering is Ordering.BEST else np.max
    return np.asarray(pick(times_s, axis=0) * CONTENTION[size - 1])


def efficiencies(groups: Floats, ordering: Ordering = Ordering.BEST) -> Floats:
    """Interleaving efficiency of each group, shape (M,); `groups` as for `iteration_times_s`."""
    return np.asarray(groups[:, :, 1:].sum(axis=(1, 2)) / (SLOTS * iteration_times_s(groups, ordering)))


def _steady_s(order: Floats) -> Floats:
    """`order` has shape (n, 3, M)."""
    members, _, count = order.shape
    finish_s = [np.zeros(count)]
    period_s = np.full(count, np.nan)
    for slot in range(2 * SLOTS):
        end_s = np.zeros(count)
        for stage, member in ((2, (slot + 1) % SLOTS), (1, (slot + 2) % SLOTS), (0, (slot + 3) % SLOTS)):
            began = slot if stage else slot - 1
            if member < members and began >= 0:
                end_s = np.maximum(end_s, finish_s[began] + order[member, stage])
        finish_s.append(end_s)
        if slot >= SLOTS:
            now_s, before_s = end_s - finish_s[slot - 3], finish_s[slot] - finish_s[slot - 4]
            near = np.abs(now_s - before_s) <= STEADY_REL * np.maximum(np.abs(now_s), np.abs(before_s))
            period_s = np.where(np.isnan(period_s) & near & (now_s > 0), now_s, period_s)
    return np.where(np.isnan(period_s), finish_s[2 * SLOTS] - finish_s[SLOTS], period_s)
