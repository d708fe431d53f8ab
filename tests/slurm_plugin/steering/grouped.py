"""Builders for tests of groups: a Slurm in miniature, whose GPUs hold shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from sched_policy.model import Node
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.records import ClusterRecords, ShardRule, SlurmJob, SlurmNode
from slurm_plugin.observation import requirements
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.policy_job import policy_job
from slurm_plugin.observation.progress import JobProgress
from tests.sched_policy.builders import NOW_S
from tests.slurm_kit import record

PER_GPU = 4


def waiting(job_id: int, wants: int = 1, **fields: Any) -> SlurmJob:
    """A job that asks for shards."""
    base = record(job_id, gpus=0, gpus_per_node=None, shards_per_node=wants, submit_s=float(job_id))
    return replace(base, **fields)


def on_gpu(job_id: int, gpu: int, node: str = "n1", **fields: Any) -> SlurmJob:
    """A job that runs on a share of a GPU."""
    held = {"state": "RUNNING", "start_s": NOW_S - 60, "node_names": (node,), "gpu_indices": ((node, (gpu,)),)}
    return waiting(job_id, **{**held, **fields})


def look(
    *records: SlurmJob, nodes: int = 1, gpus: int = 2, rule: ShardRule = ShardRule.FIRST_FIT, later_s: float = 0.0
) -> Observation:
    """What the daemon would see of these jobs."""
    slurm_nodes = [
        SlurmNode(f"n{i + 1}", "IDLE", gpus, frozenset({"main"}), shards=gpus * PER_GPU) for i in range(nodes)
    ]
    now_s = NOW_S + later_s
    size = requirements.most_shards_per_gpu(slurm_nodes)
    jobs = [policy_job(job, JobProgress(), None, None, size) for job in records]
    snapshot = Snapshot.of(now_s, [Node(node.name, node.gpus, node.partitions) for node in slurm_nodes], jobs)
    by_name = {node.name: node for node in slurm_nodes}
    cluster = ClusterRecords(tuple(slurm_nodes), records, (), rule)
    return Observation(snapshot, cluster, {job.job_id: job for job in records}, by_name)


def devices(found: Sequence[SlurmJob]) -> dict[int, tuple[tuple[str, tuple[int, ...]], ...]]:
    return {job.job_id: job.gpu_indices for job in found}
