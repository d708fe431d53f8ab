"""What fits on a GPU and how well: the bounds and the score of Dilu (ASPLOS 2025), and its rule for inference."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.columns import Bools, Floats, Ints
from simulation.colocation.placements.gpu_loads import GpuLoads
from simulation.colocation.placements.instance import GpuShare, Instance, InstanceKind, in_billionths
from simulation.colocation.placements.share_base import ShareBounds


class BestFit(Struct, frozen=True):
    """Best fit over requests and memory, within bounds on requests, limits and memory.

        feasible: sum of requests + request <= omega, sum of limits + limit <= gamma, memory taken + memory <= M
        score = alpha (1 - (sum of requests + request)) + beta (1 - (memory taken + memory) / M)    smallest wins

    Of equal scores the GPU with the lowest index wins. A GPU of unknown memory (M = 0) takes nothing.

    Attributes:
        bounds: omega and gamma.
        request_weight: alpha.
        memory_weight: beta.

    """

    bounds: ShareBounds = ShareBounds()
    request_weight: float = 0.6
    memory_weight: float = 0.4

    def score(self, instance: Instance, loads: GpuLoads) -> Floats:
        """What would be left of each GPU, weighted, shape (P,); by the largest memory of a training."""
        request_left = 1.0 - (loads.request_ppb + instance.request_ppb) / 1e9
        memory_left = 1.0 - (loads.memory_mib + max(instance.memory_mib)) / np.maximum(loads.capacity_mib, 1)
        return self.request_weight * request_left + self.memory_weight * memory_left

    def feasible(self, instance: Instance, loads: GpuLoads) -> Bools:
        """GPUs that can take the instance (any of the memories of a training), shape (P,)."""
        fits = loads.memory_mib + max(instance.memory_mib) <= loads.capacity_mib
        return fits & self.open_to(instance, loads)

    def open_to(self, instance: Instance, loads: GpuLoads) -> Bools:
        """GPUs that can take the request and the limit of the instance, whatever its memory, shape (P,)."""
        omega_ppb, gamma_ppb = in_billionths(self.bounds.request), in_billionths(self.bounds.limit)
        requests = loads.request_ppb + instance.request_ppb <= omega_ppb
        return loads.usable & requests & (loads.limit_ppb + instance.limit_ppb <= gamma_ppb)

    def best(self, candidates: Bools, instance: Instance, loads: GpuLoads) -> Ints:
        """Indices of the candidates, a mask of shape (P,), smallest score first."""
        gpus = np.flatnonzero(candidates)
        return gpus[np.argsort(self.score(instance, loads)[gpus], kind="stable")]

    def inference(self, instance: Instance, loads: GpuLoads) -> tuple[GpuShare, ...] | None:
        """Dilu's rule: the best GPU of workload affinity, else the best active one, else the best new one.

        A GPU has affinity if it belongs to a training that shares another of its GPUs with an instance of the same
        service: a training goes at the pace of its slowest GPU, so slowing a second one costs it little.
        """
        feasible, active = self.feasible(instance, loads), loads.active
        for among in (with_affinity(instance.service, loads), active, ~active):
            gpus = self.best(feasible & among, instance, loads)
            if gpus.size:
                return as_declared(instance, gpus[:1])
        return None


def with_affinity(service: str, loads: GpuLoads) -> Bools:
    """GPUs of trainings that share another of their GPUs with an instance of the service, shape (P,)."""
    found = np.zeros(loads.node.size, dtype=np.bool_)
    for earlier in loads.of_service(service):
        for share in earlier.shares:
            for neighbour in loads.on_gpu(share.gpu):
                if neighbour.instance.kind is InstanceKind.TRAINING:
                    found[[other.gpu for other in neighbour.shares if other.gpu != share.gpu]] = True
    return found


def as_declared(instance: Instance, gpus: Ints) -> tuple[GpuShare, ...]:
    """The instance on these GPUs, one of its memory entries each."""
    pairs = zip(gpus.tolist(), instance.memory_mib, strict=True)
    return tuple(GpuShare(gpu, instance.request_ppb, instance.limit_ppb, memory_mib) for gpu, memory_mib in pairs)


def part_of_split(llm: Instance) -> Instance:
    """What a split LLM is charged on each of its GPUs, memory apart: its request, and its request as limit too.

    Two GPUs or more then give it at least its limit together; half the limit is charged if that is more.
    """
    return llm.with_shares(llm.request, max(llm.request, llm.limit / 2))


def filled(part: Instance, need_mib: int, gpus: Ints, free_mib: Ints) -> tuple[GpuShare, ...]:
    """Shares of a split LLM on these GPUs, each filled up before the next, until `need_mib` is reached."""
    shares: list[GpuShare] = []
    for gpu in gpus.tolist():
        taken_mib = min(need_mib, int(free_mib[gpu]))
        if taken_mib:
            shares.append(GpuShare(gpu, part.request_ppb, part.limit_ppb, taken_mib))
            need_mib -= taken_mib
    return tuple(shares)
