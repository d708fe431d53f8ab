"""In how many sub-batches the batch of a job fits that has a part of a GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping

from wrappers import own_job

VARIABLE = "EXPLSCHED_SUB_BATCHES"


def hint(environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that tells a job with a part of a GPU in how many sub-batches its batch fits. What is set stays."""
    held = environment.get("SLURM_SHARDS_ON_NODE", "")
    node = environment.get("SLURMD_NODENAME", "")
    if not held.isdecimal() or not int(held) or not node or VARIABLE in environment:
        return {}
    gres = re.search(r"^\s*Gres=(\S+)", own_job.told("how many shards a GPU has", "node", node), re.MULTILINE)
    counts = re.findall(r"(gpu|shard):(?:[^:,()]+:)?(\d+)", gres[1]) if gres else []
    gpus, shards = (sum(int(count) for kind, count in counts if kind == wanted) for wanted in ("gpu", "shard"))
    return {VARIABLE: str(sub_batches(int(held), shards // gpus))} if gpus and shards else {}


def sub_batches(held: int, whole: int) -> int:
    """In how many parts a batch that needs a whole GPU's memory goes through `held` of its `whole` shards.

    SJF-BSBF (arXiv 2407.13088) tries sub-batches of B, B/2, B/4, ... and accumulates their gradients, which leaves
    convergence as it is; each more of them costs another start of all kernels, so the largest that fits is the best.
    """
    parts = 1
    while parts * held < whole:
        parts *= 2
    return parts
