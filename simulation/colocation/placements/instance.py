"""Instances: pieces of work that take fractions of GPUs (Dilu, ASPLOS 2025, as published by its authors)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace


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


class GpuShare(Struct, frozen=True):
    """What an instance is charged on one GPU (an index of `GpuLoads`). Shares are in billionths of a GPU."""

    gpu: int
    request_ppb: int
    limit_ppb: int
    memory_mib: int


class Hosted(Struct, frozen=True):
    """An instance that runs, known by a key of its own, and what it holds."""

    key: int
    instance: Instance
    shares: tuple[GpuShare, ...]


def in_billionths(share: float) -> int:
    """A share of a GPU as an integer: sums of integers are exact, so a delete gives back what the start took."""
    return round(share * 1_000_000_000)
