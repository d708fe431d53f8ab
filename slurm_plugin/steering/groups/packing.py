"""Foresees on which GPU of a node Slurm will put the next job that asks for shards. Pure.

Slurm does not let anybody choose the GPU, but its choice follows a rule (select/cons_tres): of the GPUs with enough
shards free the first, or with LL_SHARED_GRES the one with most of them free. On nodes whose GPUs are tied to cores it
takes a GPU near the job's cores first, which is not foreseen here: what became of a job is looked up after its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_plugin.client.records import ShardRule, SlurmJob, SlurmNode


def free_shards(node: SlurmNode, there: Iterable[SlurmJob]) -> list[int] | None:
    """Free shards of each GPU of a node, given the jobs that hold GPUs there; a GPU that is held whole has none.

    None if it is not known which GPU a job holds.
    """
    size = node.shards // node.gpus if node.gpus else 0
    free = [size] * node.gpus
    for job in there:
        indices = dict(job.gpu_indices).get(node.name, ())
        if not indices or max(indices) >= node.gpus:
            return None
        alone = len(indices) == 1 and job.gpus == 0
        for index in indices:  # of shards on several GPUs Slurm does not tell how many are on which
            free[index] = max(0, free[index] - job.shards_per_node) if alone else 0
    return free


def choice(free: Sequence[int], shards: int, rule: ShardRule) -> int | None:
    """The GPU that a job with so many shards gets; None if no GPU has as many left."""
    fitting = [index for index, left in enumerate(free) if left >= shards]
    if rule is ShardRule.LEAST_LOADED:
        fitting.sort(key=lambda index: -free[index])
    return fitting[0] if fitting else None
