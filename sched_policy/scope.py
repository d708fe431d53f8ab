"""Among whom a policy may reorder. Pure.

The resource manager's own priority (fair share, age, QOS, nice, partition) gives each waiting job a place in the queue.
A policy only permutes the places of jobs that are peers, so whose turn it is stays the resource manager's decision, and
what users report of their jobs decides among their own. With one scope for all, one kind of peers and one priority the
order is the policy's own.

No job waits for ever: the overdue ones among peers come first, in order of submission, whatever the policy says.
"""

from __future__ import annotations

import numpy as np

from sched_policy.model import JobState
from sched_policy.plan import Ranking
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot


def within_scopes(ranking: Ranking, snapshot: Snapshot) -> Ranking:
    """The ranking with waiting jobs on the places of their peers, and running ones in order of submission by scope.

    Scores stay what they are, so they only fall within one scope.
    """
    if all(not job.scope and not job.peers and not job.is_overdue for job in snapshot.jobs):
        return ranking
    rows = ranking.rows
    is_waiting = np.array([job.state is JobState.PENDING for job in snapshot.jobs], dtype=np.bool_)[rows]
    arranged = rows.copy()
    arranged[is_waiting] = places(rows[is_waiting], snapshot)
    others = rows[~is_waiting]
    arranged[~is_waiting] = _permuted(np.sort(others), others, snapshot.scopes)
    return ranking if np.array_equal(arranged, rows) else ranking.in_order(snapshot, arranged)


def places(preferred: Ints, snapshot: Snapshot) -> Ints:
    """Waiting jobs (positions in the snapshot, all of them, in a wanted order) in the order they may have."""
    return seating(preferred, snapshot)[1]


def seating(preferred: Ints, snapshot: Snapshot) -> tuple[Ints, Ints]:
    """For each place in the queue, the highest first: the job whose own it is, and the one of its peers that gets it.

    `preferred` are waiting jobs (positions in the snapshot, all of them, in a wanted order).
    """
    jobs = [snapshot.jobs[row] for row in preferred.tolist()]
    numbers: dict[tuple[str, str], int] = {}
    peers: Ints = np.zeros(len(snapshot.jobs), dtype=np.int64)
    peers[preferred] = [numbers.setdefault((job.scope, job.peers), len(numbers)) for job in jobs]
    priority: Floats = np.zeros(len(snapshot.jobs))
    priority[preferred] = [job.native_priority for job in jobs]
    overdue: Bools = np.array([job.is_overdue for job in jobs], dtype=np.bool_)
    # A snapshot is in order of (submit time, job id).
    best_first = np.concatenate([np.sort(preferred[overdue]), preferred[~overdue]])
    by_place = np.sort(preferred)
    by_place = by_place[np.argsort(-priority[by_place], kind="stable")]
    return by_place, _permuted(by_place, best_first, peers)


def _permuted(by_place: Ints, best_first: Ints, group: Ints) -> Ints:
    """The rows on the places of their group (by row), the best of a group on its first place."""
    result = np.empty_like(by_place)
    result[np.argsort(group[by_place], kind="stable")] = best_first[np.argsort(group[best_first], kind="stable")]
    return result
