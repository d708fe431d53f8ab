"""Which GPUs of which nodes running jobs hold, from `scontrol show job --detail --oneliner`. Pure.

squeue does not tell it. What users wrote (names, paths, comments) stands unquoted between the fields, line breaks
included, so a record that could be read in two ways counts as unknown: its job then shares with nobody.
"""

from __future__ import annotations

import re

from slurm_plugin.client.spelling import expand_hosts

Held = tuple[tuple[str, tuple[int, ...]], ...]
"""(node, indices of the job's GPUs there), in the order of the nodes."""

_RECORD = re.compile(r"^JobId=(\d+) ", re.MULTILINE)
_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=\S* Mem=\S+ GRES=(\S*)(?=\s)")
_GPUS = re.compile(
    r"(?:gpu|shard)(?::[^:,()]+)*\(IDX:(?P<indices>[\d,-]+)\)"
    r"|shard(?::[^:,()]+)*\((?P<shards>\d+/\d+(?:,\d+/\d+)*)\)"
    r"|\w+(?::[^:,()]+)*(?:\([^)]*\))?"
)


def held(text: str) -> dict[int, Held]:
    """The GPUs of each job that holds some; without the jobs of which it is not certain."""
    starts = list(_RECORD.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    found: dict[int, Held | None] = {}
    for start, end in zip(starts, ends, strict=True):
        job_id = int(start[1])
        found[job_id] = None if job_id in found else _of_record(text[start.end() : end] + " ")
    return {job_id: gpus for job_id, gpus in found.items() if gpus}


def _of_record(record: str) -> Held | None:
    """What one record tells; None if it tells something twice, or in a way that is not understood."""
    by_node: dict[str, tuple[int, ...]] = {}
    for nodes, gres in _SHARE.findall(record):
        try:
            names, indices = expand_hosts(nodes), _indices(gres)
        except ValueError:
            return None
        for name in names:
            if name in by_node:
                return None
            by_node[name] = indices
    return tuple((name, indices) for name, indices in by_node.items() if indices)


def _indices(gres: str) -> tuple[int, ...]:
    """GPU indices in a list such as `gpu:a100:2(IDX:0,2-3),shard:1(IDX:5)`. Raises `ValueError`.

    Newer Slurms list of each GPU how many of its shards the job has: `shard:3(0/8,3/8)` is GPU 1.
    """
    found: set[int] = set()
    at = 0
    while at < len(gres):
        match = _GPUS.match(gres, at)
        if match is None or gres[match.end() : match.end() + 1] not in ("", ","):
            raise ValueError(f"GRES {gres!r}")
        for part in filter(None, (match["indices"] or "").split(",")):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
        of_each = filter(None, (match["shards"] or "").split(","))
        found.update(gpu for gpu, part in enumerate(of_each) if int(part.partition("/")[0]) > 0)
        at = match.end() + 1
    return tuple(sorted(found))
