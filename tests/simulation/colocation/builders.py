"""Builders for instances that share GPUs."""

from __future__ import annotations

from simulation.colocation.instance import GpuLoads, Hosted, Instance, InstanceKind, InstanceShare, in_billionths

GIB = 1024


def inference(service: str = "web", request: float = 0.2, limit: float = 0.4, gib: int = 5) -> Instance:
    return Instance(service, InstanceKind.INFERENCE, request, limit, (gib * GIB,))


def llm(service: str = "chat", request: float = 0.5, limit: float = 0.6, gib: int = 25) -> Instance:
    return Instance(service, InstanceKind.LLM_INFERENCE, request, limit, (gib * GIB,))


def training(
    service: str = "train", request: float = 0.4, limit: float = 0.6, gib: tuple[int, ...] = (30, 30)
) -> Instance:
    return Instance(service, InstanceKind.TRAINING, request, limit, tuple(g * GIB for g in gib))


def on(key: int, instance: Instance, *gpus: int) -> Hosted:
    """An instance as it declares itself on these GPUs."""
    request, limit = in_billionths(instance.request), in_billionths(instance.limit)
    pairs = zip(gpus, instance.memory_mib, strict=True)
    return Hosted(key, instance, tuple(InstanceShare(gpu, request, limit, mib) for gpu, mib in pairs))


def cluster(*hosted: Hosted, nodes: int = 2, gpus: int = 4, gib: int = 40) -> GpuLoads:
    """Equal nodes with these instances on them; GPU g is number g % gpus of node g // gpus."""
    loads = GpuLoads.uniform(nodes, gpus, gib * GIB)
    for each in hosted:
        loads.add(each)
    return loads
