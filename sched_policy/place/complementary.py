"""Dilu's resourcing-complementary placement (ASPLOS 2025): instances that together use a GPU well share it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sched_policy.columns import Bools, Floats, Ints
from sched_policy.place.gpu_loads import GpuLoads
from sched_policy.place.instance import GpuShare, Instance, InstanceKind, in_billionths
from sched_policy.place.share_base import ShareBounds


@dataclass(frozen=True, slots=True)
class Complementary:
    """Best fit over requests and memory, within bounds on requests, limits and memory.

        feasible: sum of requests + request <= omega,  sum of limits + limit <= gamma,  memory taken + memory <= memory M
        score   = alpha (1 - (sum of requests + request)) + beta (1 - (memory taken + memory) / M)      smallest wins

    * inference: among GPUs of workload affinity, else active ones, else new ones. A GPU has affinity if it belongs to a
      training that shares another of its GPUs with an instance of the same service: a training goes at the speed of its
      slowest GPU, so slowing a second one costs it nothing.
    * llm-inference: the active GPU with the smallest score; else split over active GPUs of one node, the fullest memory
      first; else the first new GPU.
    * training: all its GPUs on one node, active ones if the first node that can gives them all, else active and new.

    What the original leaves open: of equal scores the GPU with the lowest index wins; a node is chosen by index; on a node
    with more candidates than a training needs the smallest scores win.

    Where we deviate: an LLM that is split is charged its limit on each of its GPUs, not its request in place of the limit,
    which would let the limits on a GPU exceed gamma unseen. A delete gives back all GPUs of an instance (`GpuLoads`); the
    original handles one GPU, and subtracts a list for a training. The original's live scheduler places an LLM on an active
    GPU with an attribute that does not exist, and by worst fit; this is the rule of its simulator.

    Attributes:
        bounds: omega and gamma.
        request_weight: alpha.
        memory_weight: beta.

    """

    bounds: ShareBounds = ShareBounds()
    request_weight: float = 0.6
    memory_weight: float = 0.4

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        """The GPUs for an instance and what it is charged there, None if it does not fit."""
        match instance.kind:
            case InstanceKind.INFERENCE:
                return self._inference(instance, loads)
            case InstanceKind.LLM_INFERENCE:
                return self._llm(instance, loads)
            case InstanceKind.TRAINING:
                return self._training(instance, loads)

    def score(self, instance: Instance, loads: GpuLoads) -> Floats:
        """What would be left of each GPU, weighted, shape (P,); by the largest memory of a training."""
        request_left = 1.0 - (loads.request_ppb + instance.request_ppb) / 1e9
        memory_left = 1.0 - (loads.memory_mib + max(instance.memory_mib)) / np.maximum(loads.capacity_mib, 1)
        return self.request_weight * request_left + self.memory_weight * memory_left

    def feasible(self, instance: Instance, loads: GpuLoads) -> Bools:
        """GPUs that can take the instance (any of the memories of a training), shape (P,)."""
        fits = loads.memory_mib + max(instance.memory_mib) <= loads.capacity_mib
        return fits & self._within_bounds(instance, loads)

    def _within_bounds(self, instance: Instance, loads: GpuLoads) -> Bools:
        omega_ppb, gamma_ppb = in_billionths(self.bounds.request), in_billionths(self.bounds.limit)
        requests = loads.request_ppb + instance.request_ppb <= omega_ppb
        return loads.usable & requests & (loads.limit_ppb + instance.limit_ppb <= gamma_ppb)

    def _inference(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        feasible, active = self.feasible(instance, loads), loads.active
        for among in (_with_affinity(instance.service, loads), active, ~active):
            candidates = np.flatnonzero(feasible & among)
            if candidates.size:
                return _whole(instance, self._best(candidates, instance, loads)[:1])
        return None

    def _llm(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        feasible, active = self.feasible(instance, loads), loads.active
        candidates = np.flatnonzero(feasible & active)
        if candidates.size:
            return _whole(instance, self._best(candidates, instance, loads)[:1])
        shares = self._split(instance, loads)
        if shares is not None:
            return shares
        new = np.flatnonzero(feasible & ~active)
        return _whole(instance, new[:1]) if new.size else None

    def _split(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        """An LLM over several active GPUs of the first node that has the memory; None if no node has."""
        left_mib = sum(instance.memory_mib)
        open_to_it = loads.active & self._within_bounds(instance, loads)
        free_mib = np.where(open_to_it, loads.capacity_mib - loads.memory_mib, 0)
        of_node_mib = np.bincount(loads.node, weights=free_mib, minlength=len(loads.nodes))
        enough = np.flatnonzero(of_node_mib >= left_mib)
        if not enough.size:
            return None
        here = np.flatnonzero((loads.node == enough[0]) & (free_mib > 0))
        shares: list[GpuShare] = []
        for gpu in here[np.argsort(-loads.memory_mib[here], kind="stable")].tolist():
            part_mib = min(left_mib, int(free_mib[gpu]))
            shares.append(GpuShare(gpu, instance.request_ppb, instance.limit_ppb, part_mib))
            left_mib -= part_mib
            if left_mib == 0:
                break
        return tuple(shares)

    def _training(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        feasible, active = self.feasible(instance, loads), loads.active
        for candidates in (feasible & active, feasible):
            per_node = np.bincount(loads.node[candidates], minlength=len(loads.nodes))
            enough = np.flatnonzero(per_node >= instance.gpus)
            if enough.size:
                here = candidates & (loads.node == enough[0])
                used, new = np.flatnonzero(here & active), np.flatnonzero(here & ~active)
                return _whole(instance, np.concatenate([self._best(used, instance, loads), new])[: instance.gpus])
        return None

    def _best(self, candidates: Ints, instance: Instance, loads: GpuLoads) -> Ints:
        """The candidates, smallest score first."""
        return candidates[np.argsort(self.score(instance, loads)[candidates], kind="stable")]


def _whole(instance: Instance, gpus: Ints) -> tuple[GpuShare, ...]:
    """The instance as it is declared on these GPUs, one memory entry each."""
    pairs = zip(gpus.tolist(), instance.memory_mib, strict=True)
    return tuple(GpuShare(gpu, instance.request_ppb, instance.limit_ppb, memory_mib) for gpu, memory_mib in pairs)


def _with_affinity(service: str, loads: GpuLoads) -> Bools:
    """GPUs of trainings that share another of their GPUs with an instance of the service."""
    found = np.zeros(loads.node.size, dtype=np.bool_)
    for earlier in loads.of_service(service):
        for share in earlier.shares:
            for neighbour in loads.on_gpu(share.gpu):
                if neighbour.instance.kind is InstanceKind.TRAINING:
                    found[[other.gpu for other in neighbour.shares if other.gpu != share.gpu]] = True
    return found
