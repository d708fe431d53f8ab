"""Interleaving the stages of several trainings on the same GPUs (Muri, SIGCOMM 2022).

One iteration reads data, computes, and exchanges gradients. While one job of a group computes, another reads and a
third talks to the network; the group finishes one iteration of every member in `iteration_s`.
`iteration_times_s` and `efficiencies` say the same of many groups at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import permutations
from math import isclose

import numpy as np

from sched_policy.columns import Floats
from sched_policy.model import StageProfile

SLOTS = 4  # resources a group is spread over; three of them are profiled
MAX_MEMBERS = 4
# Measured by Muri's authors: sharing costs this much on top of the computed time. A job alone costs 1.015.
CONTENTION = (1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015)
STEADY_REL = 1e-3


class Ordering(StrEnum):
    """How the members' stages are put in order."""

    BEST = "best"
    WORST = "worst"  # the ablation of the paper


def iteration_s(members: Sequence[StageProfile], ordering: Ordering = Ordering.BEST) -> float:
    """Seconds in which each member of a group finishes one iteration, contention included.

    Cached by the multiset of members. Raises `ValueError` for no members or more than `MAX_MEMBERS`.
    """
    return _iteration_s(tuple(sorted(members)), ordering)


def efficiency(members: Sequence[StageProfile], ordering: Ordering = Ordering.BEST) -> float:
    """Interleaving efficiency gamma: the share of the group's slots that is busy (Muri, section 4.1)."""
    return _efficiency(tuple(sorted(members)), ordering)


@lru_cache(maxsize=1 << 16)
def _efficiency(members: tuple[StageProfile, ...], ordering: Ordering) -> float:
    return sum(member.busy_s for member in members) / (SLOTS * _iteration_s(members, ordering))


@lru_cache(maxsize=1 << 16)
def _iteration_s(members: tuple[StageProfile, ...], ordering: Ordering) -> float:
    if not 1 <= len(members) <= MAX_MEMBERS:
        raise ValueError(f"a group has 1 to {MAX_MEMBERS} members, not {len(members)}")
    if len(members) == 1:
        return members[0].iteration_s
    pick: Callable[..., float] = min if ordering is Ordering.BEST else max
    times_s = [_steady_s(order) for order in dict.fromkeys(permutations(members))]
    if len(members) == 2:
        times_s.append(_alternating_s(*members))
    return pick(times_s) * CONTENTION[len(members) - 1]


def _steady_s(order: tuple[StageProfile, ...]) -> float:
    """Time between two iterations of the pipeline in which member i is i slots ahead, once it is steady.

    In slot i the members compute or talk for as long as the longest of them; reading may begin a slot early.
    """
    members = len(order)
    finish_s = [0.0] * (2 * SLOTS + 1)
    for slot in range(2 * SLOTS):
        end_s = 0.0
        talks, computes, reads = (slot + 1) % SLOTS, (slot + 2) % SLOTS, (slot + 3) % SLOTS
        if talks < members:
            end_s = max(end_s, finish_s[slot] + order[talks].net_s)
        if computes < members:
            end_s = max(end_s, finish_s[slot] + order[computes].gpu_s)
        if reads < members and slot > 0:
            end_s = max(end_s, finish_s[slot - 1] + order[reads].io_s)
        finish_s[slot + 1] = end_s
        if slot >= SLOTS:
            period_s = end_s - finish_s[slot - 3]
            if isclose(period_s, finish_s[slot] - finish_s[slot - 4], rel_tol=STEADY_REL) and period_s > 0:
                return period_s
    return finish_s[2 * SLOTS] - finish_s[SLOTS]


def _alternating_s(first: StageProfile, second: StageProfile) -> float:
    """Two jobs: one reads while the other computes and talks, then the reverse."""
    return max(first.io_s, second.gpu_s + second.net_s) + max(second.io_s, first.gpu_s + first.net_s)


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
    times_s = [_steady_many_s(stages[list(order)]) for order in permutations(range(size))]
    if size == 2:
        (io_a, gpu_a, net_a), (io_b, gpu_b, net_b) = stages
        times_s.append(np.maximum(io_a, gpu_b + net_b) + np.maximum(io_b, gpu_a + net_a))
    pick = np.min if ordering is Ordering.BEST else np.max
    return np.asarray(pick(times_s, axis=0) * CONTENTION[size - 1])


def efficiencies(groups: Floats, ordering: Ordering = Ordering.BEST) -> Floats:
    """Interleaving efficiency of each group, shape (M,); `groups` as for `iteration_times_s`."""
    return np.asarray(groups[:, :, 1:].sum(axis=(1, 2)) / (SLOTS * iteration_times_s(groups, ordering)))


def _steady_many_s(order: Floats) -> Floats:
    """`_steady_s` of M groups at once; `order` has shape (n, 3, M)."""
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
