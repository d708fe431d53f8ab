"""What a job that asks for shards of GPUs looks like to a policy. Pure.

A shard is an equal part of a GPU; how many there are per GPU is the site's choice, and says how many jobs fit on one.
Asking for less than a GPU's worth of them is a job's consent to share. A GPU counts as one, however many hold it.
"""

from __future__ import annotations

from collections.abc import Iterable

from sched_policy.model import GpuRequest, NodeGpus
from slurm_plugin.client.records import SlurmJob, SlurmNode


def per_gpu(nodes: Iterable[SlurmNode]) -> int:
    """Shards of a GPU; where nodes differ the most of them, 0 where no node has any."""
    return max((node.shards // node.gpus for node in nodes if node.gpus), default=0)


def may_share(record: SlurmJob, shards_per_gpu: int) -> bool:
    """Whether the job asks for a part of a GPU only."""
    return record.gpus == 0 and 0 < record.shards_per_node < shards_per_gpu


def request(record: SlurmJob, shards_per_gpu: int) -> GpuRequest:
    """The GPUs it needs, those it only needs a part of included."""
    gpus = _gpus_of_shards(record, shards_per_gpu)
    if gpus:
        return GpuRequest.on_each(record.nodes, gpus)
    return GpuRequest(record.gpus, record.nodes, record.gpus_per_node)


def allocation(record: SlurmJob, shards_per_gpu: int) -> tuple[NodeGpus, ...]:
    """The GPUs it holds, with their indices where Slurm tells them."""
    if record.gpu_indices:
        return tuple(NodeGpus(node, len(indices), indices) for node, indices in record.gpu_indices)
    gpus = _gpus_of_shards(record, shards_per_gpu)
    if gpus:
        return tuple(NodeGpus(node, gpus) for node in record.node_names)
    return tuple(NodeGpus(node, share) for node, share in record.gpu_nodes)


def _gpus_of_shards(record: SlurmJob, shards_per_gpu: int) -> int:
    """GPUs on each node of a job that asks for shards and nothing else; 0 for others."""
    if record.gpus or not shards_per_gpu:
        return 0
    return -(-record.shards_per_node // shards_per_gpu)
