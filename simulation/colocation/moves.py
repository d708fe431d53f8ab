"""A placement that moves running inference instances where that spares a start an unused GPU.

The instance starts elsewhere before it ends where it was: for a while GPUs hold it twice, and all bounds are kept with
both. Trainings stay where they are. This is simulated only; the daemon's policy `dilu` moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from msgspec import Struct

from sched_policy.snapshot import Bools, Ints
from simulation.colocation.dilu import Complementary
from simulation.colocation.instance import (
    GpuLoads,
    Hosted,
    Instance,
    InstanceKind,
    InstanceShare,
    ShareBounds,
    SharePlace,
    in_billionths,
    part_of_split,
)


class Move(Struct, frozen=True):
    """A running instance, by its key, and what it holds elsewhere before it gives up what it has."""

    key: int
    shares: tuple[InstanceShare, ...]


@runtime_checkable
class MovingPlace(SharePlace, Protocol):
    """A placement that moves what runs."""

    def moves(self, instance: Instance, loads: GpuLoads) -> tuple[Move, ...]:
        """What to move, one after another, before the instance is placed. Changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class ComplementaryMoves:
    """`Complementary` that gathers LLMs, and moves of inference instances before a start that would take unused GPUs.

    * The start is of either inference kind: if it fits on GPUs in use once one instance of kind inference has left
      there, that one moves, of several the one with the least memory. For an LLM that can be split over a node, up to
      `most_moves` of them leave that node, as few as possible.
    * Else as many GPUs are emptied as the start takes unused ones, if all that a GPU hosts can go to other GPUs in use:
      the GPU with the fewest instances first, then that with the least memory taken. At most `most_moves` moves empty a
      GPU. An instance on it takes one, or more if instances of kind inference have to leave first to give it room.
    * Else, if an LLM starts, another LLM leaves a node over which this one can be split then, of several the one with
      the least memory.

    Where an instance goes is the choice of `place` among the GPUs in use. Moves that would not lower the number of GPUs
    in use are not made. `most_moves` and the rules were chosen on generated events of 100 to 3,200 instances, of the
    seeds 0 to 5, 1000 to 1029 and 3000 to 5059: judge by others.
    """

    place: Complementary = Complementary(gathers=True)
    most_moves: int = 4

    @property
    def bounds(self) -> ShareBounds:
        """Sums of requests and limits that no GPU exceeds, at any moment of a move either."""
        return self.place.bounds

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """The GPUs for an instance and what it is charged there, None if it does not fit; without moves."""
        return self.place.choose(instance, loads)

    def moves(self, instance: Instance, loads: GpuLoads) -> tuple[Move, ...]:
        """What to move before the instance is placed; empty unless GPUs in use are fewer for it."""
        opened = _opened(self.choose(instance, loads), loads)
        if not opened:
            return ()
        search = _Search(self.place, loads)
        if instance.kind is InstanceKind.TRAINING or not search.make_room(instance, _none(loads), self.most_moves):
            search.empty(opened, self.most_moves)
        if not search.moves and instance.kind is InstanceKind.LLM_INFERENCE:
            search.displace_llm(instance)
        after = search.loads
        shares = self.choose(instance, after) if search.moves else None
        if shares is None:
            return ()
        in_use = np.count_nonzero(after.active) + _opened(shares, after)
        return tuple(search.moves) if in_use < np.count_nonzero(loads.active) + opened else ()


class _Search:
    """Moves that are tried one after another on a copy of the loads, and taken back."""

    def __init__(self, place: Complementary, loads: GpuLoads) -> None:
        self.loads = loads.copy()
        self.moves: list[Move] = []
        self._before: list[Hosted] = []
        self._place = place
        self._usable = loads.usable
        small = [hosted for hosted in loads.hosted if hosted.instance.kind is InstanceKind.INFERENCE]
        small.sort(key=lambda hosted: hosted.instance.memory_mib[0])
        self._small = {hosted.key: at for at, hosted in enumerate(small)}
        self._small_gpu: Ints = np.array([hosted.shares[0].gpu for hosted in small], dtype=np.int64)
        self._small_request_ppb: Ints = np.array([hosted.shares[0].request_ppb for hosted in small], dtype=np.int64)
        self._small_limit_ppb: Ints = np.array([hosted.shares[0].limit_ppb for hosted in small], dtype=np.int64)
        self._small_memory_mib: Ints = np.array([hosted.shares[0].memory_mib for hosted in small], dtype=np.int64)
        self._small_key = [hosted.key for hosted in small]

    def empty(self, gpus: int, most_moves: int) -> None:
        """Empty as many GPUs without trainings as possible, at most so many."""
        stuck: set[Instance] = set()
        for gpu in self._without_trainings():
            if not gpus:
                return
            if not 0 < self.loads.instances[gpu] <= most_moves:
                continue
            hosted = sorted(self.loads.on_gpu(gpu), key=lambda each: -each.instance.memory_mib[0])
            if any(_needs_more(each.instance, other) for each in hosted for other in stuck):
                continue
            if self._empty_gpu(gpu, hosted, most_moves, stuck):
                gpus -= 1
                stuck.clear()

    def make_room(self, instance: Instance, closed: Bools, most_moves: int) -> bool:
        """Move small instances away, so that the given one fits on GPUs in use that are not closed."""
        return self._make_room(instance, closed, self._in_the_way(instance, closed, most_moves))

    def displace_llm(self, llm: Instance) -> bool:
        """Move another LLM away, so that this one fits on GPUs in use."""
        return self._make_room(llm, _none(self.loads), self._llms_in_the_way(llm))

    def _make_room(self, instance: Instance, closed: Bools, in_the_way: list[list[int]]) -> bool:
        hopeless: set[Instance] = set()
        before = len(self.moves)
        for keys in in_the_way:
            leaving = [self.loads.get(key) for key in keys]
            if not hopeless.isdisjoint(hosted.instance for hosted in leaving):
                continue
            if all(self._move(hosted, self._leaving(hosted, instance, closed)) for hosted in leaving):
                if self._on_used(instance, closed) is not None:
                    return True
            elif len(self.moves) == before:
                hopeless.add(leaving[0].instance)
            self._take_back(before)
        return False

    def _without_trainings(self) -> list[int]:
        trains = np.zeros(self.loads.node.size, dtype=np.bool_)
        for hosted in self.loads.hosted:
            if hosted.instance.kind is InstanceKind.TRAINING:
                trains[[share.gpu for share in hosted.shares]] = True
        gpus = np.flatnonzero(self.loads.active & ~trains)
        found: list[int] = gpus[np.lexsort((self.loads.memory_mib[gpus], self.loads.instances[gpus]))].tolist()
        return found

    def _empty_gpu(self, gpu: int, hosted: Sequence[Hosted], most_moves: int, stuck: set[Instance]) -> bool:
        before = len(self.moves)
        closed = _none(self.loads)
        closed[gpu] = True
        for each in hosted:
            left = most_moves - (len(self.moves) - before)
            if left >= 1 and self._move(each, closed):
                continue
            if self.make_room(each.instance, self._and_its_own(closed, each), left - 1):
                self._move(each, closed)
                continue
            if len(self.moves) == before:
                stuck.add(each.instance)
            self._take_back(before)
            return False
        return True

    def _move(self, hosted: Hosted, closed: Bools) -> bool:
        """Move an instance to GPUs in use that are neither closed nor its own, if it fits there."""
        shares = self._on_used(hosted.instance, self._and_its_own(closed, hosted))
        if shares is None:
            return False
        self._before.append(self._put(hosted.key, shares))
        self.moves.append(Move(hosted.key, shares))
        return True

    def _take_back(self, first: int) -> None:
        while len(self.moves) > first:
            self._put(self.moves.pop().key, self._before.pop().shares)

    def _put(self, key: int, shares: tuple[InstanceShare, ...]) -> Hosted:
        before = self.loads.remove(key)
        self.loads.add(Hosted(key, before.instance, shares))
        if key in self._small:
            self._small_gpu[self._small[key]] = shares[0].gpu
        return before

    def _on_used(self, instance: Instance, closed: Bools) -> tuple[InstanceShare, ...] | None:
        with self._only(self.loads.active & ~closed):
            return self._place.choose(instance, self.loads)

    @contextmanager
    def _only(self, gpus: Bools) -> Iterator[None]:
        self.loads.usable = self._usable & gpus
        try:
            yield
        finally:
            self.loads.usable = self._usable

    def _and_its_own(self, closed: Bools, hosted: Hosted) -> Bools:
        closed = closed.copy()
        closed[[share.gpu for share in hosted.shares]] = True
        return closed

    def _leaving(self, hosted: Hosted, instance: Instance, closed: Bools) -> Bools:
        """Where a small instance may not go that gives room to another: for one that is split, it leaves the node."""
        if instance.kind is not InstanceKind.LLM_INFERENCE:
            return closed
        on_its_node: Bools = self.loads.node == self.loads.node[hosted.shares[0].gpu]
        return closed | on_its_node

    def _in_the_way(self, instance: Instance, closed: Bools, most: int) -> list[list[int]]:
        """Keys of at most so many small instances that would leave enough room behind, the best choice first."""
        if most < 1:
            return []
        if instance.kind is InstanceKind.LLM_INFERENCE:
            return self._in_the_way_of_split(instance, closed, most)
        gpu, free_mib = self._small_gpu, self.loads.capacity_mib - self.loads.memory_mib
        opens = ~closed[gpu] & self._fits(instance, gpu, self._small_request_ppb, self._small_limit_ppb)
        opens &= free_mib[gpu] + self._small_memory_mib >= instance.memory_mib[0]
        return [[self._small_key[at]] for at in np.flatnonzero(opens).tolist()]

    def _in_the_way_of_split(self, llm: Instance, closed: Bools, most: int) -> list[list[int]]:
        """Per node, all small instances of the GPUs that gain the LLM most memory; the fewest first."""
        part, need_mib, loads = part_of_split(llm), llm.memory_mib[0], self.loads
        here, node, free_mib = np.arange(loads.node.size), loads.node, loads.capacity_mib - loads.memory_mib
        request_ppb, limit_ppb, memory_mib, small = (
            np.bincount(self._small_gpu, weights=each, minlength=node.size).astype(np.int64)
            for each in (self._small_request_ppb, self._small_limit_ppb, self._small_memory_mib, None)
        )
        open_to = loads.active & ~closed & self._usable
        now_mib = np.where(open_to & self._fits(part, here, 0, 0), free_mib, 0)
        opens = open_to & (small > 0) & self._fits(part, here, request_ppb, limit_ppb)
        gained_mib = np.where(opens, free_mib + memory_mib - now_mib, 0)
        of_node_mib, gained_there_mib = (np.bincount(node, weights=each) for each in (now_mib, gained_mib))
        enough = (of_node_mib < need_mib) & (of_node_mib + gained_there_mib >= need_mib)
        found: list[tuple[int, int, list[int]]] = []
        for at in np.flatnonzero(enough).tolist():
            gpus = np.flatnonzero(opens & (node == at))
            gpus = gpus[np.lexsort((-gained_mib[gpus], small[gpus]))]
            reached_mib = of_node_mib[at] + np.cumsum(gained_mib[gpus])
            last = int(np.argmax(reached_mib >= need_mib))
            leave = np.flatnonzero(np.isin(self._small_gpu, gpus[: last + 1]))
            if leave.size <= most:
                found.append((leave.size, int(reached_mib[last]), [self._small_key[k] for k in leave.tolist()]))
        return [keys for _, _, keys in sorted(found)]

    def _llms_in_the_way(self, llm: Instance) -> list[list[int]]:
        """Keys of LLMs without one of which its node has enough memory for another; the least memory first."""
        part, loads, free_mib = part_of_split(llm), self.loads, self.loads.capacity_mib - self.loads.memory_mib
        llms = [hosted for hosted in loads.hosted if hosted.instance.kind is InstanceKind.LLM_INFERENCE]
        others = sorted(llms, key=lambda hosted: hosted.instance.memory_mib[0])
        rows = [
            (at, share.gpu, share.request_ppb, share.limit_ppb, share.memory_mib)
            for at, hosted in enumerate(others)
            for share in hosted.shares
        ]
        at, gpu, request_ppb, limit_ppb, memory_mib = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        open_to = loads.active & self._usable
        now_mib = np.where(open_to & self._fits(part, np.arange(loads.node.size), 0, 0), free_mib, 0)
        # A GPU that hosts nothing else is unused once the LLM has left.
        opens = open_to[gpu] & (loads.instances[gpu] > 1) & self._fits(part, gpu, request_ppb, limit_ppb)
        gained_mib = np.where(opens, free_mib[gpu] + memory_mib, 0) - now_mib[gpu]
        of_node_mib = np.bincount(loads.node, weights=now_mib)
        here_mib = of_node_mib[loads.node[[hosted.shares[0].gpu for hosted in others]]]
        enough = np.flatnonzero(here_mib + np.bincount(at, weights=gained_mib) >= llm.memory_mib[0])
        return [[others[each].key] for each in enough.tolist() if not _needs_more(others[each].instance, llm)]

    def _fits(self, instance: Instance, gpu: Ints, less_request_ppb: Ints | int, less_limit_ppb: Ints | int) -> Bools:
        """Whether requests and limits let the instance onto these GPUs once so much has left them."""
        bounds = self._place.bounds
        request_ppb = self.loads.request_ppb[gpu] - less_request_ppb + instance.request_ppb
        limit_ppb = self.loads.limit_ppb[gpu] - less_limit_ppb + instance.limit_ppb
        fits: Bools = (request_ppb <= in_billionths(bounds.request)) & (limit_ppb <= in_billionths(bounds.limit))
        return fits


def _opened(shares: tuple[InstanceShare, ...] | None, loads: GpuLoads) -> int:
    return sum(not loads.instances[share.gpu] for share in shares or ())


def _needs_more(one: Instance, other: Instance) -> bool:
    if one.kind is not other.kind or one.request < other.request or one.limit < other.limit:
        return False
    return one.memory_mib[0] >= other.memory_mib[0]


def _none(loads: GpuLoads) -> Bools:
    return np.zeros(loads.node.size, dtype=np.bool_)
