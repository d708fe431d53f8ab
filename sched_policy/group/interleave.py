"""Interleaving the stages of several trainings on the same GPUs (Muri, SIGCOMM 2022).

One iteration reads data, computes, and exchanges gradients. While one job of a group computes, another reads and a
third talks to the network; the group finishes one iteration of every member in `iteration_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import permutations

import numpy as np

from sched_policy.model import StageProfile
from sched_policy.snapshot import Floats

SLOTS = 4  # resources a group is spread over; three of them are profiled
MAX_MEMBERS = 4
# Factors on the computed time for 1 to 4 members, as Muri's authors measured them, relative to a job alone (1.015).
CONTENTION = (1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015)
_STEADY_REL = 1e-3
_AT_ONCE = 1024  # groups, each in all orders: more do not fit the CPU's cache


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
    in_order = tuple(sorted(members))
    return sum(member.busy_s for member in in_order) / (SLOTS * _iteration_s(in_order, ordering))


def stage_table(profiles: Iterable[StageProfile]) -> Floats:
    """Iteration, io, gpu and net seconds of each profile, shape (K, 4)."""
    return np.array([(one.iteration_s, one.io_s, one.gpu_s, one.net_s) for one in profiles], dtype=np.float64)


def iteration_times_s(groups: Floats, ordering: Ordering = Ordering.BEST) -> Floats:
    """`iteration_s` of many groups at once, shape (M,); `groups` has shape (M, n, 4), rows as in `stage_table`."""
    size = groups.shape[1]
    if size == 1:
        return np.asarray(groups[:, 0, 0])
    orders = np.array(list(permutations(range(size))))
    found = [_chosen_s(groups[at : at + _AT_ONCE, :, 1:], orders, ordering) for at in range(0, len(groups), _AT_ONCE)]
    return np.concatenate([np.empty(0), *found]) * CONTENTION[size - 1]


@lru_cache(maxsize=1 << 16)
def _iteration_s(members: tuple[StageProfile, ...], ordering: Ordering) -> float:
    if not 1 <= len(members) <= MAX_MEMBERS:
        raise ValueError(f"a group has 1 to {MAX_MEMBERS} members, not {len(members)}")
    return float(iteration_times_s(stage_table(members)[None], ordering)[0])


def _chosen_s(stages: Floats, orders: Floats, ordering: Ordering) -> Floats:
    """The time of the best or worst order of each group's members, shape (M,); `stages` has shape (M, n, 3)."""
    times_s = _steady_s(stages[:, orders].transpose(2, 3, 1, 0))
    if orders.shape[1] == 2:  # one reads while the other computes and talks, then the reverse
        (io_a, gpu_a, net_a), (io_b, gpu_b, net_b) = stages.transpose(1, 2, 0)
        alternating_s = np.maximum(io_a, gpu_b + net_b) + np.maximum(io_b, gpu_a + net_a)
        times_s = np.concatenate([times_s, alternating_s[None]])
    return np.asarray((np.min if ordering is Ordering.BEST else np.max)(times_s, axis=0))


def _steady_s(order: Floats) -> Floats:
    """Time between two iterations of the pipeline in which member i is i slots ahead, once it is steady.

    `order` has shape (n, 3, ...), the result (...). In slot i the members compute or talk for as long as the longest of
    them; reading may begin a slot early.
    """
    members, shape = len(order), order.shape[2:]
    finish_s = [np.zeros(shape)]
    period_s = np.full(shape, np.nan)
    for slot in range(2 * SLOTS):
        end_s = np.zeros(shape)
        for stage, member in ((2, (slot + 1) % SLOTS), (1, (slot + 2) % SLOTS), (0, (slot + 3) % SLOTS)):
            began = slot if stage else slot - 1
            if member < members and began >= 0:
                end_s = np.maximum(end_s, finish_s[began] + order[member, stage])
        finish_s.append(end_s)
        if slot >= SLOTS:
            now_s, before_s = end_s - finish_s[slot - 3], finish_s[slot] - finish_s[slot - 4]
            near = np.abs(now_s - before_s) <= _STEADY_REL * np.maximum(np.abs(now_s), np.abs(before_s))
            period_s = np.where(np.isnan(period_s) & near & (now_s > 0), now_s, period_s)
    return np.where(np.isnan(period_s), finish_s[2 * SLOTS] - finish_s[SLOTS], period_s)
