"""Muri (SIGCOMM 2022): groups of jobs that interleave their stages on the same GPUs.

The grouping is that of the paper and its simulator (candidates in order of priority, multi-round matching). What the
simulator has for free costs something here: a job that changes its group or its GPUs has to be restarted, so a group
stays on the GPUs of members that run, and is left alone for a quantum. Jobs that share with nobody are groups of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.group.gpus import Gpu, GpuMap
from sched_policy.group.interleave import MAX_MEMBERS
from sched_policy.group.rounds import Bucket, Grouper
from sched_policy.group.worth import Crowd, Packer, worth_of
from sched_policy.model import GpuRequest, StageProfile
from sched_policy.place import Place, Room
from sched_policy.plan import Group, Plan, Preemption, Ranking, Start
from sched_policy.snapshot import Ints, Snapshot

_GROUPS_AHEAD = 8
_OVERDUE = 100.0
"""How many times the best job an overdue one is worth: it runs next, and shares with none but its like."""

Shape = tuple[GpuRequest, str, bool]
"""What the jobs of a group have in common: request, partition, and whether they share GPUs at all."""
Rows = tuple[int, ...]  # positions in the snapshot
Placed = dict[Rows, tuple[Gpu, ...]]


class Interleave(Struct, frozen=True):
    """Groups of up to `max_members` jobs of equal shape, as large as it takes for the candidates to fit the cluster.

    Attributes:
        max_members: jobs per group at most.
        quantum_s: a job, and who shares its GPUs, is left alone for this long after the first report of each run (after
            its start, if it never reports).

    """

    max_members: int = MAX_MEMBERS
    quantum_s: float = 600.0

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Choose candidates, group them, give groups GPUs, and say who has to start and who has to go.

        Where somebody has to go, waiting jobs that may not displace others are left to Slurm.
        """
        held = GpuMap(snapshot)
        settled = _settled(snapshot, held, self.quantum_s)
        movable = [row for row in ranking.rows.tolist() if row not in settled and _may_move(snapshot, held, row)]
        shared = self._shared(snapshot, ranking, movable, settled, held, place)
        displacing = [row for row in movable if held.gpus(row) or snapshot.jobs[row].may_displace]
        if shared.preemptions and len(displacing) < len(movable):
            return self._shared(snapshot, ranking, displacing, settled, held, place)
        return shared

    def _shared(
        self,
        snapshot: Snapshot,
        ranking: Ranking,
        movable: Sequence[int],
        settled: set[int],
        held: GpuMap,
        place: Place,
    ) -> Plan:
        """The same for these jobs, best first."""
        free = GpuMap(snapshot)  # what is left for groups: all GPUs but those of settled jobs
        for row in movable:
            free.vacate(held.gpus(row))
        for row in sorted(settled - self._joinable(snapshot, settled, held)):
            _close(free, held.gpus(row))
        groups = self._groups(snapshot, ranking, movable, settled, held, free, place)
        placed = _place(snapshot, groups, held, free, place)
        shared = _carry_out(snapshot, _spread(snapshot, placed, held, free, place), held, movable)
        chosen = {row for group in placed for row in group}
        left = (row for row in movable if row not in chosen and not held.gpus(row) and _shape(snapshot, row)[2])
        return replace(shared, groups=(*shared.groups, *self._ahead(snapshot, left)))

    def _ahead(self, snapshot: Snapshot, rows: Iterable[int]) -> list[Group]:
        """The groups that the next waiting jobs would be if GPUs came free for them.

        Nobody is asked before Slurm gives GPUs that have come free to the next in the queue, so who suits whom has to
        show in the order of those that wait.
        """
        shapes: dict[Shape, list[int]] = {}
        for row in islice(rows, self.max_members * _GROUPS_AHEAD):
            shapes.setdefault(_shape(snapshot, row), []).append(row)
        grouper = Grouper(self.max_members)
        groups: list[Rows] = []
        for (request, _partition, _shares), members in shapes.items():
            kinds = tuple(grouper.kind(profile) for row in members if (profile := snapshot.jobs[row].profile))
            fewest = -(-len(members) // self.max_members) * request.total
            (found,) = grouper.groups([Bucket(request.total, kinds)], fewest)
            groups += [tuple(members[position] for position in group) for group in found if len(group) > 1]
        why = "their stages use different resources; they wait for GPUs"
        return [Group(tuple(snapshot.jobs[row].job_id for row in group), why) for group in groups]

    @staticmethod
    def _joinable(snapshot: Snapshot, settled: set[int], held: GpuMap) -> set[int]:  # noqa: ARG004  a matching takes all
        """Those of the settled jobs beside whom others may start."""
        return set()

    def _groups(
        self,
        snapshot: Snapshot,
        ranking: Ranking,  # noqa: ARG002  `movable` is in its order
        movable: Sequence[int],
        settled: set[int],  # noqa: ARG002  nobody joins them
        held: GpuMap,
        free: GpuMap,
        place: Place,
    ) -> list[Rows]:
        """Groups of candidates as positions in the snapshot. Candidates that run together stay together."""
        grouper = Grouper(self.max_members)
        known: list[tuple[list[int], Bucket]] = []
        alone: list[Rows] = []
        capacity = int(free.open.sum())
        for (request, _partition, shares), members in self._candidates(snapshot, movable, free, place).items():
            if not shares:
                alone.extend((row,) for row in members)
                capacity -= request.total * len(members)
                continue
            kinds = tuple(grouper.kind(profile) for row in members if (profile := snapshot.jobs[row].profile))
            known.append((members, Bucket(request.total, kinds, _together(members, held))))
        merged = grouper.groups([bucket for _, bucket in known], capacity)
        for (members, _), groups in zip(known, merged, strict=True):
            alone.extend(tuple(members[position] for position in group) for group in groups)
        return alone

    def _candidates(
        self, snapshot: Snapshot, movable: Sequence[int], free: GpuMap, place: Place
    ) -> dict[Shape, list[int]]:
        """The jobs that get GPUs: each slot that fits admits the next `max_members` jobs of its shape, or one alone."""
        shapes: dict[Shape, list[int]] = {}
        for row in movable:
            shapes.setdefault(_shape(snapshot, row), []).append(row)
        members = {shape: self.max_members if shape[2] else 1 for shape in shapes}
        room: Ints = free.open.sum(axis=1)
        no_tasks = np.zeros_like(room)
        slots: dict[Shape, int] = dict.fromkeys(shapes, 0)
        rank_in_shape = dict.fromkeys(shapes, 0)
        full: set[Shape] = set()
        for row in movable:
            shape = _shape(snapshot, row)
            rank_in_shape[shape] += 1
            if shape in full or rank_in_shape[shape] <= members[shape] * slots[shape]:
                continue  # no room, or admitted with an earlier slot
            usable = np.where(snapshot.nodes.usable(shape[1]), room, 0)
            placed = place.place(shape[0], Room(usable, no_tasks, snapshot.nodes))
            if placed is None:
                full.add(shape)
                continue
            slots[shape] += 1
            for node, gpus in placed:
                room[node] -= gpus
        return {shape: rows[: members[shape] * slots[shape]] for shape, rows in shapes.items() if slots[shape]}


class InterleaveByWorth(Interleave, frozen=True):
    """Groups that are worth most (`sched_policy.group.worth`), in an order of falling `-remaining service`.

    Attributes:
        stay: how many times a group that runs already counts, since who takes its place has to wait for a checkpoint
            and to load.

    """

    stay: float = 1.5

    @staticmethod
    def _joinable(snapshot: Snapshot, settled: set[int], held: GpuMap) -> set[int]:
        """Jobs in their quantum that share: who joins them interrupts nobody."""
        on: dict[tuple[Gpu, ...], list[int]] = {}
        for row in settled:
            on.setdefault(held.gpus(row), []).append(row)
        holders = Counter(gpu for row in settled for gpu in held.gpus(row))
        return {
            row
            for gpus, rows in on.items()
            if all(held.open[gpu] and holders[gpu] == len(rows) for gpu in gpus)
            and len({_shape(snapshot, row) for row in rows}) == 1
            and _shape(snapshot, rows[0])[2]
            and not any(snapshot.jobs[row].yielding for row in rows)
            for row in rows
        }

    def _groups(
        self,
        snapshot: Snapshot,
        ranking: Ranking,
        movable: Sequence[int],
        settled: set[int],
        held: GpuMap,
        free: GpuMap,
        place: Place,  # noqa: ARG002  groups that do not fit wait
    ) -> list[Rows]:
        """Groups as positions in the snapshot, those of most worth first."""
        packer = Packer(self.max_members, self.stay)
        alone = packer.kind(StageProfile(1.0, 0.0, 1.0, 0.0))
        shapes: dict[Shape, list[int]] = {}
        joinable = self._joinable(snapshot, settled, held)
        for row in (*movable, *sorted(joinable)):
            shapes.setdefault(_shape(snapshot, row), []).append(row)
        members = list(shapes.values())
        kinds = [
            tuple(packer.kind(profile) if shares and (profile := snapshot.jobs[row].profile) else alone for row in rows)
            for (_request, _partition, shares), rows in shapes.items()
        ]
        capacity_gpus = int(free.open.sum())
        rows_of_all: Ints = np.array([row for rows in members for row in rows], dtype=np.int64)
        worth = np.zeros(len(snapshot.jobs))
        worth[rows_of_all] = worth_of(
            np.maximum(-ranking.values[rows_of_all], 0.0),
            np.maximum(snapshot.columns.gpus[rows_of_all], 1),
            np.concatenate([np.empty(0), *[packer.prices(theirs) for theirs in kinds]]),
            max(capacity_gpus, 1),
        )
        overdue = np.array([job.is_overdue for job in snapshot.jobs], dtype=np.bool_)
        worth[overdue] = _OVERDUE * worth.max(initial=0.0)
        crowds = [
            Crowd(
                request.total,
                theirs,
                tuple(worth[rows].tolist()),
                tuple(group for group in _together(rows, held) if held.gpus(rows[group[0]])),
                frozenset(group for group in _together(rows, held) if rows[group[0]] in joinable),
                may_share=shares,
            )
            for ((request, _partition, shares), rows), theirs in zip(shapes.items(), kinds, strict=True)
        ]
        chosen = packer.pack(crowds, capacity_gpus)
        groups = [
            (-packer.worth(crowd, group), tuple(rows[place] for place in group))
            for rows, crowd, found in zip(members, crowds, chosen, strict=True)
            for group in found
        ]
        return [rows for _, rows in sorted(groups)]


def _settled(snapshot: Snapshot, held: GpuMap, quantum_s: float) -> set[int]:
    """Running jobs that stay where they are: without consent, in their quantum, leaving; and who shares with them."""
    rows = snapshot.columns.holds.nonzero()[0].tolist()
    stays = {
        row
        for row in rows
        if not _may_move(snapshot, held, row) or snapshot.now_s < snapshot.jobs[row].productive_since_s + quantum_s
    }
    gpus = {gpu for row in stays for gpu in held.gpus(row)}
    return stays | {row for row in rows if not gpus.isdisjoint(held.gpus(row))}


def _may_move(snapshot: Snapshot, held: GpuMap, row: int) -> bool:
    """Whether a job may be given GPUs: it waits; or it runs, and may be sent away from those it has."""
    job = snapshot.jobs[row]
    if not snapshot.columns.holds[row]:
        return bool(snapshot.columns.waits[row])
    gpus = held.gpus(row)
    staying = not gpus or not all(snapshot.nodes.schedulable[node] for node, _ in gpus)  # nobody could have them
    return not staying and job.can_leave


def _shape(snapshot: Snapshot, row: int) -> Shape:
    """A job shares if it may, its stages are known, without which nothing tells who suits it, and so are its GPUs."""
    job = snapshot.jobs[row]
    says_where = all(share.indices for share in job.allocation)
    return job.request, job.partition, job.may_share and job.profile is not None and says_where


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
            shape = _shape(snapshot, row)
            if len(stay) == 1 or held.gpus(row) or shape in too_large:
                continue
            own = free.find(shape[0], shape[1], place, in_use)
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


def _carry_out(snapshot: Snapshot, placed: Placed, held: GpuMap, movable: Sequence[int]) -> Plan:
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
    gains = {gpu: row for row in reversed(movable) if not held.gpus(row) for gpu in home.get(row, ())}
    preemptions = [
        Preemption(snapshot.jobs[row].job_id, why, snapshot.jobs[gains[heir]].job_id if heir in gains else None)
        for row in leaving
        for heir in [next((gpu for gpu in held.gpus(row) if gpu in gains), None)]
    ]
    return Plan(starts=tuple(starts), groups=tuple(groups), preemptions=tuple(preemptions))
