"""Interleaving the stages of several trainings on the same GPUs (Muri, SIGCOMM 2022).

One iteration reads data, computes, and exchanges gradients. While one job of a group computes, another reads and a
third talks to the network; the group finishes one iteration of every member in `iteration_s`.
`rounds.iteration_times_s` says the same of many groups at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import permutations
from math import isclose

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
