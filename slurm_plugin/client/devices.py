"""Reads from `scontrol show job -d` which GPUs of its nodes each job has: squeue tells only how many.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from slurm_plugin.client.notation import expand_hosts, whole
from slurm_plugin.client.records import SlurmJob

_HIGHEST_INDEX = 4095
"""Of a GPU of a node."""

HeldGpus = tuple[tuple[str, tuple[int, ...]], ...]
"""(node, indices of the job's GPUs there), in the order of the nodes."""

_DETAIL_RECORD = re.compile(r"^JobId=(\d{1,10}) ", re.MULTILINE)
_DETAIL_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S+ GRES=(\S*)(?=\s)")
_DETAIL_GPUS = re.compile(
    r"(?:gpu|shard)(?::[^:,()]+)*\(IDX:(?P<indices>[\d,-]+)\)"
    r"|shard(?::[^:,()]+)*\((?P<shards>\d+/\d+(?:,\d+/\d+)*)\)"
    r"|\w+(?::[^:,()]+)*(?:\([^)]*\))?"
)


def nodes_to_ask(jobs: Sequence[SlurmJob]) -> dict[int, tuple[str, ...]]:
    """The nodes of the jobs of which it matters what they have there; the answer is long, so often of none.

    Those are all while some ask for shards, else jobs whose GPUs Slurm may have spread unevenly over their nodes.
    """
    shared = any(job.shards_per_node for job in jobs)
    return {job.job_id: job.node_names for job in jobs if job.node_names and (shared or _may_be_uneven(job))}


def _may_be_uneven(job: SlurmJob) -> bool:
    is_spread = len(job.node_names) > 1 and bool(job.gpu_nodes) and job.gpus_per_node is None
    return is_spread and job.exclusive != "NODE"


def with_held(jobs: Iterable[SlurmJob], held: Mapping[int, HeldGpus]) -> tuple[SlurmJob, ...]:
    """The jobs with what they have on each node, as far as that is known."""
    return tuple(_with_held(job, held[job.job_id]) if job.job_id in held else job for job in jobs)


def _with_held(job: SlurmJob, gpus: HeldGpus) -> SlurmJob:
    counts = tuple((node, len(indices)) for node, indices in gpus)
    return replace(job, gpu_indices=gpus, gpu_nodes=counts if _may_be_uneven(job) else job.gpu_nodes)


def held_gpus(text: str, nodes: Mapping[int, Sequence[str]]) -> dict[int, HeldGpus]:
    """The GPUs of each job that holds some, from `scontrol show job -d`; without jobs for which they are not certain.

    `nodes` are the nodes of each job by squeue: a job's name or comment could pretend others, or a million of them.
    """
    starts = list(_DETAIL_RECORD.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    found: dict[int, HeldGpus | None] = {}
    for start, end in zip(starts, ends, strict=True):
        job_id = int(start[1])
        own = nodes.get(job_id, ())
        found[job_id] = None if job_id in found else _held_in(text[start.end() : end] + " ", own)
    return {job_id: gpus for job_id, gpus in found.items() if gpus}


def _held_in(record: str, own: Sequence[str]) -> HeldGpus | None:
    """The GPUs in one record; None if a node is listed twice or is not the job's, or a text is not understood."""
    by_node: dict[str, tuple[int, ...]] = {}
    known = frozenset(own)
    for nodes, gres in _DETAIL_SHARE.findall(record):
        try:
            names, indices = expand_hosts(nodes, len(known)), _indices(gres)
        except ValueError:
            return None
        for name in names:
            if name in by_node or name not in known:
                return None
            by_node[name] = indices
    return tuple((name, indices) for name, indices in by_node.items() if indices)


def _indices(gres: str) -> tuple[int, ...]:
    """GPU indices in a list such as `gpu:a100:2(IDX:0,2-3),shard:1(IDX:5)`. Raises `ValueError`.

    Newer releases list for each GPU how many of its shards the job has: `shard:3(0/8,3/8)` is GPU 1.
    """
    found: set[int] = set()
    at = 0
    while at < len(gres):
        match = _DETAIL_GPUS.match(gres, at)
        if match is None or gres[match.end() : match.end() + 1] not in ("", ","):
            raise ValueError(f"GRES {gres!r}")
        for part in filter(None, (match["indices"] or "").split(",")):
            first, _, last = part.partition("-")
            found.update(range(whole(first), whole(last or first, _HIGHEST_INDEX) + 1))
        of_each = filter(None, (match["shards"] or "").split(","))
        found.update(gpu for gpu, part in enumerate(of_each) if int(part.partition("/")[0]) > 0)
        at = match.end() + 1
    return tuple(sorted(found))
