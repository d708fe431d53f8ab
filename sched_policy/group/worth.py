"""Which jobs run, and which of them share GPUs: groups with the most progress, weighted by worth.

The objective is progress weighted by worth. A group of jobs of g GPUs whose members finish an iteration every T seconds
is worth

    g * sum_i w_i * t_i / T,        t_i: seconds of an iteration of member i alone, w_i: its worth per GPU,

since t_i / T is the speed of member i beside the others. Groups are chosen greedily by worth per GPU until no GPU is
free (the fractional optimum of that knapsack); then, while GPUs are left, members get GPUs of their own where that
gains most. Unlike a matching for efficiency (`rounds`) this also decides which jobs wait, and groups jobs only if they
are worth more together than the best of them alone.

A job's worth (`worth_of`) is how much waiting a second of its progress saves: its own, and that of all jobs behind it
for the GPU time that it will take. That time is the job's service times the price of its kind (`Packer.prices`): the
share of a GPU that it costs among good partners. A job that suits others costs less than one that suits none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from heapq import heapify, heappop, heappush
from itertools import combinations_with_replacement
from math import inf

import numpy as np
from msgspec import Struct

from sched_policy.group.interleave import MAX_MEMBERS, iteration_times_s, stage_table
from sched_policy.group.rounds import Group, GroupTimes, Kind
from sched_policy.model import StageProfile
from sched_policy.snapshot import Floats, Ints

LEAST_PRICE = 0.2
"""The least price of a kind, as a share of a GPU."""
MOST_KINDS = 8
"""Largest number of kinds among which groups are enumerated; of 8 there are 494 groups of 1 to 4 members."""


class SizeBucket(Struct, frozen=True):
    """Jobs that ask for the same number of GPUs, in order of priority. A job is named by its position in `kinds`.

    Attributes:
        gpus: GPUs of each job.
        kinds: the kind of each job: the number of its profile in a `Packer`.
        worths: worth per GPU of a second of each job at full speed, above 0.
        together: groups that run already; each is kept or given up as a whole.
        settled: those of `together` that are kept in any case.
        may_share: whether the jobs share GPUs at all.

    """

    gpus: int
    kinds: tuple[int, ...]
    worths: tuple[float, ...]
    together: tuple[Group, ...] = ()
    settled: frozenset[Group] = frozenset()
    may_share: bool = True


def worth_of(service_gpu_s: Floats, gpus: Ints, price: Floats, capacity_gpus: int, own: float = 1.0) -> Floats:
    """Worth per GPU of a second of each of N jobs at full speed, shape (N,).

    In the fluid relaxation, where jobs are served one after the other in order of the GPU time they cost, a second of a
    job delays all that cost more by `price * gpus / capacity_gpus`: the dual of its service.

    Args:
        service_gpu_s: remaining service of each job in GPU-seconds, shape (N,).
        gpus: GPUs of each job, shape (N,).
        price: price of each job's kind (`Packer.prices`), shape (N,).
        capacity_gpus: GPUs to be given away, at least 1.
        own: weight of a second of the job's own waiting.

    """
    cost_gpu_s = price * service_gpu_s
    behind = cost_gpu_s.size - np.searchsorted(np.sort(cost_gpu_s), cost_gpu_s, side="right")
    return np.asarray(own / gpus + price * behind / capacity_gpus)


class Packer(GroupTimes):
    """Chooses groups, and caches their speeds and prices."""

    def __init__(self, max_members: int = MAX_MEMBERS, stay: float = 1.0) -> None:
        """`stay` is the factor on the worth of groups that run already: others would have to be started first."""
        super().__init__(max_members)
        self._stay = stay
        self._times_with: dict[Kind, dict[int, float]] = defaultdict(dict)  # of a group and one kind more

    def pack(self, buckets: Sequence[SizeBucket], capacity_gpus: int) -> list[list[Group]]:
        """The groups of each bucket that should run, most worth first, on `capacity_gpus` GPUs at most in all."""
        queues = [_Queue(bucket, self) for bucket in buckets]
        if sum(queue.gpus_if_none_join for queue in queues) <= capacity_gpus:
            return [queue.everyone() for queue in queues]
        for bucket, queue in zip(buckets, queues, strict=True):
            queue.keep(self._joined(bucket, queue))
        free = capacity_gpus
        chosen: list[list[Group]] = [[] for _ in buckets]
        taken: list[tuple[int, float]] = []  # bucket and worth of each chosen group, in falling worth per GPU
        too_large: list[int] = []
        offers = [(-queue.best, number) for number, queue in enumerate(queues) if queue.best > 0]
        heapify(offers)
        while offers and free > 0:
            _, number = heappop(offers)
            gpus, queue = buckets[number].gpus, queues[number]
            if gpus > free:
                too_large.append(number)  # free GPUs only become fewer
                continue
            taken.append((number, queue.best * gpus))
            chosen[number].append(queue.take())
            free -= gpus
            if queue.best > 0:
                heappush(offers, (-queue.best, number))
        for number in too_large if free > 0 else ():
            free = _exchange(number, queues[number], [bucket.gpus for bucket in buckets], chosen, taken, free)
        if free > 0:
            self._split(buckets, chosen, free)
        return chosen

    def iteration_s(self, kinds: Iterable[int]) -> float:
        """As `GroupTimes`, but none is faster than alone, whatever its stages; more than `MAX_MEMBERS` take turns."""
        members = tuple(kinds)
        alone_s = [self._profiles[kind].iteration_s for kind in members]
        return sum(alone_s) if len(members) > MAX_MEMBERS else max(super().iteration_s(members), *alone_s)

    def worth(self, bucket: SizeBucket, group: Group) -> float:
        """Worth of a group per GPU."""
        return self._alone(bucket, group) / self.iteration_s(bucket.kinds[job] for job in group)

    def combinations(self, kinds: tuple[int, ...], most: int) -> _Combinations:
        """All groups of up to so many members of these kinds."""
        return _Combinations.of(tuple([self._profiles[kind] for kind in kinds]), most)

    def prices(self, kinds: Sequence[int]) -> Floats:
        """The share of a GPU that a second of each job at full speed costs, with partners of the kinds present.

        The dual values of the least GPU time in which groups can do equal work of each kind. Beyond `MOST_KINDS` kinds
        some are priced, and the others cost as much as the one most like them. Same shape as `kinds`.
        """
        present = sorted(set(kinds))
        price = _prices(tuple([self._profiles[kind] for kind in present]), self.max_members)
        return price[np.searchsorted(present, kinds)]

    def _joined(self, bucket: SizeBucket, queue: _Queue) -> list[tuple[float, Group]]:
        """The groups that run already, with the waiting jobs that join them, and their worth as it is compared.

        A job joins where the larger group is worth more than the present one and more than the job alone.
        """
        kept: list[tuple[float, Group]] = []
        for group in sorted(bucket.together, key=lambda group: -self.worth(bucket, group)):
            members, worth = group, self.worth(bucket, group)
            while bucket.may_share and len(members) < self.max_members:
                found = [(value, job) for value, job in self._with_one_more(bucket, members, queue) if value > worth]
                if not found:
                    break
                worth, job = max(found)
                members = (*members, job)
                queue.remove(job)
            kept.append((inf if group in bucket.settled else worth * self._stay, members))
        return kept

    def _with_one_more(self, bucket: SizeBucket, group: Group, queue: _Queue) -> Iterator[tuple[float, int]]:
        """(worth of the group with the job, the job), for each waiting job that is worth less alone."""
        alone = self._alone(bucket, group)
        times_s = self._times_with[tuple(sorted(bucket.kinds[job] for job in group))]
        for job in queue.heads():
            kind, worth = bucket.kinds[job], bucket.worths[job]
            if kind not in times_s:
                times_s[kind] = self.iteration_s((*(bucket.kinds[member] for member in group), kind))
            value = (alone + worth * self._profiles[kind].iteration_s) / times_s[kind]
            if value > worth:
                yield value, job

    def _alone(self, bucket: SizeBucket, group: Group) -> float:
        """Worth of one iteration of every member, each at the speed that it has alone."""
        return sum(bucket.worths[job] * self._profiles[bucket.kinds[job]].iteration_s for job in group)

    def _split(self, buckets: Sequence[SizeBucket], chosen: Sequence[list[Group]], free: int) -> None:
        """Give members GPUs of their own while some are left, where that gains most per GPU; running groups stay."""
        settled = [{job for group in bucket.together for job in group} for bucket in buckets]
        offers: list[tuple[float, int, int, int]] = []

        def offer(number: int, at: int) -> None:
            bucket, group = buckets[number], chosen[number][at]
            if len(group) < 2 or bucket.gpus > free:
                return
            before = self.worth(bucket, group)
            gain, job = max(
                (
                    (self.worth(bucket, _without(group, job)) + bucket.worths[job] - before, job)
                    for job in group
                    if job not in settled[number]
                ),
                default=(0.0, -1),
            )
            if gain > 0:
                heappush(offers, (-gain, number, at, job))

        for number, groups in enumerate(chosen):
            for at in range(len(groups)):
                offer(number, at)
        while offers:
            _, number, at, job = heappop(offers)
            if buckets[number].gpus <= free:
                chosen[number][at] = _without(chosen[number][at], job)
                chosen[number].append((job,))
                free -= buckets[number].gpus
                offer(number, at)


@lru_cache(16)  # each plan needs them, mostly of the same jobs as one before
def _prices(profiles: tuple[StageProfile, ...], max_members: int) -> Floats:
    """`Packer.prices` of kinds with these profiles, one each, shape (K,)."""
    from scipy.optimize import linprog  # scipy loads in half a second

    stages = stage_table(profiles)
    shares = stages[:, 1:] / stages[:, :1]
    at = np.unique(np.linspace(0, len(profiles) - 1, min(len(profiles), MOST_KINDS)).astype(np.int64))
    chosen = np.sort(np.argsort(shares[:, 1], kind="stable")[at])
    table = _Combinations.of(tuple([profiles[kind] for kind in chosen]), max_members)
    speeds = np.zeros((len(table.members), len(chosen) * max_members + 1))
    np.put_along_axis(speeds, table.slot, table.speed, axis=1)
    of_kind = speeds[:, :-1].reshape(len(speeds), len(chosen), -1).sum(axis=2)
    solved = linprog(np.ones(len(speeds)), A_ub=-of_kind.T, b_ub=-np.ones(len(chosen)), method="highs-ds")
    if not solved.success:
        raise RuntimeError(f"every job can run alone, but the solver says: {solved.message}")
    price = np.maximum(-np.asarray(solved.ineqlin.marginals), LEAST_PRICE)
    like = np.abs(shares[:, None] - shares[chosen]).sum(axis=2).argmin(axis=1)
    return np.asarray(price[like])


class _Combinations(Struct, frozen=True, eq=False):
    """All M groups of up to n members of K kinds.

    Attributes:
        members: the kinds of each group, as positions among the K.
        slot: shape (M, n): which job each member is, kind * n + (0 for the first of its kind, 1 for the second...), and
            K * n where there is none.
        speed: shape (M, n): speed of each member, 1 if it were alone and at most, 0 where there is none.

    """

    members: tuple[tuple[int, ...], ...]
    slot: Ints
    speed: Floats

    @classmethod
    @lru_cache(1024)  # one plan for 10,000 jobs of 24 kinds asks for 500
    def of(cls, profiles: tuple[StageProfile, ...], most: int) -> _Combinations:
        """Of kinds with these profiles."""
        known = stage_table(profiles)
        members, slot = _groups_of(len(profiles), most)
        speed = np.zeros(slot.shape)
        for size in range(1, most + 1):
            of_size = slice(bisect_left(members, size, key=len), bisect_right(members, size, key=len))
            stages = known[slot[of_size, :size] // most]
            alone_s = stages[:, :, 0]
            speed[of_size, :size] = alone_s / np.maximum(iteration_times_s(stages), alone_s.max(axis=1))[:, None]
        return cls(members, slot, speed)


@cache
def _groups_of(kinds: int, most: int) -> tuple[tuple[tuple[int, ...], ...], Ints]:
    """`members` and `slot` of `_Combinations` in order of size; they depend on the number of kinds alone."""
    of_sizes = [combinations_with_replacement(range(kinds), size) for size in range(1, most + 1)]
    members = tuple(group for groups in of_sizes for group in groups)
    slot = np.full((len(members), most), kinds * most, dtype=np.int64)
    for row, group in enumerate(members):
        slot[row, : len(group)] = [kind * most + group[:at].count(kind) for at, kind in enumerate(group)]
    return members, slot


class _Queue:
    """The jobs of a bucket that have not been chosen yet, and the group of them that is worth most."""

    def __init__(self, bucket: SizeBucket, packer: Packer) -> None:
        self._packer = packer
        self._bucket = bucket
        self._most = packer.max_members if bucket.may_share else 1
        self._next: dict[int, int] = {}
        self._of_kind: dict[int, list[int]] = {}
        running = {job for group in bucket.together for job in group}
        for job, kind in enumerate(bucket.kinds):
            if job not in running:
                self._of_kind.setdefault(kind, []).append(job)
                self._next[kind] = 0
        self._heads = sorted((-bucket.worths[jobs[0]], jobs[0]) for jobs in self._of_kind.values())
        self.gpus_if_none_join = bucket.gpus * (len(bucket.kinds) - len(running) + len(bucket.together))
        self._kept: list[tuple[float, Group]] = []
        self._group: Group = ()
        self.best = 0.0

    def everyone(self) -> list[Group]:
        """All jobs: running groups as they are, every other job alone."""
        waiting = sorted(job for jobs in self._of_kind.values() for job in jobs)
        return [*self._bucket.together, *((job,) for job in waiting)]

    def heads(self) -> list[int]:
        """The first waiting job of each kind; of more than `MOST_KINDS` kinds those that are worth most."""
        return [job for _, job in self._heads[:MOST_KINDS]]

    def remove(self, job: int) -> None:
        """Take out one of `heads`; the next waiting job of its kind takes its position."""
        kind, worths = self._bucket.kinds[job], self._bucket.worths
        del self._heads[bisect_left(self._heads, (-worths[job], job))]
        self._next[kind] += 1
        if self._next[kind] < len(self._of_kind[kind]):
            head = self._of_kind[kind][self._next[kind]]
            insort(self._heads, (-worths[head], head))

    def keep(self, groups: Iterable[tuple[float, Group]]) -> None:
        """Add groups that compete with new ones at the given worths. Call it once, before `take`."""
        self._kept = sorted(groups)
        self._refresh()

    def take(self) -> Group:
        """Take out the best group."""
        group = self._group
        if self._kept and self._kept[-1][1] == group:
            self._kept.pop()
        else:
            for job in group:
                self.remove(job)
        self._refresh()
        return group

    def _refresh(self) -> None:
        self.best, self._group = self._new()
        if self._kept and self._kept[-1][0] >= self.best:
            self.best, self._group = self._kept[-1]

    def _new(self) -> tuple[float, Group]:
        """The best group of waiting jobs, of the kinds whose first jobs are worth most."""
        worths = self._bucket.worths
        heads = self.heads()
        if not heads:
            return 0.0, ()
        kinds = tuple(sorted(self._bucket.kinds[job] for job in heads))
        most = self._most
        table = self._packer.combinations(kinds, most)
        worth = np.full(len(kinds) * most + 1, -np.inf)
        worth[-1] = 0.0
        for number, kind in enumerate(kinds):
            first = self._next[kind]
            there = [worths[job] for job in self._of_kind[kind][first : first + most]]
            worth[number * most : number * most + len(there)] = there
        values = (worth[table.slot] * table.speed).sum(axis=1)
        best = int(values.argmax())
        places = [(kinds[slot // most], slot % most) for slot in table.slot[best, : len(table.members[best])].tolist()]
        return float(values[best]), tuple(self._of_kind[kind][self._next[kind] + place] for kind, place in places)


def _exchange(
    number: int,
    queue: _Queue,
    gpus: Sequence[int],
    chosen: Sequence[list[Group]],
    taken: list[tuple[int, float]],
    free: int,
) -> int:
    """Give a large group the free GPUs and those of the groups worth least, if it is worth more; returns free GPUs."""
    losers, room, lost = 0, free, 0.0
    while room < gpus[number] and losers < len(taken):
        losers += 1
        room += gpus[taken[-losers][0]]
        lost += taken[-losers][1]
    if room < gpus[number] or lost >= queue.best * gpus[number]:
        return free
    for other, _ in reversed(taken[len(taken) - losers :]):
        chosen[other].pop()
    taken[len(taken) - losers :] = [(number, queue.best * gpus[number])]
    chosen[number].append(queue.take())
    return room - gpus[number]


def _without(group: Group, job: int) -> Group:
    return tuple(one for one in group if one != job)
