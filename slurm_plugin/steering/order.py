"""From the order of a plan to the fewest new site factors, where a policy orders all jobs of a partition. Pure.

Each change costs slurmctld a lock, a new priority and a scheduling pass soon after. So correct labels stay, those far
back in a long queue are not set at all, and a pass writes a limited number, owners in turn (`in_turn`).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter

from msgspec import Struct

from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.records import SlurmJob

_SHARE = 0.25
"""Share of the range that labels spread anew take; the rest is for jobs that will come before and after them."""

_Anchor = tuple[int, int]
"""An item that keeps its label: (place, label)."""


class OrderLimits(Struct, frozen=True):
    """Labels lie between 0 and `highest`; the numbers of labelled jobs per partition and of writes per pass."""

    highest: int
    depth: int
    max_per_pass: int


class Write(Struct, frozen=True, gc=False):
    """A new site factor for a waiting job. Its `owner` is who exchanges places: a user, or an account.

    `height` is the larger of the labels, or priorities, that the job has and gets: one that is too high does as much
    harm at the head of the queue as one that is missing there.
    """

    owner: str
    height: int
    change: SetSiteFactor


def in_turn(writes: Iterable[Write], most: int) -> tuple[SetSiteFactor, ...]:
    """The first `most` changes: owners take turns, and each one's highest come first.

    By height alone, a user whose jobs change places in each pass could leave no writes to users whose jobs come later.
    Of an owner's two jobs at one height, one leaves the place that the other gets: these go in one turn.
    """
    at_height: Counter[tuple[str, int]] = Counter()
    turn: Counter[str] = Counter()
    turns: list[tuple[int, SetSiteFactor]] = []
    for write in sorted(writes, key=lambda write: -write.height):
        at_height[write.owner, write.height] += 1
        turn[write.owner] += at_height[write.owner, write.height] % 2
        turns.append((turn[write.owner], write.change))
    turns.sort(key=itemgetter(0))
    return tuple(change for _, change in turns[:most])


def order_changes(jobs: Iterable[SlurmJob], limits: OrderLimits) -> tuple[SetSiteFactor, ...]:
    """New site factors for waiting jobs, given in the wanted order.

    Jobs beyond the depth of their partition have none: they come behind all others, in Slurm's own order. None is
    negative, because Slurm cuts priorities off at 1 and would forget the order of all jobs below. One that is right but
    not in force is written again.
    """
    labelled, rest = _head(jobs, limits.depth)
    labels = [*relabel([job.site_factor for job in labelled], limits.highest), *(0 for _ in rest)]
    wrong = (
        Write(job.user, max(job.site_factor or 0, label), SetSiteFactor(job.job_id, label))
        for job, label in zip((*labelled, *rest), labels, strict=True)
        if (job.site_factor or 0) != label or not job.is_in_force
    )
    return in_turn(wrong, limits.max_per_pass)


def _head(jobs: Iterable[SlurmJob], depth: int) -> tuple[list[SlurmJob], list[SlurmJob]]:
    """The first jobs of each partition, and the others."""
    seen: Counter[str] = Counter()
    head: list[SlurmJob] = []
    rest: list[SlurmJob] = []
    for job in jobs:
        seen[job.partition] += 1
        (head if seen[job.partition] <= depth else rest).append(job)
    return head, rest


def relabel(current: Sequence[int | None], highest: int) -> list[int]:
    """Strictly falling labels between 0 and `highest` for items in falling order, changing as few as possible.

    The longest falling subsequence of the present labels stays; the rest is spread evenly between its neighbours. Where
    a gap has become too narrow some neighbours move, too. More items than labels share the lowest one.
    """
    kept = longest_falling([c if c is not None and 0 < c < highest else None for c in current])
    step = max(1, int(_SHARE * highest / (len(current) + 1)))
    top, end = (-1, highest), (len(current), 0)
    anchors = _with_room([top, *((i, c) for i in kept if (c := current[i]) is not None), end], step)
    labels = [0] * len(current)
    for left, right in itertools.pairwise(anchors):
        if right is not end:
            labels[right[0]] = right[1]
        high, low = left[1], right[1]
        span = min(high - low, step * (right[0] - left[0]))
        if left is top:
            high = (high + low + span) // 2 if right is end else low + span
        if right is end:
            low = high - span
        for offset, label in enumerate(_spread(right[0] - left[0] - 1, high, low), start=left[0] + 1):
            labels[offset] = label
    return labels


def _with_room(anchors: Sequence[_Anchor], step: int) -> list[_Anchor]:
    """The anchors (both ends among them) without those that leave too little room between them.

    Where an end is reached all go: the next job would find it full again, and room for many costs each of them little.
    """
    top, *others = anchors
    end = others[-1]
    held = [top]
    for anchor in others:
        if _spacing(held[-1], anchor) < 1:
            while len(held) > 1 and _spacing(held[-1], anchor) < max(1, step / 2):
                held.pop()
            if len(held) == 1 or anchor is end:
                return [top, end]
        held.append(anchor)
    return held


def _spacing(left: _Anchor, right: _Anchor) -> float:
    """Labels for each item between two anchors, the right one counted in."""
    return (left[1] - right[1]) / (right[0] - left[0])


def _spread(count: int, high: int, low: int) -> list[int]:
    """`count` labels strictly between two bounds, falling, at equal distances."""
    return [max(low + 1, high - math.ceil((high - low) * (i + 1) / (count + 1))) for i in range(count)]


def longest_falling(values: Sequence[int | None]) -> list[int]:
    """Indices of a longest strictly falling subsequence (patience sorting, O(n log n)); None never belongs."""
    tails: list[int] = []  # tails[k]: negated last value of the best subsequence of length k + 1
    tail_index: list[int] = []
    previous: dict[int, int | None] = {}
    for i, value in enumerate(values):
        if value is None:
            continue
        length = bisect.bisect_left(tails, -value)
        previous[i] = tail_index[length - 1] if length else None
        tails[length : length + 1] = [-value]
        tail_index[length : length + 1] = [i]
    chain: list[int] = []
    at = tail_index[-1] if tail_index else None
    while at is not None:
        chain.append(at)
        at = previous[at]
    return chain[::-1]
