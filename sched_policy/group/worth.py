"""Which jobs run, and which of them together: groups that do the most for the jobs' completion.

The objective is progress weighted by worth. A group of jobs of g GPUs whose members finish an iteration every T seconds
is worth

    g * sum_i w_i * t_i / T,        t_i: seconds of an iteration of member i alone, w_i: its worth per GPU,

since t_i / T is the speed of member i beside the others. Groups are chosen greedily by worth per GPU until the GPUs are
given away (the fractional optimum of that knapsack); then, while GPUs are left, members are given GPUs of their own
where that gains most. Unlike a matching for efficiency (`rounds`) this also says who should not run yet, and puts jobs
together only if what they do together is worth more than the best of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations_with_replacement

import numpy as np
from msgspec import Struct

from sched_policy.group.interleave import MAX_MEMBERS, iteration_times_s, stage_table
from sched_policy.group.rounds import Group, Paces
from sched_policy.model import StageProfile
from sched_policy.snapshot import Floats, Ints

LEAST_GPU_S = 10.0
"""Jobs with less service left than this are alike."""
MOST_KINDS = 8
"""Kinds of jobs among which the members of a group are sought at a time; there are 494 groups of 1 to 4 of so many."""


class Crowd(Struct, frozen=True):
    """Jobs that want the same number of GPUs, in order of priority; `kinds` number the profiles of a `Packer`.

    Attributes:
        gpus: GPUs of each job.
        kinds: the kind of each job.
        worths: what a second of full speed of each job is worth per GPU, above 0.
        together: groups that run already, as positions in `kinds`: they are kept or given up as a whole.
        may_share: whether they share GPUs at all.

    """

    gpus: int
    kinds: tuple[int, ...]
    worths: tuple[float, ...]
    together: tuple[Group, ...] = ()
    may_share: bool = True


def worth_of(service_gpu_s: Floats) -> Floats:
    """What a second of full speed of jobs is worth per GPU, given what they need until they end; same shape.

    One over the square root of the service: between 1, where only throughput counts, and 1 / service, where a short job
    never shares with a long one. Chosen on Muri's trace1 and trace1_pr (`benchmarks/share.py`).
    """
    return np.asarray((service_gpu_s + LEAST_GPU_S) ** -0.5)


class Packer(Paces):
    """Chooses groups, and remembers the speeds of groups."""

    def __init__(self, max_members: int = MAX_MEMBERS, stay: float = 1.0) -> None:
        """`stay` is by how much a group that runs already counts more than one that would have to be started."""
        super().__init__(max_members)
        self._stay = stay
        self._tables: dict[tuple[tuple[int, ...], int], _Combinations] = {}

    def pack(self, crowds: Sequence[Crowd], capacity_gpus: int) -> list[list[Group]]:
        """The groups of each crowd that should run, most worth first; together they want `capacity_gpus` at most."""
        queues = [_Queue(crowd, self) for crowd in crowds]
        if sum(crowd.gpus * queue.running_alone for crowd, queue in zip(crowds, queues, strict=True)) <= capacity_gpus:
            return [queue.everyone() for queue in queues]
        for crowd, queue in zip(crowds, queues, strict=True):
            queue.keep(self._joined(crowd, queue))
        free = capacity_gpus
        chosen: list[list[Group]] = [[] for _ in crowds]
        offers = [(-queue.best, number) for number, queue in enumerate(queues) if queue.best > 0]
        heapify(offers)
        while offers and free > 0:
            _, number = heappop(offers)
            gpus, queue = crowds[number].gpus, queues[number]
            if gpus > free:
                continue  # room only gets less
            chosen[number].append(queue.take())
            free -= gpus
            if queue.best > 0:
                heappush(offers, (-queue.best, number))
        if free > 0:
            self._split(crowds, chosen, free)
        return chosen

    def worth(self, crowd: Crowd, group: Group) -> float:
        """Worth of a group per GPU."""
        kinds = [crowd.kinds[place] for place in group]
        alone = sum(crowd.worths[place] * self._profiles[crowd.kinds[place]].iteration_s for place in group)
        return alone / self.iteration_s(kinds)

    def combinations(self, kinds: tuple[int, ...], most: int) -> _Combinations:
        """All groups of up to so many members of these kinds."""
        if (kinds, most) not in self._tables:
            self._tables[kinds, most] = _Combinations.of([self._profiles[kind] for kind in kinds], most)
        return self._tables[kinds, most]

    def _joined(self, crowd: Crowd, queue: _Queue) -> list[tuple[float, Group]]:
        """The groups that run already, with the waiting jobs that may join them, and what each counts for.

        A job joins where that is worth more than the group and more than the job would be in its place.
        """
        kept: list[tuple[float, Group]] = []
        for group in sorted(crowd.together, key=lambda group: -self.worth(crowd, group)):
            members, worth = group, self.worth(crowd, group)
            while crowd.may_share and len(members) < self.max_members:
                found = [(self.worth(crowd, (*members, place)), place) for place in queue.heads()]
                found = [(value, place) for value, place in found if value > max(worth, crowd.worths[place])]
                if not found:
                    break
                worth, place = max(found)
                members = (*members, place)
                queue.remove(place)
            kept.append((worth * self._stay, members))
        return kept

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
        members: list[tuple[int, ...]] = []
        slots: list[Ints] = []
        speeds: list[Floats] = []
        for size in range(1, most + 1):
            of_size = list(combinations_with_replacement(range(len(profiles)), size))
            kinds = np.array(of_size, dtype=np.int64)
            stages = known[kinds]
            slot = np.full((len(kinds), most), len(profiles) * most, dtype=np.int64)
            speed = np.zeros((len(kinds), most))
            for member in range(size):
                slot[:, member] = kinds[:, member] * most + (kinds[:, :member] == kinds[:, [member]]).sum(axis=1)
            speed[:, :size] = stages[:, :, 0] / iteration_times_s(stages)[:, None]
            members += of_size
            slots.append(slot)
            speeds.append(speed)
        return cls(tuple(members), np.concatenate(slots), np.concatenate(speeds))


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
        return [places[self._next[kind]] for kind, places in self._of_kind.items() if self._next[kind] < len(places)]

    def remove(self, place: int) -> None:
        """One of the heads is no candidate any more."""
        self._next[self._crowd.kinds[place]] += 1

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


def _without(group: Group, place: int) -> Group:
    return tuple(one for one in group if one != place)
