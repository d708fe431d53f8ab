"""Muri (SIGCOMM 2022): groups of jobs that interleave their stages on the same GPUs.

The grouping is that of the paper and its simulator (candidates in order of priority, multi-round matching). What the
simulator has for free costs something here: a job that changes its group or its GPUs has to be restarted, so a group
stays on the GPUs of members that run, and is left alone for a quantum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.columns import Ints
from sched_policy.group.base import Shared
from sched_policy.group.gpus import Gpu, GpuMap
from sched_policy.group.interleave import MAX_MEMBERS
from sched_policy.group.rounds import Bucket, Grouper
from sched_policy.interference import Interference, Interleaving
from sched_policy.model import GpuRequest, JobState
from sched_policy.place.base import Place, Room
from sched_policy.plan import Group, Preemption, Ranking, Start
from sched_policy.snapshot import Snapshot

_GROUPS_AHEAD = 8

Shape = tuple[GpuRequest, str]
Rows = tuple[int, ...]  # positions in the snapshot
Placed = dict[Rows, tuple[Gpu, ...]]


class Interleave(Struct, frozen=True):
    """Groups of up to `max_members` jobs of equal shape, as large as it takes for the candidates to fit the cluster.

    Attributes:
        max_members: jobs per group at most.
        quantum_s: a started job, and who shares its GPUs, is left alone for this long.

    """

    max_members: int = MAX_MEMBERS
    quantum_s: float = 600.0
    interference: ClassVar[Interference] = Interleaving()

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Shared:
        """Choose candidates, group them, give groups GPUs, and say who has to start and who has to go."""
        held = GpuMap(snapshot)
        settled = _settled(snapshot, held, self.quantum_s)
        movable = [row for row in ranking.rows.tolist() if row not in settled and _may_move(snapshot, row)]
        free = GpuMap(snapshot)  # what is left for groups: all GPUs but those of settled jobs
        for row in sorted(settled):
            _close(free, held.gpus(row))
        groups = self._groups(snapshot, movable, held, free, place)
        placed = _place(snapshot, groups, held, free, place)
        shared = _carry_out(snapshot, _spread(snapshot, placed, held, free, place), held, movable)
        chosen = {row for group in placed for row in group}
        left = (row for row in movable if row not in chosen and not held.gpus(row) and _may_be_grouped(snapshot, row))
        return replace(shared, groups=(*shared.groups, *self._ahead(snapshot, left)))

    def _ahead(self, snapshot: Snapshot, rows: Iterable[int]) -> list[Group]:
        """The groups that the next waiting jobs would be if GPUs came free for them.

        Nobody is asked before Slurm gives GPUs that have come free to the next in the queue, so who suits whom has to
        show in the order of those that wait.
        """
        shapes: dict[Shape, list[int]] = {}
        for row in islice(rows, self.max_members * _GROUPS_AHEAD):
            shapes.setdefault((snapshot.jobs[row].request, snapshot.jobs[row].partition), []).append(row)
        grouper = Grouper(self.max_members)
        groups: list[Rows] = []
        for (request, _partition), members in shapes.items():
            kinds = tuple(grouper.kind(profile) for row in members if (profile := snapshot.jobs[row].profile))
            fewest = -(-len(members) // self.max_members) * request.total
            (found,) = grouper.groups([Bucket(request.total, kinds)], fewest)
            groups += [tuple(members[position] for position in group) for group in found if len(group) > 1]
        why = "their stages use different resources; they wait for GPUs"
        return [Group(tuple(snapshot.jobs[row].job_id for row in group), why) for group in groups]

    def _groups(
        self, snapshot: Snapshot, movable: Sequence[int], held: GpuMap, free: GpuMap, place: Place
    ) -> list[Rows]:
        """Groups of candidates as positions in the snapshot. Candidates that run together stay together."""
        grouper = Grouper(self.max_members)
        known: list[tuple[list[int], Bucket]] = []
        alone: list[Rows] = []
        capacity = int(free.open.sum())
        for (request, _partition), rows in self._candidates(snapshot, movable, free, place).items():
            members = [row for row in rows if _may_be_grouped(snapshot, row)]
            strangers = [(row,) for row in rows if not _may_be_grouped(snapshot, row)]  # they share with nobody
            alone.extend(strangers)
            capacity -= request.total * len(strangers)
            kinds = tuple(grouper.kind(profile) for row in members if (profile := snapshot.jobs[row].profile))
            known.append((members, Bucket(request.total, kinds, _together(members, held))))
        merged = grouper.groups([bucket for _, bucket in known], capacity)
        for (members, _), groups in zip(known, merged, strict=True):
            alone.extend(tuple(members[position] for position in group) for group in groups)
        return alone

    def _candidates(
        self, snapshot: Snapshot, movable: Sequence[int], free: GpuMap, place: Place
    ) -> dict[Shape, list[int]]:
        """The jobs that may share: each slot that fits admits the next `max_members` jobs of its shape."""
        shapes: dict[Shape, list[int]] = {}
        for row in movable:
            shapes.setdefault((snapshot.jobs[row].request, snapshot.jobs[row].partition), []).append(row)
        room: Ints = free.open.sum(axis=1)
        no_tasks = np.zeros_like(room)
        slots: dict[Shape, int] = dict.fromkeys(shapes, 0)
        rank_in_shape = dict.fromkeys(shapes, 0)
        full: set[Shape] = set()
        for row in movable:
            shape = (snapshot.jobs[row].request, snapshot.jobs[row].partition)
            rank_in_shape[shape] += 1
            if shape in full or rank_in_shape[shape] <= self.max_members * slots[shape]:
                continue  # no room, or admitted with an earlier slot
            usable = np.where(snapshot.nodes.usable(shape[1]), room, 0)
            placed = place.place(shape[0], Room(usable, no_tasks, snapshot.nodes))
            if placed is None:
                full.add(shape)
                continue
            slots[shape] += 1
            for node, gpus in placed:
                room[node] -= gpus
        return {shape: rows[: self.max_members * slots[shape]] for shape, rows in shapes.items() if slots[shape]}


def _settled(snapshot: Snapshot, held: GpuMap, quantum_s: float) -> set[int]:
    """Running jobs that stay where they are: without consent, in their quantum, leaving; and who shares with them."""
    columns = snapshot.columns
    stays = {
        row
        for row in columns.holds.nonzero()[0].tolist()
        if not _may_move(snapshot, row) or columns.run_s[row] < quantum_s
    }
    gpus = {gpu for row in stays for gpu in held.gpus(row)}
    return stays | {row for row in columns.holds.nonzero()[0].tolist() if not gpus.isdisjoint(held.gpus(row))}


def _may_move(snapshot: Snapshot, row: int) -> bool:
    job = snapshot.jobs[row]
    if not snapshot.columns.holds[row]:
        return bool(snapshot.columns.waits[row])
    return job.may_yield and not job.yielding and job.state is JobState.RUNNING


def _may_be_grouped(snapshot: Snapshot, row: int) -> bool:
    """Whether others may share its GPUs, and its stages are known, without which nothing tells who suits it."""
    return snapshot.jobs[row].may_share and snapshot.jobs[row].profile is not None


def _together(rows: Sequence[int], held: GpuMap) -> tuple[Rows, ...]:
    """Positions in `rows` of jobs that run on the same GPUs; jobs that wait are alone."""
    groups: dict[object, list[int]] = {}
    for position, row in enumerate(rows):
        groups.setdefault(held.gpus(row) or row, []).append(position)
    return tuple(tuple(group) for group in groups.values())


def _place(snapshot: Snapshot, groups: Sequence[Rows], held: GpuMap, free: GpuMap, place: Place) -> Placed:
    """GPUs of each group that fits: those on which members run, else unused ones before others; largest first."""
    placed: Placed = {}
    for group in groups:
        there = [held.gpus(row) for row in group if held.gpus(row)]
        for gpus in sorted(set(there), key=lambda gpus: (-there.count(gpus), gpus)):
            if all(free.open[gpu] for gpu in gpus):
                placed[group] = gpus
                _close(free, gpus)
                break
    in_use = (held.jobs > 0).astype(np.float64)
    for group in sorted((g for g in groups if g not in placed), key=lambda g: -snapshot.jobs[g[0]].request.total):
        job = snapshot.jobs[group[0]]
        found = free.find(job.request, job.partition, place, in_use)
        if found is not None:
            placed[group] = found
            _close(free, found)
    return placed


def _spread(snapshot: Snapshot, placed: Placed, held: GpuMap, free: GpuMap, place: Place) -> Placed:
    """While GPUs are left over, a member that would only now join a group gets its own instead."""
    result: Placed = {}
    in_use = (held.jobs > 0).astype(np.float64)
    too_large: set[Shape] = set()
    for group, gpus in placed.items():
        stay = list(group)
        for row in reversed(group):
            shape = (snapshot.jobs[row].request, snapshot.jobs[row].partition)
            if len(stay) == 1 or held.gpus(row) or shape in too_large:
                continue
            own = free.find(*shape, place, in_use)
            if own is None:
                too_large.add(shape)
                continue
            stay.remove(row)
            _close(free, own)
            result[(row,)] = own
        result[tuple(stay)] = gpus
    return result


def _close(free: GpuMap, gpus: Iterable[Gpu]) -> None:
    for gpu in gpus:
        free.open[gpu] = False


def _carry_out(snapshot: Snapshot, placed: Placed, held: GpuMap, movable: Sequence[int]) -> Shared:
    """Members start where nobody is in the way; who runs elsewhere, or in no group, makes room."""
    home = {row: gpus for group, gpus in placed.items() for row in group}
    leaving = [row for row in movable if held.gpus(row) and held.gpus(row) != home.get(row)]
    in_the_way = {gpu for row in leaving for gpu in held.gpus(row)}
    starts = [
        Start(snapshot.jobs[row].job_id, held.named(gpus), f"interleaves with {len(group) - 1} job(s)")
        for group, gpus in placed.items()
        for row in group
        if not held.gpus(row) and in_the_way.isdisjoint(gpus)
    ]
    groups = [
        Group(tuple(snapshot.jobs[row].job_id for row in group), "their stages use different resources")
        for group in placed
        if len(group) > 1
    ]
    why = "its group changes, or jobs before it need the GPUs"
    preemptions = [Preemption(snapshot.jobs[row].job_id, why) for row in leaving]
    return Shared(tuple(starts), tuple(groups), tuple(preemptions))
