"""What placements of instances have in common: their interface, and the bounds, score and inference rule of Dilu.

After Dilu (ASPLOS 2025).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from msgspec import Struct

from sched_policy.group.complementary import GAMMA, OMEGA, left_over
from sched_policy.snapshot import Bools, Floats, Ints
from simulation.colocation.instance import GpuLoads, Hosted, Instance, InstanceKind, InstanceShare, in_billionths


class ShareBounds(Struct, frozen=True):
    """How far a GPU may be filled: the sums of requests (omega) and of limits (gamma), as shares of the GPU."""

    request: float = OMEGA
    limit: float = GAMMA


class SharePlace(Protocol):
    """Chooses GPUs for instances that take fractions of them.

    `bounds` is what the placement promises about the declared requests and limits of the instances on each GPU. It is
    not about what the placement charges, which may be less than is declared.
    """

    @property
    def bounds(self) -> ShareBounds:
        """The sums of declared requests and limits that no GPU exceeds."""
        ...

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """The GPUs for an instance and what it is charged there; None if it does not fit. Changes nothing."""
        ...


def place_in_order(
    place: SharePlace, loads: GpuLoads, pending: Iterable[tuple[int, Instance]]
) -> tuple[tuple[Hosted, ...], tuple[int, ...]]:
    """Place waiting instances, given as (key, instance) in order of arrival; `loads` stays as it is.

    Returns what starts, in the same order, and the keys of those that do not fit. Raises `PolicyError` if a key is in
    use already.
    """
    trial = loads.copy()
    started: list[Hosted] = []
    waiting: list[int] = []
    for key, instance in pending:
        shares = place.choose(instance, trial)
        if shares is None:
            waiting.append(key)
            continue
        hosted = Hosted(key, instance, shares)
        trial.add(hosted)
        started.append(hosted)
    return tuple(started), tuple(waiting)


class BestFit(Struct, frozen=True):
    """Best fit over requests and memory, within bounds on requests, limits and memory.

        feasible: sum of requests + request <= omega, sum of limits + limit <= gamma, memory taken + memory <= M
        score = alpha (1 - (sum of requests + request)) + beta (1 - (memory taken + memory) / M)    smallest wins

    Of equal scores the GPU with the lowest index wins. A GPU of unknown memory (M = 0) takes nothing. `bounds` are
    omega and gamma; the score is that of the daemon's policy (`sched_policy.group.complementary`).
    """

    bounds: ShareBounds = ShareBounds()

    def score(self, instance: Instance, loads: GpuLoads) -> Floats:
        """What would be left of each GPU, weighted, shape (P,); by the largest memory of a training."""
        requested: Floats = (loads.request_ppb + instance.request_ppb) / 1e9
        filled: Floats = (loads.memory_mib + max(instance.memory_mib)) / np.maximum(loads.capacity_mib, 1)
        return left_over(requested, filled)

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

    def inference(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
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


def as_declared(instance: Instance, gpus: Ints) -> tuple[InstanceShare, ...]:
    """The instance on these GPUs, one of its memory entries each."""
    pairs = zip(gpus.tolist(), instance.memory_mib, strict=True)
    return tuple(InstanceShare(gpu, instance.request_ppb, instance.limit_ppb, memory_mib) for gpu, memory_mib in pairs)


def part_of_split(llm: Instance) -> Instance:
    """What a split LLM is charged on each of its GPUs, memory apart: its request, and its request as limit too.

    Two GPUs or more then give it at least its limit together; half the limit is charged if that is more.
    """
    return llm.with_shares(llm.request, max(llm.request, llm.limit / 2))


def filled(part: Instance, need_mib: int, gpus: Ints, free_mib: Ints) -> tuple[InstanceShare, ...]:
    """Shares of a split LLM on these GPUs, each filled up before the next, until `need_mib` is reached."""
    shares: list[InstanceShare] = []
    for gpu in gpus.tolist():
        taken_mib = min(need_mib, int(free_mib[gpu]))
        if taken_mib:
            shares.append(InstanceShare(gpu, part.request_ppb, part.limit_ppb, taken_mib))
            need_mib -= taken_mib
    return tuple(shares)


@dataclass(frozen=True, slots=True)
class PlaceByKind(ABC):
    """Inference goes by `BestFit.inference`; a subclass says where LLMs and trainings go."""

    fit: BestFit = BestFit()

    @property
    def bounds(self) -> ShareBounds:
        """Sums of requests and limits that no GPU exceeds."""
        return self.fit.bounds

    def choose(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        """The GPUs for an instance and what it is charged there, None if it does not fit."""
        match instance.kind:
            case InstanceKind.INFERENCE:
                return self.fit.inference(instance, loads)
            case InstanceKind.LLM_INFERENCE:
                return self._llm(instance, loads)
            case InstanceKind.TRAINING:
                return self._training(instance, loads)

    @abstractmethod
    def _llm(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None: ...

    @abstractmethod
    def _training(self, instance: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None: ...

    def _whole_on_active(self, llm: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        gpus = self.fit.best(self.fit.feasible(llm, loads) & loads.active, llm, loads)
        return as_declared(llm, gpus[:1]) if gpus.size else None

    def _whole_on_new(self, llm: Instance, loads: GpuLoads) -> tuple[InstanceShare, ...] | None:
        gpus = np.flatnonzero(self.fit.feasible(llm, loads) & ~loads.active)
        return as_declared(llm, gpus[:1]) if gpus.size else None
