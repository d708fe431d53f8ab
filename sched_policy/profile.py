"""The availability profile: free GPUs per node as a function of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
from msgspec import Struct

from sched_policy.model import Absence, GpuRequest, Job, NodeGpus
from sched_policy.place import Indexed, Place, Room, place_near
from sched_policy.snapshot import Floats, Ints, Nodes, Snapshot


class _Releases(Struct, frozen=True, eq=False):
    """GPUs that come free, in order of time; all arrays have shape (K,). `after` is what the node has free then."""

    time_s: Floats
    node: Ints
    gpus: Ints
    after: Ints


class _Reservations:
    """GPUs booked for later, in order of their start; P of them.

    Attributes:
        start_s: when each starts, shape (P,).
        end_s: when each ends, shape (P,).
        free: what is free on each node when it starts, all bookings counted, shape (P, N).

    """

    def __init__(self, nodes: int) -> None:
        self.start_s: Floats = np.empty(0)
        self.end_s: Floats = np.empty(0)
        self.free = np.empty((0, nodes), dtype=np.int16)  # the largest table here, and copied at each booking
        self._shares = np.empty((4, 0))  # start and end, node, GPUs

    def book(self, start_s: float, end_s: float, placement: Indexed, free: Ints) -> None:
        """Add one; `free` is what was free at its start before."""
        overlaps = (self.start_s >= start_s) & (self.start_s < end_s)
        free = free.astype(np.int16)
        for node, gpus in placement:
            self.free[overlaps, node] -= gpus
            free[node] -= gpus
        position = int(np.searchsorted(self.start_s, start_s, side="right"))
        self.start_s = np.insert(self.start_s, position, start_s)
        self.end_s = np.insert(self.end_s, position, end_s)
        self.free = np.insert(self.free, position, free, axis=0)
        shares = np.array([(start_s, end_s, node, gpus) for node, gpus in placement], dtype=np.float64).T
        self._shares = np.concatenate([self._shares, shares], axis=1)

    def taken_at(self, time_s: float) -> Ints:
        """GPUs reserved on each node at a time, shape (N,)."""
        start_s, end_s, node, gpus = self._shares
        active = (start_s <= time_s) & (time_s < end_s)
        return np.bincount(node[active].astype(np.int64), gpus[active], self.free.shape[1]).astype(np.int64)

    def starting_in(self, after_s: float, before_s: float) -> slice:
        """The reservations that start inside an interval."""
        first = int(np.searchsorted(self.start_s, after_s, side="right"))
        return slice(first, max(first, int(np.searchsorted(self.start_s, before_s, side="left"))))


class FreeGpus:
    """GPUs that are free now, for trying out who would fit if somebody went. Nothing is booked by it."""

    def __init__(self, free: Ints, tasks: Ints, nodes: Nodes, stays_s: Floats) -> None:
        """`free` GPUs and `tasks` (jobs now) per node, `stays_s` as in `Snapshot`; `free` is changed, they are not."""
        self._free = free
        self._stays_s = stays_s
        self._tasks = tasks
        self._nodes = nodes

    def copy(self) -> FreeGpus:
        """Another one to try things out on."""
        return FreeGpus(self._free.copy(), self._tasks, self._nodes, self._stays_s)

    def release(self, allocation: Iterable[NodeGpus]) -> None:
        """Count what a job holds as free; nodes that are unknown are left out."""
        self._add(self._indexed(allocation), 1)

    def hold(self, allocation: Iterable[NodeGpus]) -> None:
        """Count what a job holds as taken again."""
        self._add(self._indexed(allocation), -1)

    def take(self, placement: Indexed) -> None:
        """Count a placement as taken."""
        self._add(placement, -1)

    def take_beyond(self, placement: Indexed, allocation: Iterable[NodeGpus]) -> None:
        """Count as taken what a placement has on each node beyond what the job holds there."""
        held = dict(self._indexed(allocation))
        self._add(tuple((node, max(0, gpus - held.get(node, 0))) for node, gpus in placement), -1)

    def find(self, request: GpuRequest, partition: str, place: Place, duration_s: float = 0.0) -> Indexed | None:
        """Where the request fits on nodes of its partition that stay for as long, None if it does not."""
        return place_near(place, request, Room(self._open(partition, duration_s), self._tasks, self._nodes))

    def count(self, partitions: Iterable[str]) -> int:
        """How many are on nodes of these partitions."""
        return int(np.max([self._open(partition) for partition in partitions], axis=0).sum())

    def take_any(self, gpus: int, partition: str) -> None:
        """Count as taken so many on any nodes of a partition."""
        there = self._open(partition)
        self._free -= np.clip(gpus - (there.cumsum() - there), 0, there)

    def serving(self, victims: Iterable[Job], partition: str) -> Iterator[Job]:
        """The victims all of whose GPUs jobs of a partition could use."""
        at, usable = self._nodes.position, self._nodes.usable(partition) & (self._stays_s > 0)
        return (job for job in victims if all(held.node in at and usable[at[held.node]] for held in job.allocation))

    def _open(self, partition: str, duration_s: float = 0.0) -> Ints:
        return self._free * (self._nodes.usable(partition) & (self._stays_s >= duration_s))

    def _indexed(self, allocation: Iterable[NodeGpus]) -> Indexed:
        index = self._nodes.position
        return tuple((index[held.node], held.gpus) for held in allocation if held.node in index)

    def _add(self, placement: Indexed, sign: int) -> None:
        for node, gpus in placement:
            self._free[node] += sign * gpus


class AvailabilityProfile:
    """Free GPUs of every node from a snapshot's moment on, given when the running jobs end at the latest.

    Without reservations free GPUs only grow with time, as running jobs end. They shrink only where a reservation
    starts, so the minimum over an interval is at its beginning or at the start of a reservation inside it: one row
    per reservation is enough, whatever the number of running jobs.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self._now_s = snapshot.now_s
        self._nodes = nodes
        self._free = nodes.gpus.copy()
        self._started: list[tuple[float, int, int]] = []
        self._releases: _Releases | None = None
        self._reservations = _Reservations(len(nodes))
        self._too_long_s: dict[tuple[GpuRequest, str], float] = {}
        self._earliest: dict[tuple[GpuRequest, str], dict[float, float]] = {}
        self._held = _Held.by(snapshot)
        np.subtract.at(self._free, self._held.node, self._held.gpus)
        self._tasks = self._held.tasks
        self._stays_s = snapshot.stays_s
        for absence in snapshot.absences:
            self._leave_out(absence)

    def _leave_out(self, absence: Absence) -> None:
        """Book whole nodes for a time; the jobs that hold them go on meanwhile."""
        known = [self._nodes.position[name] for name in absence.nodes if name in self._nodes.position]
        whole = tuple((node, int(self._nodes.gpus[node])) for node in known)
        if known and absence.start_s > self._now_s:
            self.reserve(absence.start_s, absence.end_s, whole)
        elif absence.end_s > self._now_s:
            self.start(whole, absence.end_s)

    @property
    def sharing(self) -> frozenset[int]:
        """Running jobs that are not alone on their GPUs: no GPU would be free if one of them went."""
        return self._held.sharing

    def free_now(self) -> FreeGpus:
        """What is free at the profile's start, to try things out on: changing it books nothing here."""
        return FreeGpus(np.maximum(self._free, 0), self._tasks, self._nodes, self._stays_s)

    def start(self, placement: Indexed, end_s: float) -> None:
        """Book GPUs from now on until `end_s` (infinity allowed)."""
        for node, gpus in placement:
            self._free[node] -= gpus
            self._tasks[node] += 1
            self._started.append((end_s, node, gpus))
            self._reservations.free[self._reservations.start_s < end_s, node] -= gpus
        self._releases = None

    def reserve(self, start_s: float, end_s: float, placement: Indexed) -> None:
        """Book GPUs from a later time until `end_s` (infinity allowed)."""
        self._reservations.book(start_s, end_s, placement, self._free_at(start_s))

    def fits_now(self, request: GpuRequest, duration_s: float, partition: str, place: Place) -> Indexed | None:
        """Where the request fits from now on for `duration_s`, or None."""
        # Bookings only take away: what was too long for a shape stays too long.
        too_long_s = self._too_long_s.get((request, partition))
        if too_long_s is not None and duration_s >= too_long_s:
            return None
        found = self._fits(self._now_s, request, duration_s, partition, place)
        if found is None:
            self._too_long_s[request, partition] = duration_s
        return found

    def earliest(
        self, request: GpuRequest, duration_s: float, partition: str, place: Place
    ) -> tuple[float, Indexed] | None:
        """The first time at which the request fits for `duration_s`, and where; None if it never does."""
        # Likewise, what was too early for a shorter run of the same shape stays too early.
        known = self._earliest.setdefault((request, partition), {})
        if self._nodes.switches and place_near(place, request, self._room(self._nodes.gpus, partition)) is None:
            return None
        too_early_s = (time_s for shorter_s, time_s in known.items() if shorter_s <= duration_s)
        for time_s in self._changes_from(max(self._no_earlier_than(request, partition), *too_early_s, self._now_s)):
            placement = self._fits(time_s, request, duration_s, partition, place)
            if placement is not None:
                known[duration_s] = time_s
                return time_s, placement
        return None

    def booked(self, time_s: float) -> int:
        """GPUs of usable nodes that are taken or reserved at a time, over all partitions."""
        return self._nodes.capacity - int(self._room(self._free_at(time_s), "").free.sum())

    def named(self, placement: Indexed) -> tuple[NodeGpus, ...]:
        """The same placement with node names."""
        return tuple(NodeGpus(self._nodes[node].name, gpus) for node, gpus in placement)

    def _fits(
        self, time_s: float, request: GpuRequest, duration_s: float, partition: str, place: Place
    ) -> Indexed | None:
        free = self._free_at(time_s)
        placement = place_near(place, request, self._room(free, partition))
        inside = self._reservations.starting_in(time_s, time_s + duration_s)
        if placement is None or inside.start == inside.stop:
            return placement
        least = np.minimum(free, self._reservations.free[inside].min(axis=0))
        return place_near(place, request, self._room(least, partition))

    def _free_at(self, time_s: float) -> Ints:
        free = self._free.copy()
        if time_s > self._now_s:
            releases = self._sorted_releases()
            until = int(np.searchsorted(releases.time_s, time_s, side="right"))
            gained = np.bincount(releases.node[:until], weights=releases.gpus[:until], minlength=free.size)
            free += gained.astype(np.int64)
        if self._reservations.start_s.size:
            free -= self._reservations.taken_at(time_s)
        return free

    def _no_earlier_than(self, request: GpuRequest, partition: str) -> float:
        """A time before which the request cannot fit even if nothing were reserved; infinity if it never fits."""
        usable = self._nodes.usable(partition)
        releases = self._sorted_releases()
        counts = usable[releases.node]
        if request.per_node is None:
            enough = request.total
            have_now = int(np.maximum(self._free, 0)[usable].sum())
            gained = np.where(counts, releases.gpus, 0)
        else:  # nodes that have the share of one node
            enough = request.nodes
            have_now = int((self._free[usable] >= request.per_node).sum())
            before = releases.after - releases.gpus
            gained = (counts & (before < request.per_node) & (releases.after >= request.per_node)).astype(np.int64)
        if have_now >= enough:
            return self._now_s
        reached = np.flatnonzero(have_now + np.cumsum(gained) >= enough)
        return float(releases.time_s[reached[0]]) if reached.size else float("inf")

    def _changes_from(self, not_before_s: float) -> Iterator[float]:
        """Times from `not_before_s` on at which GPUs come free, in order, each once; now counts as one."""
        if not_before_s <= self._now_s:
            yield self._now_s
        changes = np.concatenate([self._sorted_releases().time_s, self._reservations.end_s])
        yield from np.unique(changes[(changes >= not_before_s) & (changes < np.inf)]).tolist()

    def _sorted_releases(self) -> _Releases:
        if self._releases is None:
            started = np.array(self._started, dtype=np.float64).reshape(-1, 3).T
            time_s = np.concatenate([self._held.end_s, started[0]])
            node = np.concatenate([self._held.node, started[1].astype(np.int64)])
            gpus = np.concatenate([self._held.gpus, started[2].astype(np.int64)])
            in_order = np.lexsort((gpus, node, time_s))
            in_order = in_order[: int(np.isfinite(time_s).sum())]  # what never ends stands last
            time_s, node, gpus = time_s[in_order], node[in_order], gpus[in_order]
            self._releases = _Releases(time_s, node, gpus, self._free[node] + _running_total(node, gpus))
        return self._releases

    def _room(self, free: Ints, partition: str) -> Room:
        return Room(np.maximum(free, 0) * self._nodes.usable(partition), self._tasks, self._nodes)


class _Held(Struct, frozen=True, eq=False):
    """What running jobs hold: K entries of GPUs on a node until a time, and the jobs on each node, shape (N,).

    A GPU that several jobs share counts once, until the last of them ends. `sharing` are those jobs.
    """

    end_s: Floats
    node: Ints
    gpus: Ints
    tasks: Ints
    sharing: frozenset[int]

    @classmethod
    def by(cls, snapshot: Snapshot) -> _Held:
        """What the running jobs of a snapshot hold on nodes that it knows."""
        # A job past its end still holds its GPUs now: it cannot be planned over in this very moment.
        ends_s = np.maximum(snapshot.columns.end_s, np.nextafter(snapshot.now_s, np.inf))[snapshot.columns.holds]
        position = snapshot.nodes.position
        known = [
            (number, where, held.gpus, held.indices)
            for number, job in enumerate(snapshot.running)
            for held in job.allocation
            if (where := position.get(held.node)) is not None
        ]
        holder, node, gpus = np.array([entry[:3] for entry in known], dtype=np.int64).reshape(-1, 3).T
        named = np.array([len(indices) for *_, indices in known], dtype=np.int64)  # GPUs that are known one by one
        index = np.fromiter(chain.from_iterable(indices for *_, indices in known), np.int64, int(named.sum()))
        sharer, shared_node, alone = np.repeat(holder, named), np.repeat(node, named), named == 0
        by_gpu = np.lexsort((ends_s[sharer], index, shared_node))
        is_last = np.ones(by_gpu.size, dtype=np.bool_)
        is_last[:-1] = (np.diff(shared_node[by_gpu]) != 0) | (np.diff(index[by_gpu]) != 0)
        longest = by_gpu[is_last]
        in_order: Ints = sharer[by_gpu]
        gpu: Ints = np.cumsum(is_last) - is_last
        mixed: Ints = gpu[1:][(np.diff(gpu) == 0) & (np.diff(in_order) != 0)]
        sharing: list[int] = np.unique(in_order[np.isin(gpu, mixed)]).tolist()
        return cls(
            np.concatenate([ends_s[holder[alone]], ends_s[sharer[longest]]]),
            np.concatenate([node[alone], shared_node[longest]]),
            np.concatenate([gpus[alone], np.ones(longest.size, dtype=np.int64)]),
            np.bincount(node, minlength=len(snapshot.nodes)),
            frozenset(snapshot.running[number].job_id for number in sharing),
        )


def _running_total(key: Ints, amount: Ints) -> Ints:
    """For each entry the sum of the amounts of its key up to and including it."""
    by_key = np.argsort(key, kind="stable")
    sums = np.cumsum(amount[by_key])
    is_first = np.append(True, key[by_key][1:] != key[by_key][:-1])[: key.size]
    before = np.where(is_first, sums - amount[by_key], 0)
    totals = np.empty_like(sums)
    totals[by_key] = sums - np.maximum.accumulate(before)
    return totals
