"""Groups of jobs that interleave their stages on the same GPUs (Muri, SIGCOMM 2022).

A job that changes its group or its GPUs has to be restarted, so a group is placed on GPUs that members hold already,
and is not changed for a quantum. Jobs that do not share are groups of one. A `GroupChoice` forms the groups: here by
worth (`ByWorth`); `simulation.muri.matching` has the paper's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.group.gpus import Gpu, GpuMap, by_node
from sched_policy.group.interleave import MAX_MEMBERS
from sched_policy.group.rounds import Rounds
from sched_policy.group.worth import Packer, SizeBucket, worth_of
from sched_policy.model import GpuRequest, StageProfile
from sched_policy.place import Place
from sched_policy.plan import Group, Plan, Preemption, Ranking, Start
from sched_policy.snapshot import Floats, Ints, Snapshot

_GROUPS_AHEAD = 8
_STAY = 1.5
"""Factor on the worth of a running group: jobs that replace it have to wait for its checkpoint, and to load."""
_OVERDUE = 100.0
"""An overdue job's worth in units of the best job's: it runs next, and shares only with overdue jobs."""

Shape = tuple[GpuRequest, str, bool]
"""What the jobs of a group have in common: request, partition, and whether they share GPUs at all."""
Rows = tuple[int, ...]  # positions in the snapshot
Home = dict[int, tuple[Gpu, ...]]  # GPUs that a plan gives each job; those of a group's members are the same


class Candidates(NamedTuple):
    """What groups are chosen from; a job is named by its position in the snapshot.

    Attributes:
        snapshot: the cluster.
        ranking: the order of the policy.
        movable: jobs that may get GPUs, best first.
        joinable: settled jobs on whose GPUs others may start.
        vacating: GPUs of leaving jobs: a job may be given them, but starts only when they are gone.
        held: which job holds which GPU.
        room: how many GPUs of each node groups may use, shape (N,).
        place: chooses nodes.

    """

    snapshot: Snapshot
    ranking: Ranking
    movable: Sequence[int]
    joinable: set[int]
    vacating: set[Gpu]
    held: GpuMap
    room: Ints
    place: Place


class GroupChoice(Protocol):
    """Chooses groups of jobs of equal shape."""

    def joinable(self, snapshot: Snapshot, settled: set[int], held: GpuMap) -> set[int]:
        """Those of the settled jobs on whose GPUs others may start."""
        ...

    def groups(self, of: Candidates) -> list[Rows]:
        """The groups, in the order in which they get GPUs."""
        ...


class Interleave(Struct, frozen=True):
    """Groups of up to `MAX_MEMBERS` jobs of equal shape take turns on the same GPUs.

    Attributes:
        grouping: chooses the groups.
        quantum_s: a job, and those that share its GPUs, are not moved for this long after the first report of each run
            (after its start, if it never reports).

    """

    grouping: GroupChoice
    quantum_s: float = 600.0

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Choose candidates, group them, give the groups GPUs, and plan the starts and preemptions that this takes.

        If jobs have to be preempted, waiting jobs that may not displace others are left to Slurm.
        """
        held = GpuMap(snapshot)
        settled = _settled(snapshot, held, self.quantum_s)
        joinable = self.grouping.joinable(snapshot, settled, held)
        vacating = {gpu for row, job in enumerate(snapshot.jobs) if job.is_leaving for gpu in held.gpus(row)}

        def shared_by(movable: Sequence[int]) -> Plan:
            free = GpuMap(snapshot)  # what is left for groups: all GPUs but those of settled jobs
            free.vacate(vacating.union(*map(held.gpus, movable)))
            _close(free, (gpu for row in settled - joinable for gpu in held.gpus(row)))
            candidates = Candidates(snapshot, ranking, movable, joinable, vacating, held, by_node(free.open), place)
            groups = [group for pool in _pools(candidates) for group in self.grouping.groups(pool)]
            home = _place(candidates, groups, free)
            _spread(candidates, home, free)
            left = (row for row in movable if row not in home and not held.gpus(row) and shape_of(snapshot, row)[2])
            groups_ahead, replan_s = _ahead(snapshot, left), snapshot.next_quantum_s(self.quantum_s)
            shared = _carry_out(candidates, home)
            return replace(shared, groups=(*shared.groups, *groups_ahead), replan_s=replan_s)

        may_move = [snapshot.columns.waits[row] or job.can_leave for row, job in enumerate(snapshot.jobs)]
        movable = [row for row in ranking.rows.tolist() if may_move[row] and row not in settled]
        shared = shared_by(movable)
        displacing = [row for row in movable if held.gpus(row) or snapshot.jobs[row].may_displace]
        return shared_by(displacing) if shared.preemptions and len(displacing) < len(movable) else shared


class ByWorth(Struct, frozen=True):
    """Groups that are worth most (`sched_policy.group.worth`); scores must be minus remaining GPU-seconds."""

    def joinable(self, snapshot: Snapshot, settled: set[int], held: GpuMap) -> set[int]:
        """Jobs in their quantum that share GPUs: a job that joins them interrupts none."""
        groups = together(sorted(filter(held.gpus, settled)), held.gpus)
        return {
            row
            for rows in groups
            if all(held.open[gpu] and held.jobs[gpu] == len(rows) for gpu in held.gpus(rows[0]))
            and len({shape_of(snapshot, row) for row in rows}) == 1
            and shape_of(snapshot, rows[0])[2]
            and not any(snapshot.jobs[row].is_leaving for row in rows)
            for row in rows
        }

    def groups(self, of: Candidates) -> list[Rows]:
        """Groups as positions in the snapshot, most worth first."""
        snapshot, held = of.snapshot, of.held
        packer = Packer(stay=_STAY)
        alone = packer.kind(StageProfile(1.0, 0.0, 1.0, 0.0))
        shapes: dict[Shape, list[int]] = {}
        for row in (*of.movable, *sorted(of.joinable)):
            shapes.setdefault(shape_of(snapshot, row), []).append(row)
        members = list(shapes.values())
        kinds = [
            tuple(packer.kind(profile) if shares and (profile := snapshot.jobs[row].profile) else alone for row in rows)
            for (_request, _partition, shares), rows in shapes.items()
        ]
        capacity_gpus = int(of.room.sum())
        rows_of_all: Ints = np.array([row for rows in members for row in rows], dtype=np.int64)
        worth = np.zeros(len(snapshot.jobs))
        worth[rows_of_all] = worth_of(
            np.maximum(-of.ranking.values[rows_of_all], 0.0),
            np.maximum(snapshot.columns.gpus[rows_of_all], 1),
            np.concatenate([np.empty(0), *[packer.prices(theirs) for theirs in kinds]]),
            max(capacity_gpus, 1),
        )
        overdue = np.array([job.is_overdue for job in snapshot.jobs], dtype=np.bool_)
        worth[overdue] = _OVERDUE * worth.max(initial=0.0)
        buckets = [
            SizeBucket(
                request.total,
                theirs,
                tuple(worth[rows].tolist()),
                tuple(group for group in running if held.gpus(rows[group[0]])),
                frozenset(group for group in running if rows[group[0]] in of.joinable),
                may_share=shares,
            )
            for ((request, _partition, shares), rows), theirs in zip(shapes.items(), kinds, strict=True)
            for running in [together(range(len(rows)), [*map(held.gpus, rows)].__getitem__)]
        ]
        chosen = packer.pack(buckets, capacity_gpus)
        groups = [
            (-packer.worth(bucket, group), tuple(rows[position] for position in group))
            for rows, bucket, found in zip(members, buckets, chosen, strict=True)
            for group in found
        ]
        return [rows for _, rows in sorted(groups)]


def _pools(of: Candidates) -> Iterator[Candidates]:
    """The candidates apart, where they have no node in common: GPUs that one leaves are of no use to another."""
    jobs, nodes = of.snapshot.jobs, of.snapshot.nodes
    rows = (*of.movable, *of.joinable)
    concerned = {name: nodes.usable(name).copy() for name in {jobs[row].partition for row in rows}}
    for row in rows:  # one may run on a node that its partition has no more
        concerned[jobs[row].partition][[node for node, _ in of.held.gpus(row)]] = True
    pool_of = np.arange(len(nodes))  # the number of its first node
    for mask in concerned.values():
        pool_of[np.isin(pool_of, pool_of[mask])] = pool_of[mask].min(initial=len(nodes))
    pools = {name: int(pool_of[mask].max(initial=-1)) for name, mask in concerned.items()}
    for pool in sorted(set(pools.values())):
        movable = [row for row in of.movable if pools[jobs[row].partition] == pool]
        joinable = {row for row in of.joinable if pools[jobs[row].partition] == pool}
        yield of._replace(movable=movable, joinable=joinable, room=np.where(pool_of == pool, of.room, 0))


def _ahead(snapshot: Snapshot, rows: Iterable[int]) -> list[Group]:
    """The groups that the next waiting jobs would form if GPUs became free for them.

    Slurm gives freed GPUs to the next job in its queue without asking, so the order of waiting jobs has to put members
    of a group next to each other.
    """
    shapes: dict[Shape, list[int]] = {}
    for row in islice(rows, MAX_MEMBERS * _GROUPS_AHEAD):
        shapes.setdefault(shape_of(snapshot, row), []).append(row)
    rounds = Rounds()
    groups: list[Group] = []
    why = "their stages use different resources; they wait for GPUs"
    for jobs in ([snapshot.jobs[row] for row in members] for members in shapes.values()):
        found = rounds.fewest([rounds.kind(job.profile) for job in jobs if job.profile])
        groups += [Group(tuple(jobs[at].job_id for at in group), why) for group in found if len(group) > 1]
    return groups


def _settled(snapshot: Snapshot, held: GpuMap, quantum_s: float) -> set[int]:
    """Running jobs that are not moved: they may not leave, or nobody could use their GPUs; and all beside them."""
    usable = held.usable("")

    def stays(row: int) -> bool:
        job, nodes = snapshot.jobs[row], [node for node, _ in held.gpus(row)]
        return not job.is_leaving and not (job.may_leave(snapshot.now_s, quantum_s) and nodes and usable[nodes].all())

    rows = snapshot.columns.holds.nonzero()[0].tolist()
    staying = set(filter(stays, rows))
    gpus = {gpu for row in staying for gpu in held.gpus(row)}
    return staying | {row for row in rows if not gpus.isdisjoint(held.gpus(row))}


def shape_of(snapshot: Snapshot, row: int) -> Shape:
    """The shape of the job's group. It shares only if it may, and if its stage times and its GPUs are known."""
    job = snapshot.jobs[row]
    says_where = all(share.indices for share in job.allocation)
    return job.request, job.partition, job.may_share and job.profile is not None and says_where


def together(rows: Iterable[int], gpus_of: Callable[[int], tuple[Gpu, ...]]) -> tuple[Rows, ...]:
    """The rows of jobs on the same GPUs; jobs without GPUs are alone."""
    groups: dict[object, list[int]] = {}
    for row in rows:
        groups.setdefault(gpus_of(row) or row, []).append(row)
    return tuple(tuple(group) for group in groups.values())


def _place(of: Candidates, groups: Sequence[Rows], free: GpuMap) -> Home:
    """GPUs of the groups that fit: those that members hold, else (largest group first) unused before used ones."""
    home: Home = {}
    for group in groups:
        there = [gpus for row in group if (gpus := _open(of, row, free))]
        if there:
            home |= dict.fromkeys(group, min(there, key=lambda gpus: (-there.count(gpus), gpus)))
            _close(free, home[group[0]])
    costs = _costs(of)
    for group in sorted((g for g in groups if g[0] not in home), key=lambda g: -of.snapshot.jobs[g[0]].request.total):
        job = of.snapshot.jobs[group[0]]
        tries = (free.find(job.request, job.partition, of.place, cost) for cost in costs)
        if (found := next((gpus for gpus in tries if gpus is not None), None)) is not None:
            home |= dict.fromkeys(group, found)
            _close(free, found)
    return home


def _spread(of: Candidates, home: Home, free: GpuMap) -> None:
    """Running jobs keep what no group took. While GPUs are left, a waiting member gets GPUs of its own instead."""
    kept = {row: gpus for row in of.movable if row not in home and (gpus := _open(of, row, free))}
    _close(free, (gpu for gpus in kept.values() for gpu in gpus))
    cost, *_ = _costs(of)  # a member that waits for others to leave would be better off in its group
    too_large: set[Shape] = set()
    for group in together(home, home.__getitem__):
        alone = 0
        for row in reversed(group):
            shape = shape_of(of.snapshot, row)
            if alone == len(group) - 1 or of.held.gpus(row) or shape in too_large:
                continue
            if (own := free.find(shape[0], shape[1], of.place, cost)) is None:
                too_large.add(shape)
                continue
            alone += 1
            _close(free, own)
            home[row] = own
    home |= kept | {row: gpus for row in of.movable if (gpus := _open(of, row, free))}


def _costs(of: Candidates) -> list[Floats]:
    """What to look for GPUs by: used ones cost more. While jobs leave, unused GPUs first, then theirs, then others."""
    cost = (of.held.jobs > 0).astype(np.float64)
    if not of.vacating:
        return [cost]
    cost[tuple(np.transpose(list(of.vacating)))] = 0.5
    return [np.where(cost <= most, cost, np.inf) for most in (0.0, 0.5, 1.0)]


def _open(of: Candidates, row: int, free: GpuMap) -> tuple[Gpu, ...]:
    """The GPUs that the job holds, if all of them are open."""
    gpus = of.held.gpus(row)
    return gpus if all(free.open[gpu] for gpu in gpus) else ()


def _close(free: GpuMap, gpus: Iterable[Gpu]) -> None:
    for gpu in gpus:
        free.open[gpu] = False


def _carry_out(of: Candidates, home: Home) -> Plan:
    """Members start on GPUs that no leaving job holds; jobs that run elsewhere, or in no group, are preempted."""
    jobs, held = of.snapshot.jobs, of.held
    leaving = [row for row in of.movable if held.gpus(row) and held.gpus(row) != home.get(row)]
    in_the_way = of.vacating.union(*map(held.gpus, leaving))
    groups = together(home, home.__getitem__)
    starts = [
        Start(jobs[row].job_id, held.named(home[row]), f"interleaves with {len(group) - 1} job(s)")
        for group in groups
        for row in group
        if not held.gpus(row) and in_the_way.isdisjoint(home[row])
    ]
    why = "their stages use different resources"
    shared = [Group(tuple(jobs[row].job_id for row in group), why) for group in groups if len(group) > 1]
    gains = {gpu: jobs[row].job_id for row in reversed(of.movable) if not held.gpus(row) for gpu in home.get(row, ())}
    why = "its group changes, or jobs before it need the GPUs"
    preemptions = [
        Preemption(jobs[row].job_id, why, next((gains[gpu] for gpu in held.gpus(row) if gpu in gains), None))
        for row in leaving
    ]
    return Plan(starts=tuple(starts), groups=tuple(shared), preemptions=tuple(preemptions))
