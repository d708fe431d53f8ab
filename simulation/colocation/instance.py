"""Instances, which take fractions of GPUs (Dilu, ASPLOS 2025): the loads they put on GPUs, and how they are placed.

Of placements there is what all have in common: their interface, and the bounds, score and inference rule of Dilu.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explsched.errors import PolicyError
from sched_policy.model import Node, NodeGpus
from sched_policy.snapshot import Bools, Floats, Ints, Nodes

OMEGA, GAMMA = 1.0, 1.5
"""The sums of requests and of limits that no GPU exceeds."""

ALPHA, BETA = 0.6, 0.4
"""What a GPU's free share, and its free memory, count."""

_Value = TypeVar("_Value", float, Floats)


def left_over(requests: _Value, memory: _Value) -> _Value:
    """The score of GPUs, given the shares of them that would be requested and filled: the smallest wins."""
    return ALPHA * (1.0 - requests) + BETA * (1.0 - memory)


class InstanceKind(StrEnum):
    """What an instance does; each kind has a placement rule of its own."""

    INFERENCE = "inference"
    LLM_INFERENCE = "llm-inference"
    TRAINING = "training"


class Instance(Struct, frozen=True):
    """One instance of a service, or one training.

    Attributes:
        service: name of the service; instances of one service are found by it.
        kind: what it does.
        request: share of a GPU's streaming multiprocessors that it is guaranteed, on each of its GPUs, 0..1.
        limit: share that it may use when nobody else needs it, `request`..1.
        memory_mib: memory on each of its GPUs; one entry for inference of either kind.

    """

    service: str
    kind: InstanceKind
    request: float
    limit: float
    memory_mib: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """GPUs it asks for. An LLM that is split over a node gets more."""
        return len(self.memory_mib)

    @property
    def request_ppb(self) -> int:
        """`request` in billionths of a GPU."""
        return in_billionths(self.request)

    @property
    def limit_ppb(self) -> int:
        """`limit` in billionths of a GPU."""
        return in_billionths(self.limit)

    def with_shares(self, request: float, limit: float) -> Instance:
        """The same instance with another request and limit."""
        return replace(self, request=request, limit=limit)


class InstanceShare(Struct, frozen=True):
    """What an instance is charged on one GPU (an index of `GpuLoads`). Shares are in billionths of a GPU."""

    gpu: int
    request_ppb: int
    limit_ppb: int
    memory_mib: int


class Hosted(Struct, frozen=True):
    """An instance that runs, known by a key of its own, and what it holds."""

    key: int
    instance: Instance
    shares: tuple[InstanceShare, ...]


def in_billionths(share: float) -> int:
    """A share of a GPU as an integer: sums of integers are exact, so a delete gives back what the start took."""
    return round(share * 1_000_000_000)


class GpuLoads:
    """The loads of all GPUs, numbered through the nodes in order. All arrays have shape (P,), P GPUs in all.

    Attributes:
        node: index of the GPU's node.
        position: index of the GPU on its node.
        first: index of the first GPU of each node, shape (N,).
        usable: whether new instances may go there.
        capacity_mib: memory of the GPU.
        request_ppb: sum of the requests on it, billionths of a GPU.
        limit_ppb: sum of the limits on it, billionths of a GPU.
        memory_mib: memory taken on it.
        instances: how many instances it hosts. A GPU that hosts something is active, any other is new.

    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.node: Ints = np.repeat(np.arange(len(nodes), dtype=np.int64), nodes.gpus)
        self.first: Ints = np.cumsum(nodes.gpus) - nodes.gpus
        self.position: Ints = np.arange(self.node.size, dtype=np.int64) - self.first[self.node]
        self.usable: Bools = nodes.schedulable[self.node]
        self.capacity_mib: Ints = nodes.gpu_memory_mib[self.node]
        self.request_ppb: Ints = np.zeros(self.node.size, dtype=np.int64)
        self.limit_ppb: Ints = np.zeros(self.node.size, dtype=np.int64)
        self.memory_mib: Ints = np.zeros(self.node.size, dtype=np.int64)
        self.instances: Ints = np.zeros(self.node.size, dtype=np.int64)
        self._hosted: dict[int, Hosted] = {}
        self._keys_on: dict[int, list[int]] = {}
        self._keys_of: dict[str, list[int]] = {}

    @classmethod
    def of(cls, nodes: Nodes, hosted: Iterable[Hosted] = ()) -> GpuLoads:
        """The loads of a cluster on which these instances run. Raises `PolicyError` for a key that comes twice."""
        loads = cls(nodes)
        for each in hosted:
            loads.add(each)
        return loads

    @classmethod
    def uniform(cls, nodes: int, gpus_per_node: int, gpu_memory_mib: int) -> GpuLoads:
        """A cluster of equal nodes on which nothing runs."""
        names = (Node(f"n{i + 1}", gpus_per_node, gpu_memory_mib=gpu_memory_mib) for i in range(nodes))
        return cls(Nodes(names))

    @property
    def active(self) -> Bools:
        """GPUs that host something, shape (P,)."""
        return self.instances > 0

    @property
    def hosted(self) -> tuple[Hosted, ...]:
        """All instances, in order of arrival."""
        return tuple(self._hosted.values())

    def on_gpu(self, gpu: int) -> tuple[Hosted, ...]:
        """Instances on a GPU, in order of arrival."""
        return tuple(self._hosted[key] for key in self._keys_on.get(gpu, ()))

    def get(self, key: int) -> Hosted:
        """The instance of that key. Raises `PolicyError` if there is no such key."""
        if key not in self._hosted:
            raise PolicyError(f"no instance {key} runs here")
        return self._hosted[key]

    def of_service(self, service: str) -> tuple[Hosted, ...]:
        """Instances of a service, in order of arrival."""
        return tuple(self._hosted[key] for key in self._keys_of.get(service, ()))

    def add(self, hosted: Hosted) -> None:
        """Add an instance. Raises `PolicyError` if its key is taken."""
        if hosted.key in self._hosted:
            raise PolicyError(f"instance {hosted.key} ({hosted.instance.service}) runs already")
        self._hosted[hosted.key] = hosted
        self._keys_of.setdefault(hosted.instance.service, []).append(hosted.key)
        for share in hosted.shares:
            self._charge(share, 1)
            self._keys_on.setdefault(share.gpu, []).append(hosted.key)

    def remove(self, key: int) -> Hosted:
        """Release everything an instance holds, on all its GPUs. Raises `PolicyError` if there is no such key."""
        hosted = self.get(key)
        del self._hosted[key]
        self._keys_of[hosted.instance.service].remove(key)
        if not self._keys_of[hosted.instance.service]:
            del self._keys_of[hosted.instance.service]
        for share in hosted.shares:
            self._charge(share, -1)
            self._keys_on[share.gpu].remove(key)
            if not self._keys_on[share.gpu]:
                del self._keys_on[share.gpu]
        return hosted

    def copy(self) -> GpuLoads:
        """A copy that can be changed without changing this."""
        made = copy(self)
        for name in ("usable", "request_ppb", "limit_ppb", "memory_mib", "instances"):
            setattr(made, name, getattr(self, name).copy())
        made._hosted = dict(self._hosted)
        made._keys_on = {gpu: list(keys) for gpu, keys in self._keys_on.items()}
        made._keys_of = {service: list(keys) for service, keys in self._keys_of.items()}
        return made

    def index(self, node: int, position: int) -> int:
        """The GPU at a position of a node."""
        return int(self.first[node]) + position

    def named(self, shares: Iterable[InstanceShare]) -> tuple[NodeGpus, ...]:
        """The GPUs of shares as Slurm names them: node by node, with the indices of the GPUs there."""
        found: list[NodeGpus] = []
        for gpu in sorted(share.gpu for share in shares):
            name, position = self.nodes[int(self.node[gpu])].name, int(self.position[gpu])
            if found and found[-1].node == name:
                found[-1] = replace(found[-1], gpus=found[-1].gpus + 1, indices=(*found[-1].indices, position))
            else:
                found.append(NodeGpus(name, 1, (position,)))
        return tuple(found)

    def _charge(self, share: InstanceShare, sign: int) -> None:
        self.request_ppb[share.gpu] += sign * share.request_ppb
        self.limit_ppb[share.gpu] += sign * share.limit_ppb
        self.memory_mib[share.gpu] += sign * share.memory_mib
        self.instances[share.gpu] += sign


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


class BestFit(Struct, frozen=True):
    """Best fit over requests and memory, within bounds on requests, limits and memory.

        feasible: sum of requests + request <= omega, sum of limits + limit <= gamma, memory taken + memory <= M
        score = alpha (1 - (sum of requests + request)) + beta (1 - (memory taken + memory) / M)    smallest wins

    Of equal scores the GPU with the lowest index wins. A GPU of unknown memory (M = 0) takes nothing. `bounds` are
    omega and gamma; the score is that of the policy `dilu`.
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
