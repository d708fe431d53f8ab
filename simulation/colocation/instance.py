"""Instances, which take fractions of GPUs (Dilu, ASPLOS 2025), and the loads that they put on a cluster's GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explsched.errors import PolicyError
from sched_policy.model import Node, NodeGpus
from sched_policy.snapshot import Bools, Ints, Nodes


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
        self._keys_on: list[list[int]] = [[] for _ in range(self.node.size)]
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
        return tuple(self._hosted[key] for key in self._keys_on[gpu])

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
            self._keys_on[share.gpu].append(hosted.key)

    def remove(self, key: int) -> Hosted:
        """Release everything an instance holds, on all its GPUs. Raises `PolicyError` if there is no such key."""
        if key not in self._hosted:
            raise PolicyError(f"no instance {key} runs here")
        hosted = self._hosted.pop(key)
        self._keys_of[hosted.instance.service].remove(key)
        if not self._keys_of[hosted.instance.service]:
            del self._keys_of[hosted.instance.service]
        for share in hosted.shares:
            self._charge(share, -1)
            self._keys_on[share.gpu].remove(key)
        return hosted

    def copy(self) -> GpuLoads:
        """A copy that can be changed without changing this."""
        return GpuLoads.of(self.nodes, self.hosted)

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
