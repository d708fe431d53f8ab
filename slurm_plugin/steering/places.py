"""Turns a plan's order into site factors, changing as few as possible. Pure.

The priorities that Slurm itself computes define the places in the queue. The plan decides which job gets which place
(`sched_policy.queue_order`); this module gives each job the site factor that moves it there. Between two jobs of other
users only the order of a user's jobs matters, not their exact priorities. So most of them keep theirs when one
moves, and a pass writes little. Jobs that are not steered keep the place that Slurm gives them, and the others keep
their order relative to them.

Where Slurm's priorities are equal or nearly so, they leave no room for an exchange: the jobs that must come first are
then raised a little.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter

import numpy as np
from msgspec import Struct

from sched_policy.queue_order import places
from slurm_plugin.client.changes import SetSiteFactor
from slurm_plugin.client.records import SlurmJob
from slurm_plugin.observation.observe import Observation
from slurm_plugin.steering.order import Write, in_turn, longest_falling

STEP = 10
"""Distance between newly assigned priorities, where no other job's priority is near."""

_SPARE = 4
"""Priorities reserved for each job where jobs had to be moved apart, so that the next exchange still finds some."""

_HIGHEST = 2_147_483_645
"""Largest absolute value of a site factor that Slurm accepts."""


class _Item(Struct, frozen=True, gc=False):
    """A pending job in the wanted order. `place` is the priority that belongs to its place in the queue.

    `has` is the priority with its current site factor; `age` breaks ties as Slurm does: earlier submission first,
    then lower job id. Items of one `group` may exchange places.
    """

    job: SlurmJob
    place: int
    has: int
    age: tuple[float, int]
    group: tuple[str, str] | int
    is_steered: bool


class _Anchor(Struct, frozen=True, gc=False):
    """An item that keeps its priority; `at` is its position in the wanted order."""

    at: int
    priority: float
    is_steered: bool


def place_changes(seen: Observation, ranked: Sequence[int], most: int) -> tuple[SetSiteFactor, ...]:
    """New site factors for the pending jobs in `ranked` (best first): at most `most`, owners in turn.

    A correct site factor is written again if Slurm does not use it: its backfill thread may have restored an older
    priority.
    """
    items = _items(seen, ranked)
    owner = {job.job_id: job.scope for job in seen.snapshot.jobs}
    wrong = list(_of_unordered_jobs(seen))
    for item, priority in zip(items, _priorities(items), strict=True):
        stays = priority == item.has
        if not item.is_steered or (stays and item.job.is_in_force):
            continue
        factor = item.job.site_factor or 0 if stays else priority - max(item.job.natives) - item.job.age_lag
        if abs(factor) <= _HIGHEST:
            height = max(priority, item.job.priority)
            wrong.append(Write(owner[item.job.job_id], height, SetSiteFactor(item.job.job_id, factor)))
    return in_turn(wrong, most)


def _of_unordered_jobs(seen: Observation) -> Iterator[Write]:
    """Give them their base factors alone: ours are from before their --nice, or they were served, or a task started.

    Slurm starts the tasks of a throttled array one after the other at the priority that it has, and takes changes to
    its site factor also while it does not show that. Any write lets it test the array again, which else may not be
    before all jobs ahead have started: a later pass then orders it.
    """
    for one in seen.snapshot.jobs:
        job, base = seen.jobs[one.job_id], seen.known.base_factors.get(one.job_id, 0)
        factor = seen.known.throttled_factors.get(one.job_id, job.site_factor)
        if factor is None or not _is_unordered(seen, job):
            continue
        is_to_be_tested = job.is_outdated and seen.known.tested_anew.get(one.job_id) != job.array_tasks
        if factor != base or is_to_be_tested:
            yield Write(one.scope, job.priority, SetSiteFactor(job.job_id, base))


def put_first(served: AbstractSet[int], seen: Observation, order: Sequence[SetSiteFactor]) -> tuple[SetSiteFactor, ...]:
    """The new order, with the `served` jobs raised above all other jobs of their partitions.

    Jobs of the same owner have just been preempted for them, so the freed GPUs would not be there for anybody else.
    From its normal place such a job may lose them: if another job ends in the same cycle, a larger job ahead may fit
    into both together.
    """
    factors = {change.job_id: change.site_factor for change in order}
    waiting = [job for job in seen.jobs.values() if job.state == "PENDING" and job.natives]

    def by_one_clock(job: SlurmJob) -> int:
        return job.priority_with(factors.get(job.job_id, job.site_factor or 0))

    lifted: dict[int, int | None] = {}
    first = sorted((job for job in waiting if job.job_id in served), key=lambda job: (by_one_clock(job), -job.submit_s))
    for rank, job in enumerate(first, start=1):
        others = (other for other in waiting if other.job_id not in served)
        rivals = [other for other in others if not set(other.partitions).isdisjoint(job.partitions)]
        top = max((max(other.priority, by_one_clock(other)) for other in rivals), default=0)
        factor = top + STEP * rank - max(job.natives) - job.age_lag
        lifted[job.job_id] = factor if job.priority <= top and abs(factor) <= _HIGHEST else None
    raised = (SetSiteFactor(job_id, factor) for job_id, factor in lifted.items() if factor is not None)
    return (*raised, *(change for change in order if change.job_id not in lifted))


def _items(seen: Observation, ranked: Sequence[int]) -> list[_Item]:
    """All pending jobs for which Slurm reports a priority, in the wanted order."""
    snapshot = seen.snapshot
    row = {job.job_id: i for i, job in enumerate(snapshot.jobs)}
    waiting = [row[job_id] for job_id in ranked if seen.jobs[job_id].state == "PENDING"]
    steered = [snapshot.jobs[i] for i in places(np.array(waiting, dtype=np.int64), snapshot).tolist()]
    records = (seen.jobs[job.job_id] for job in steered)
    known = (record for record in records if record.natives and record.site_factor is not None)
    wanted = [record for record in known if not _is_unordered(seen, record)]
    group = {job.job_id: (job.scope, job.peers) for job in steered}
    steered_ids = {job.job_id for job in wanted}
    partitions = {name for job in wanted for name in job.partitions}
    others = [
        job
        for job in seen.jobs.values()
        if job.state == "PENDING" and job.natives and job.job_id not in steered_ids
        if not partitions.isdisjoint(job.partitions)
    ]
    places_of = sorted(
        ((-_native(seen, job), *_age(seen, job), job) for job in (*wanted, *others)), key=itemgetter(0, 1, 2)
    )
    next_wanted = iter(wanted)
    items = []
    for negated, _, _, holder in places_of:
        is_steered = holder.job_id in steered_ids
        job = next(next_wanted) if is_steered else holder
        # The others are about to get their own places, see `_of_unordered_jobs`.
        has = -negated if _is_unordered(seen, job) else job.priority_with(job.site_factor or 0)
        kind = group[job.job_id] if is_steered else job.job_id
        items.append(_Item(job, -negated, has, (job.submit_s, job.job_id), kind, is_steered))
    return items


def _is_unordered(seen: Observation, job: SlurmJob) -> bool:
    """Whether it keeps its own place: its priority is cut off, or the place would be lent to task after task."""
    return job.is_throttled or job.is_cut_off(seen.known.base_factors.get(job.job_id, 0))


def _native(seen: Observation, job: SlurmJob) -> int:
    """The priority with the base factor alone."""
    return job.priority_with(seen.known.base_factors.get(job.job_id, 0))


def _age(seen: Observation, job: SlurmJob) -> tuple[float, int]:
    """The tie-break (submit time, job id). A requeued job keeps its first submit time, as in the snapshot."""
    past = seen.preempted.get(job.job_id)
    return past.submitted_s if past else job.submit_s, job.job_id


def _priorities(items: Sequence[_Item]) -> list[int]:
    """The new priority of each item: its current one if that is right, else one near the priority of its place."""
    anchors = _with_room(_kept(items), len(items))
    priorities = [item.has for item in items]
    for upper, lower in itertools.pairwise(anchors):
        span = items[upper.at + 1 : lower.at]
        if span:
            priorities[upper.at + 1 : lower.at] = _between(
                [item.place for item in span], upper.priority, lower.priority
            )
    return priorities


def _kept(items: Sequence[_Item]) -> list[_Anchor]:
    """The items that keep their priorities: all that are not steered, and between them as many others as possible.

    Kept priorities are decreasing, and each lies between the places of the neighbours outside its group. Where most
    items of a run (consecutive items of one group) must move anyway, the whole run moves to its places.
    """
    may_stay = _near_their_places(items)
    order = {key: rank for rank, key in enumerate(sorted({_key(item) for item in items}))}
    ranks = [order[_key(item)] for item in items]
    fixed = [i for i, item in enumerate(items) if not item.is_steered]
    kept: list[int] = []
    for left, right in itertools.pairwise((-1, *fixed, len(items))):
        high = ranks[left] if left >= 0 else len(order)
        low = ranks[right] if right < len(items) else -1
        inside = [ranks[i] if may_stay[i] and low < ranks[i] < high else None for i in range(left + 1, right)]
        kept += (left + 1 + i for i in longest_falling(inside))
        kept += [right] if right < len(items) else []
    run_of = [number for number, run in enumerate(_runs(items)) for _ in run]
    size, stay = Counter(run_of), Counter(run_of[i] for i in kept)
    worth = (i for i in kept if 2 * stay[run_of[i]] >= size[run_of[i]])
    return [_Anchor(i, items[i].has, items[i].is_steered) for i in worth]


def _runs(items: Sequence[_Item]) -> list[list[_Item]]:
    """The items, split into runs of consecutive items of one group."""
    return [list(run) for _, run in itertools.groupby(items, key=lambda item: item.group)]


def _near_their_places(items: Sequence[_Item]) -> list[bool]:
    """Whether the priority of each item lies between the places just before and just after its run.

    Places less than `STEP` apart form a cluster, whose items may have been raised by a step each.
    """
    result: list[bool] = []
    cluster = _cluster_sizes([item.place for item in items])
    for members in _runs(items):
        first, last = len(result), len(result) + len(members) - 1
        reach = STEP * max(cluster[first], cluster[last], len(members))
        high = items[first - 1].place + STEP * (cluster[first - 1] - 1) if first else items[first].place + reach
        low = items[last + 1].place if last + 1 < len(items) else 0
        result += [low <= item.has <= high or item.has == item.place for item in members]
    return result


def _cluster_sizes(places: Sequence[int]) -> list[int]:
    """For each place the size of its cluster: descending places, each less than `STEP` above the next."""
    sizes: list[int] = []
    start = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i - 1] - places[i] >= STEP:
            sizes += [i - start] * (i - start)
            start = i
    return sizes


def _key(item: _Item) -> tuple[int, float, int]:
    """Sort key: the larger, the earlier Slurm would currently consider the item."""
    return item.has, -item.age[0], -item.age[1]


def _with_room(anchors: Iterable[_Anchor], count: int) -> list[_Anchor]:
    """The anchors, with both ends of the queue added, that leave enough priorities for the items between them.

    Steered anchors are dropped first. One that is not steered is dropped only where Slurm's own priorities are so
    close that nothing fits between them.
    """
    top, end = _Anchor(-1, float("inf"), is_steered=False), _Anchor(count, 0, is_steered=False)
    held = [top]
    for anchor in (*anchors, end):
        if _fits(held[-1], anchor, 1):
            held.append(anchor)
            continue
        while len(held) > 1 and held[-1].is_steered and not _fits(held[-1], anchor, _SPARE):
            held.pop()
        if _fits(held[-1], anchor, 1):
            held.append(anchor)
        elif anchor is end or not anchor.is_steered:
            while not _fits(held[-1], anchor, 1):
                held.pop()
            held.append(anchor)
    return held


def _fits(upper: _Anchor, lower: _Anchor, each: int) -> bool:
    between = lower.at - upper.at - 1
    if between == 0:
        return True
    return upper.priority - lower.priority - 1 >= each * between


def _between(wanted: Sequence[int], high: float, low: float) -> list[int]:
    """Decreasing priorities strictly between two bounds: the wanted ones, if they decrease and lie between them."""
    if all(a > b for a, b in itertools.pairwise(wanted)) and low < wanted[-1] and wanted[0] < high:
        return list(wanted)
    reach = STEP * (len(wanted) + 1)
    top = min(high, max(wanted[0], low) + reach)
    bottom = max(low, min(wanted[-1], top) - reach, 0)
    if top - bottom - 1 < len(wanted):
        bottom = low
    step = (top - bottom) / (len(wanted) + 1)
    return [int(top - step * (i + 1)) if step >= 2 else int(top) - 1 - i for i in range(len(wanted))]
