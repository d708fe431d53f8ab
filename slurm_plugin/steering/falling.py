"""Which of many numbers may stay where they are when all of them must fall. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Sequence


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
