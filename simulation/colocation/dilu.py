"""Dilu's placements, those that they are compared with, and the policy `dilu` for jobs.

Resourcing-complementary placement lets instances share a GPU that together use it well (Dilu, ASPLOS 2025).
`DiluOriginal` is what its authors publish; `Complementary` is ours, which needs fewer GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from sched_policy.catalog import PolicyOptions
from sched_policy.group.gpus import GpuMap
from sched_policy.model import GpuPart, GpuRequest, Job
from sched_policy.order import Fifo
from sched_policy.place import Place
from sched_policy.plan import Group, Plan, Ranking, Start
from sched_policy.policy import JobData, Need, Policy
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot
from simulation.colocation.instance import (
    GAMMA,
    OMEGA,
    GpuLoads,
    Instance,
    InstanceShare,
    PlaceByKind,
    ShareBounds,
    as_declared,
    filled,
    left_over,
    part_of_split,
)
from simulation.pairs import cheapest


def fit_entries(entries_mib: Sequence[int], gpus: Ints, loads: GpuLoads) -> Ints:
    """Gives these GPUs as many entries of a training on their node as fit there, the same training for each node.

    The GPUs of a node, the one with the least free memory first, each take the largest entry that is left and fits. As
    whatever fits a GPU also fits one with more room, no other assignment gives away more entries. Equal room: the GPU
    with the larger sum of requests first, then the lower index.

    Args:
        entries_mib: what each GPU of the training needs, largest first.
        gpus: indices of the GPUs that may be used, ascending.
        loads: the loads of the cluster.

    Returns:
        The index of the entry that each of `gpus` takes, -1 for none; same shape.

    """
    needs_mib = np.array(entries_mib, dtype=np.int64)
    free_mib = (loads.capacity_mib - loads.memory_mib)[gpus]
    order = np.lexsort((-loads.request_ppb[gpus], free_mib, loads.node[gpus]))
    node = loads.node[gpus[order]]
    turn = np.arange(order.size) - np.searchsorted(node, node)  # 0 for the first GPU of each node, 1 for the second...
    left = np.ones((len(loads.nodes), needs_mib.size), dtype=np.bool_)
    taken = np.full(gpus.size, -1, dtype=np.int64)
    for place in range(int(turn.max(initial=-1)) + 1):
        now = order[turn == place]
        fits = left[loads.node[gpus[now]]] & (needs_mib <= free_mib[now, None])
        now, entry = now[fits.any(axis=1)], fits.argmax(axis=1)[fits.any(axis=1)]
        left[loads.node[gpus[now]], entry] = False
        taken[now] = entry
    return taken


@dataclass(frozen=True, slots=True)
class Complementary(PlaceByKind):
    """Dilu's bounds, score and rules, with a choice of node where Dilu takes the first one.

    * inference: see `BestFit.inference`, unchanged.
    * llm-inference: split over active GPUs of one node if possible; else the active GPU with the smallest score; else
      the first new GPU. Dilu looks for a whole GPU first. But a GPU with much memory to spare is one that a training
      could use, while what trainings leave of theirs only a split can use. On each node the GPUs with the most free
      memory come first. Of the nodes the one wins that is left with the least memory on the GPUs taken; each of them
      adds `split_cost` of its memory, because a split is charged its request on every one. With `gathers`, the new GPU
      is on the node whose active GPUs have most memory to spare for a part of the LLM, of several on that with the
      fewest new GPUs: a later LLM like it can then be split there.
    * training: on the node that has active GPUs for most of its memory entries (see `fit_entries`), so that it opens
      the fewest new GPUs. Dilu uses an active GPU only if it has room for the largest entry; most trainings have one
      entry that only an idle GPU can take. Of several nodes the one wins whose active GPUs have the mean load most like
      the training's request: trainings that are alike leave room that is alike, which is what a split needs. An idle
      node counts as wholly alike.

    Ties go to the lower index. `DiluOriginal` is what was published. `split_cost` was chosen by hand on generated
    events of seeds 0 to 5, the rules for trainings on seeds 1000 to 1029: judge by other seeds.
    """

    split_cost: float = 0.1
    gathers: bool = False

    def _llm(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        for place in (self._split, self._whole_on_active, self._whole_on_new):
            shares = place(instance, loads)
            if shares is not None:
                return shares
        return None

    def _split(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        part, need_mib = part_of_split(instance), sum(instance.memory_mib)
        free_mib = np.where(loads.active & self.fit.open_to(part, loads), loads.capacity_mib - loads.memory_mib, 0)
        order = np.lexsort((-free_mib, loads.node))
        reached_mib = _running_total_per_node(free_mib[order], loads)
        # The GPU with which a node reaches the need; not if it is the node's first: that would be no split.
        completes = (reached_mib >= need_mib) & (reached_mib - free_mib[order] < need_mib)
        enough = np.flatnonzero(completes & (free_mib[order] < need_mib))
        if not enough.size:
            return None
        first = loads.first[loads.node[order]]
        taken = np.arange(order.size) - first + 1  # the GPUs with nothing free come last on each node
        left = (reached_mib - need_mib) / np.maximum(loads.capacity_mib[order], 1) + self.split_cost * taken
        last = int(enough[np.argmin(left[enough])])
        return filled(part, need_mib, order[first[last] : last + 1], free_mib)

    def _whole_on_new(self, llm: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        gpus = np.flatnonzero(self.fit.feasible(llm, loads) & ~loads.active)
        if self.gathers and gpus.size:
            node, nodes = loads.node, len(loads.nodes)
            open_to = loads.active & self.fit.open_to(part_of_split(llm), loads)
            spare_mib = np.bincount(node, weights=open_to * (loads.capacity_mib - loads.memory_mib), minlength=nodes)
            new = np.bincount(node[gpus], minlength=nodes)
            gpus = gpus[np.lexsort((new[node[gpus]], -spare_mib[node[gpus]]))]
        return as_declared(llm, gpus[:1]) if gpus.size else None

    def _training(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        entries_mib = sorted(instance.memory_mib, reverse=True)
        nodes = len(loads.nodes)
        new = self.fit.feasible(instance, loads) & ~loads.active
        used = np.flatnonzero(self.fit.open_to(instance, loads) & loads.active)
        entry = fit_entries(entries_mib, used, loads)
        used, entry = used[entry >= 0], entry[entry >= 0]
        given = np.bincount(loads.node[used], minlength=nodes)
        enough = np.flatnonzero(given + np.bincount(loads.node[new], minlength=nodes) >= instance.gpus)
        if not enough.size:
            return None
        active_here = np.bincount(loads.node[loads.active], minlength=nodes)
        load = np.bincount(loads.node, weights=loads.request_ppb / 1e9, minlength=nodes)
        unlike = np.where(active_here > 0, np.abs(load / np.maximum(active_here, 1) - instance.request), 0.0)
        node = enough[np.lexsort((enough, unlike[enough], -given[enough]))[0]]
        here = loads.node[used] == node
        rest = np.setdiff1d(np.arange(instance.gpus), entry[here])
        opened = np.flatnonzero(new & (loads.node == node))[: rest.size]
        pairs = zip(np.concatenate([used[here], opened]).tolist(), [*entry[here].tolist(), *rest.tolist()], strict=True)
        return tuple(InstanceShare(gpu, instance.request_ppb, instance.limit_ppb, entries_mib[k]) for gpu, k in pairs)


def _running_total_per_node(amount: Ints, loads: GpuLoads) -> Ints:
    """Sums up to and including each entry within its node; entries in order of the nodes, shape (P,)."""
    total = np.cumsum(amount)
    before = np.concatenate([[0], total])[loads.first]
    sums: Ints = total - before[loads.node]
    return sums


@dataclass(frozen=True, slots=True)
class DiluOriginal(PlaceByKind):
    """Fill active GPUs before new ones; where several GPUs of one node are needed, the first node that has them.

    * inference: see `BestFit.inference`.
    * llm-inference: the active GPU with the smallest score; else split over active GPUs of one node, the fullest memory
      first; else the first new GPU.
    * training: all its GPUs on one node, on active ones if some node can; else on active and new ones.

    What the original leaves open: "first" is by index, and on a node with more candidates than a training needs the
    smallest scores win.

    Defects of the original that are not repeated: a delete there handles one GPU only and subtracts a list for a
    training (here `GpuLoads` gives back all); its live scheduler places an LLM on an active GPU by an attribute that
    does not exist, and by worst fit (this is the rule of its simulator).
    """

    def _llm(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        for place in (self._whole_on_active, self._split, self._whole_on_new):
            shares = place(instance, loads)
            if shares is not None:
                return shares
        return None

    def _split(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        part, need_mib = part_of_split(instance), sum(instance.memory_mib)
        free_mib = np.where(loads.active & self.fit.open_to(part, loads), loads.capacity_mib - loads.memory_mib, 0)
        most_mib = np.zeros(len(loads.nodes), dtype=np.int64)
        np.maximum.at(most_mib, loads.node, free_mib)
        sum_mib = np.bincount(loads.node, weights=free_mib, minlength=len(loads.nodes))
        # Where one GPU had the memory it was the limit that did not fit: that is no case for a split.
        enough = np.flatnonzero((sum_mib >= need_mib) & (most_mib < need_mib))
        if not enough.size:
            return None
        here = np.flatnonzero(loads.node == enough[0])
        return filled(part, need_mib, here[np.argsort(-loads.memory_mib[here], kind="stable")], free_mib)

    def _training(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        feasible, active = self.fit.feasible(instance, loads), loads.active
        for candidates in (feasible & active, feasible):
            per_node = np.bincount(loads.node[candidates], minlength=len(loads.nodes))
            enough = np.flatnonzero(per_node >= instance.gpus)
            if enough.size:
                here = candidates & (loads.node == enough[0])
                used = self.fit.best(here & active, instance, loads)
                gpus = np.concatenate([used, np.flatnonzero(here & ~active)])
                return as_declared(instance, gpus[: instance.gpus])
        return None


class Exclusive(Struct, frozen=True):
    """Every instance has its GPUs to itself; all of them on the first node that has enough idle ones."""

    bounds: ShareBounds = ShareBounds(1.0, 1.0)

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """Idle GPUs for an instance, None if no node has enough of them."""
        idle = loads.usable & ~loads.active & (loads.capacity_mib >= max(instance.memory_mib))
        per_node = np.bincount(loads.node[idle], minlength=len(loads.nodes))
        enough = np.flatnonzero(per_node >= instance.gpus)
        if not enough.size:
            return None
        return as_declared(instance, np.flatnonzero(idle & (loads.node == enough[0]))[: instance.gpus])


class InflessByLimit(Struct, frozen=True):
    """INFless-l: an instance is given its limit as a fixed quota, so nothing is shared that anybody may need."""

    rule: DiluOriginal = DiluOriginal()
    bounds: ShareBounds = ShareBounds(1.0, 1.0)

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """The GPUs the rule chooses for an instance whose request is its limit."""
        return self.rule.choose(instance.with_shares(instance.limit, instance.limit), loads)


class InflessByRequest(Struct, frozen=True):
    """INFless-r: an instance is given its request as a fixed quota; its limit is not kept."""

    rule: DiluOriginal = DiluOriginal()
    bounds: ShareBounds = ShareBounds(1.0, float("inf"))

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """The GPUs the rule chooses for an instance whose limit is its request."""
        return self.rule.choose(instance.with_shares(instance.request, instance.request), loads)


_ROUNDING = 1e-9
_UNUSED = 2.0
"""The cost of an unused GPU: more than any score, which is a weighted mean of what is left."""


class ComplementaryJobs(Struct, frozen=True):
    """The policy `dilu`: jobs that ask for a part of one GPU go where they fit best, in the order of the ranking.

    A job may start on a GPU on which requests sum up to at most omega, limits to at most gamma, and memory to the
    GPU's. Of those the one wins of which least is left; GPUs in use before unused ones. Others stay alone.
    Non-preemptive. What a job does not say of its share of time is taken to be its share of memory.
    """

    def share(self, snapshot: Snapshot, ranking: Ranking, place: Place) -> Plan:
        """Starts of all that fit, and who will be beside whom."""
        gpus, taken = GpuMap(snapshot), _Taken(snapshot)
        starts: list[Start] = []
        groups: list[Group] = []
        too_large: set[tuple[GpuRequest, str, bool, GpuPart | None]] = set()  # within a plan GPUs only fill up
        for row in ranking.rows[snapshot.columns.waits[ranking.rows]].tolist():
            job = snapshot.jobs[row]
            shape = (job.request, job.partition, job.may_share, job.part)
            if shape in too_large:
                continue
            found = cheapest(gpus, job, place, taken.costs(job, gpus))
            if found is None:
                too_large.add(shape)
                continue
            beside = tuple(snapshot.jobs[other].job_id for other in sorted(taken.rows_on(found[0])))
            gpus.hold(row, found)
            taken.add(row, found)
            if beside:
                groups.append(Group((*beside, job.job_id), "their requests, limits and memory fit on one GPU"))
            starts.append(Start(job.job_id, gpus.named(found), f"shares with {len(beside)} job(s), by complementarity"))
        return Plan(starts=tuple(starts), groups=tuple(groups))


class _Taken:
    """What is requested, allowed and filled of every GPU, shape (N, G), and by whom."""

    def __init__(self, snapshot: Snapshot) -> None:
        shape = (len(snapshot.nodes), int(snapshot.nodes.gpus.max(initial=0)))
        self._snapshot = snapshot
        self._request, self._limit, self._memory = (np.zeros(shape) for _ in range(3))
        self._rows: dict[tuple[int, int], list[int]] = {}
        holding = GpuMap(snapshot)
        for row in snapshot.columns.holds.nonzero()[0].tolist():
            self.add(row, holding.gpus(row))

    def add(self, row: int, gpus: tuple[tuple[int, int], ...]) -> None:
        part = self._snapshot.jobs[row].part
        for gpu in gpus:
            self._request[gpu] += part.request if part else OMEGA
            self._limit[gpu] += part.limit if part else GAMMA
            self._memory[gpu] += part.memory if part else 1.0
            self._rows.setdefault(gpu, []).append(row)

    def rows_on(self, gpu: tuple[int, int]) -> list[int]:
        return self._rows.get(gpu, [])

    def costs(self, job: Job, gpus: GpuMap) -> Floats:
        """Scores of the GPUs in use that can take the job, more for unused ones; infinity where it cannot go."""
        unused: Bools = gpus.jobs == 0
        part = job.part
        if part is None or not job.may_share or job.request.total != 1:
            return np.where(unused, _UNUSED, np.inf)
        fits = self._request + part.request <= OMEGA + _ROUNDING
        fits &= self._limit + part.limit <= GAMMA + _ROUNDING
        fits &= self._memory + part.memory <= 1.0 + _ROUNDING
        score = left_over(self._request + part.request, self._memory + part.memory)
        return np.where(unused, _UNUSED, np.where(fits, score, np.inf))


def dilu(_options: PolicyOptions) -> Policy:
    """Dilu's placement of jobs that ask for parts of GPUs."""
    summary = "order of submission; parts of GPUs that together use them well (Dilu), requests and limits kept"
    parts = Need(JobData.PARTS, "jobs that ask for whole GPUs share none")
    return Policy("dilu", summary, Fifo(), sharing=ComplementaryJobs(), needs=(parts,))
