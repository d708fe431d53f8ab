"""Which jobs run, and which of them together: groups that do the most for the jobs' completion.

The objective is progress weighted by worth. A group of jobs of g GPUs whose members finish an iteration every T seconds
is worth

    g * sum_i w_i * t_i / T,        t_i: seconds of an iteration of member i alone, w_i: its worth per GPU,

since t_i / T is the speed of member i beside the others. Groups are chosen greedily by worth per GPU until the GPUs are
given away (the fractional optimum of that knapsack); then, while GPUs are left, members are given GPUs of their own
where that gains most. Unlike a matching for efficiency (`rounds`) this also says who should not run yet, and puts jobs
together only if what they do together is worth more than the best of them alone.

What a job is worth (`worth_of`) is how much waiting a second of its progress saves: its own, and that of every job
behind it for the GPU time that it will take. That time is the job's service times the price of its kind, the share of a
GPU that it costs among good partners (`Packer.prices`): a job that suits others costs less than one that suits nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import combinations_with_replacement
from math import inf

import numpy as np
from msgspec import Struct

from sched_policy.group.interleave import MAX_MEMBERS, iteration_times_s, stage_table
from sched_policy.group.rounds import Group, Kind, Paces
from sched_policy.model import StageProfile
from sched_policy.snapshot import Floats, Ints

LEAST_PRICE = 0.2
"""A second of full speed costs no smaller share of a GPU."""
MOST_KINDS = 8
"""Kinds of jobs among which the members of a group are sought at a time; there are 494 groups of 1 to 4 of so many."""


class Crowd(Struct, frozen=True):
    """Jobs that want the same number of GPUs, in order of priority; `kinds` number the profiles of a `Packer`.

    Attributes:
        gpus: GPUs of each job.
        kinds: the kind of each job.
        worths: what a second of full speed of each job is worth per GPU, above 0.
        together: groups that run already, as positions in `kinds`: they are kept or given up as a whole.
        settled: those of `together` that are kept in any case.
        may_share: whether they share GPUs at all.

    """

    gpus: int
    kinds: tuple[int, ...]
    worths: tuple[float, ...]
    together: tuple[Group, ...] = ()
    settled: frozenset[Group] = frozenset()
    may_share: bool = True


def worth_of(service_gpu_s: Floats, gpus: Ints, price: Floats, capacity_gpus: int, own: float = 1.0) -> Floats:
    """What a second of full speed of each of N jobs is worth per GPU, shape (N,).

    In the fluid relaxation, where jobs are served one after the other in order of the GPU time they cost, a second of a
    job delays all that cost more by `price * gpus / capacity_gpus`: the dual of its service.

    Args:
        service_gpu_s: what each needs until it ends, shape (N,).
        gpus: GPUs of each, shape (N,).
        price: of each one's kind, see `Packer.prices`, shape (N,).
        capacity_gpus: GPUs that are given away, at least 1.
        own: what a second of a job's own waiting counts for.

    """
    cost_gpu_s = price * service_gpu_s
    behind = cost_gpu_s.size - np.searchsorted(np.sort(cost_gpu_s), cost_gpu_s, side="right")
    return np.asarray(own / gpus + price * behind / capacity_gpus)


class Packer(Paces):
    """Chooses groups, and remembers the speeds of groups."""

    def __init__(self, max_members: int = MAX_MEMBERS, stay: float = 1.0) -> None:
        """`stay` is by how much a group that runs already counts more than one that would have to be started."""
        super().__init__(max_members)
        self._stay = stay
        self._tables: dict[tuple[tuple[int, ...], int], _Combinations] = {}
        self._prices: dict[tuple[int, ...], Floats] = {}
        self._paces_with: dict[Kind, dict[int, float]] = defaultdict(dict)  # of a group and one kind more

    def pack(self, crowds: Sequence[Crowd], capacity_gpus: int) -> list[list[Group]]:
        """The groups of each crowd that should run, most worth first; together they want `capacity_gpus` at most."""
        queues = [_Queue(crowd, self) for crowd in crowds]
        if sum(crowd.gpus * queue.running_alone for crowd, queue in zip(crowds, queues, strict=True)) <= capacity_gpus:
            return [queue.everyone() for queue in queues]
        for crowd, queue in zip(crowds, queues, strict=True):
            queue.keep(self._joined(crowd, queue))
        free = capacity_gpus
        chosen: list[list[Group]] = [[] for _ in crowds]
        taken: list[tuple[int, float]] = []  # crowd and worth of each chosen group, in falling worth per GPU
        too_large: list[int] = []
        offers = [(-queue.best, number) for number, queue in enumerate(queues) if queue.best > 0]
        heapify(offers)
        while offers and free > 0:
            _, number = heappop(offers)
            gpus, queue = crowds[number].gpus, queues[number]
            if gpus > free:
                too_large.append(number)  # room only gets less
                continue
            taken.append((number, queue.best * gpus))
            chosen[number].append(queue.take())
            free -= gpus
            if queue.best > 0:
                heappush(offers, (-queue.best, number))
        for number in too_large if free > 0 else ():
            free = _exchange(number, queues[number], [crowd.gpus for crowd in crowds], chosen, taken, free)
        if free > 0:
            self._split(crowds, chosen, free)
        return chosen

    def worth(self, crowd: Crowd, group: Group) -> float:
        """Worth of a group per GPU."""
        kinds = [crowd.kinds[place] for place in group]
        return self._alone(crowd, group) / self.iteration_s(kinds)

    def combinations(self, kinds: tuple[int, ...], most: int) -> _Combinations:
        """All groups of up to so many members of these kinds."""
        if (kinds, most) not in self._tables:
            self._tables[kinds, most] = _Combinations.of([self._profiles[kind] for kind in kinds], most)
        return self._tables[kinds, most]

    def prices(self, kinds: Sequence[int]) -> Floats:
        """The share of a GPU that a second of full speed of each job costs, among partners of the kinds there are.

        The dual of the least GPU time in which equal work of each kind can be done by groups. Of very many kinds, some
        are priced, and the others cost as much as the one most like them. Same shape as `kinds`.
        """
        present = tuple(sorted(set(kinds)))
        if present not in self._prices:
            self._prices[present] = self._priced(present)
        return self._prices[present][np.searchsorted(present, kinds)]

    def _priced(self, kinds: tuple[int, ...]) -> Floats:
        from scipy.optimize import linprog  # scipy loads in half a second

        stages = stage_table([self._profiles[kind] for kind in kinds])
        shares = stages[:, 1:] / stages[:, :1]
        at = np.unique(np.linspace(0, len(kinds) - 1, min(len(kinds), MOST_KINDS)).astype(np.int64))
        chosen = np.argsort(shares[:, 1], kind="stable")[at]
        table = self.combinations(tuple(sorted(kinds[place] for place in chosen)), self.max_members)
        chosen = np.sort(chosen)
        speeds = np.zeros((len(table.members), len(chosen) * self.max_members + 1))
        np.put_along_axis(speeds, table.slot, table.speed, axis=1)
        of_kind = speeds[:, :-1].reshape(len(speeds), len(chosen), -1).sum(axis=2)
        solved = linprog(np.ones(len(speeds)), A_ub=-of_kind.T, b_ub=-np.ones(len(chosen)), method="highs-ds")
        if not solved.success:
            raise RuntimeError(f"every job can run alone, but the solver says: {solved.message}")
        price = np.maximum(-np.asarray(solved.ineqlin.marginals), LEAST_PRICE)
        like = np.abs(shares[:, None] - shares[chosen]).sum(axis=2).argmin(axis=1)
        return np.asarray(price[like])

    def _joined(self, crowd: Crowd, queue: _Queue) -> list[tuple[float, Group]]:
        """The groups that run already, with the waiting jobs that may join them, and what each counts for.

        A job joins where that is worth more than the group and more than the job would be in its place.
        """
        kept: list[tuple[float, Group]] = []
        for group in sorted(crowd.together, key=lambda group: -self.worth(crowd, group)):
            members, worth = group, self.worth(crowd, group)
            while crowd.may_share and len(members) < self.max_members:
                found = [(value, place) for value, place in self._with_one_more(crowd, members, queue) if value > worth]
                if not found:
                    break
                worth, place = max(found)
                members = (*members, place)
                queue.remove(place)
            kept.append((inf if group in crowd.settled else worth * self._stay, members))
        return kept

    def _with_one_more(self, crowd: Crowd, group: Group, queue: _Queue) -> Iterator[tuple[float, int]]:
        """What the group would be worth with each of the waiting jobs to whom that is more than its own place."""
        alone = self._alone(crowd, group)
        paces_s = self._paces_with[tuple(sorted(crowd.kinds[place] for place in group))]
        for place in queue.heads():
            kind, worth = crowd.kinds[place], crowd.worths[place]
            if kind not in paces_s:
                paces_s[kind] = self.iteration_s((*(crowd.kinds[member] for member in group), kind))
            value = (alone + worth * self._profiles[kind].iteration_s) / paces_s[kind]
            if value > worth:
                yield value, place

    def _alone(self, crowd: Crowd, group: Group) -> float:
        """Worth of an iteration of every member alone."""
        return sum(crowd.worths[place] * self._profiles[crowd.kinds[place]].iteration_s for place in group)

    def _split(self, crowds: Sequence[Crowd], chosen: Sequence[list[Group]], free: int) -> None:
        """Give members GPUs of their own while some are left, where it gains most per GPU; who runs together stays."""
        settled = [{place for group in crowd.together for place in group} for crowd in crowds]
        offers: list[tuple[float, int, int, int]] = []

        def offer(number: int, position: int) -> None:
            crowd, group = crowds[number], chosen[number][position]
            if len(group) < 2 or crowd.gpus > free:
                return
            before = self.worth(crowd, group)
            gain, place = max(
                (
                    (self.worth(crowd, _without(group, place)) + crowd.worths[place] - before, place)
                    for place in group
                    if place not in settled[number]
                ),
                default=(0.0, -1),
            )
            if gain > 0:
                heappush(offers, (-gain, number, position, place))

        for number, groups in enumerate(chosen):
            for position in range(len(groups)):
                offer(number, position)
        while offers:
            _, number, position, place = heappop(offers)
            if crowds[number].gpus <= free:
                chosen[number][position] = _without(chosen[number][position], place)
                chosen[number].append((place,))
                free -= crowds[number].gpus
                offer(number, position)


class _Combinations(Struct, frozen=True, eq=False):
    """All M groups of up to n members of K kinds.

    Attributes:
        members: the kinds of each group, as positions among the K.
        slot: shape (M, n): which job each member is, kind * n + (0 for the first of its kind, 1 for the second...), and
            K * n where there is none.
        speed: shape (M, n): speed of each member, 1 if it were alone, 0 where there is none.

    """

    members: tuple[tuple[int, ...], ...]
    slot: Ints
    speed: Floats

    @classmethod
    def of(cls, profiles: Sequence[StageProfile], most: int) -> _Combinations:
        known = stage_table(profiles)
        members, slot = _groups_of(len(profiles), most)
        speed = np.zeros(slot.shape)
        for size in range(1, most + 1):
            of_size = [row for row, group in enumerate(members) if len(group) == size]
            stages = known[np.array(members[of_size[0] : of_size[-1] + 1])]
            speed[of_size, :size] = stages[:, :, 0] / iteration_times_s(stages)[:, None]
        return cls(members, slot, speed)


@cache
def _groups_of(kinds: int, most: int) -> tuple[tuple[tuple[int, ...], ...], Ints]:
    """`members` and `slot` of `_Combinations`, which are the same for any so many kinds; by size."""
    of_sizes = [combinations_with_replacement(range(kinds), size) for size in range(1, most + 1)]
    members = tuple(group for groups in of_sizes for group in groups)
    slot = np.full((len(members), most), kinds * most, dtype=np.int64)
    for row, group in enumerate(members):
        slot[row, : len(group)] = [kind * most + group[:place].count(kind) for place, kind in enumerate(group)]
    return members, slot


class _Queue:
    """The jobs of a crowd that have not been chosen yet, and the group of them that is worth most."""

    def __init__(self, crowd: Crowd, packer: Packer) -> None:
        self._packer = packer
        self._crowd = crowd
        self._most = packer.max_members if crowd.may_share else 1
        self._next: dict[int, int] = {}
        self._of_kind: dict[int, list[int]] = {}
        running = {place for group in crowd.together for place in group}
        for place, kind in enumerate(crowd.kinds):
            if place not in running:
                self._of_kind.setdefault(kind, []).append(place)
                self._next[kind] = 0
        self._heads = {kind: places[0] for kind, places in self._of_kind.items()}
        self.running_alone = len(crowd.kinds) - len(running) + len(crowd.together)
        self._kept: list[tuple[float, Group]] = []
        self._group: Group = ()
        self.best = 0.0

    def everyone(self) -> list[Group]:
        """All jobs: those that run as they are, the others alone."""
        waiting = sorted(place for places in self._of_kind.values() for place in places)
        return [*self._crowd.together, *((place,) for place in waiting)]

    def heads(self) -> list[int]:
        """The first waiting job of each kind."""
        return list(self._heads.values())

    def remove(self, place: int) -> None:
        """One of the heads is no candidate any more."""
        kind = self._crowd.kinds[place]
        self._next[kind] += 1
        if self._next[kind] < len(self._of_kind[kind]):
            self._heads[kind] = self._of_kind[kind][self._next[kind]]
        else:
            del self._heads[kind]

    def keep(self, groups: Iterable[tuple[float, Group]]) -> None:
        """What counts as much as new groups of that worth; called once, after which groups can be taken."""
        self._kept = sorted(groups)
        self._refresh()

    def take(self) -> Group:
        """The best group, which is none of the candidates any more."""
        group = self._group
        if self._kept and self._kept[-1][1] == group:
            self._kept.pop()
        else:
            for place in group:
                self.remove(place)
        self._refresh()
        return group

    def _refresh(self) -> None:
        self.best, self._group = self._new()
        if self._kept and self._kept[-1][0] >= self.best:
            self.best, self._group = self._kept[-1]

    def _new(self) -> tuple[float, Group]:
        """The best group of jobs that wait, of the kinds whose first jobs are worth most."""
        worths = self._crowd.worths
        heads = self.heads()
        if not heads:
            return 0.0, ()
        if len(heads) > MOST_KINDS:
            heads = sorted(heads, key=lambda place: -worths[place])[:MOST_KINDS]
        kinds = tuple(sorted(self._crowd.kinds[place] for place in heads))
        most = self._most
        table = self._packer.combinations(kinds, most)
        worth = np.full(len(kinds) * most + 1, -np.inf)
        worth[-1] = 0.0
        for number, kind in enumerate(kinds):
            first = self._next[kind]
            there = [worths[place] for place in self._of_kind[kind][first : first + most]]
            worth[number * most : number * most + len(there)] = there
        values = (worth[table.slot] * table.speed).sum(axis=1)
        best = int(values.argmax())
        ahead = {kind: self._next[kind] for kind in kinds}
        group = []
        for member in table.members[best]:
            kind = kinds[member]
            group.append(self._of_kind[kind][ahead[kind]])
            ahead[kind] += 1
        return float(values[best]), tuple(group)


def _exchange(
    number: int,
    queue: _Queue,
    gpus: Sequence[int],
    chosen: Sequence[list[Group]],
    taken: list[tuple[int, float]],
    free: int,
) -> int:
    """Give a large group the GPUs that are left and those of the groups worth least, if it is worth more; GPUs left."""
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


def _without(group: Group, place: int) -> Group:
    return tuple(one for one in group if one != place)
