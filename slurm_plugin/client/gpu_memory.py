"""The memory of a GPU, as far as the names of its type and of its node's features tell.

Slurm itself counts no GPU memory. Sites name it: `gpu:a100_80gb:4`, features such as `gpumem80g` or `vram-24gb`; and
some models come in one size only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_MIB_PER_GIB = 1024
_LARGEST_GIB = 1024
_ONE_SIZE_GIB = {
    "t4": 16,
    "p100": 16,
    "a10": 24,
    "a30": 24,
    "l4": 24,
    "3090": 24,
    "4090": 24,
    "5090": 32,
    "a40": 48,
    "l40": 48,
    "l40s": 48,
    "a6000": 48,
    "h100": 80,
    "h200": 141,
    "b200": 180,
    "mi300x": 192,
}
"""Models that are sold with one size of memory, or almost always (H100). A100 and V100 are not among them."""
_MODEL = re.compile(r"(?<![a-z0-9])(?:[abhlptv]\d{1,4}s?|mi\d{3}x?|\d{4})(?![a-z0-9])")
_MIG = re.compile(r"(?<![a-z0-9])\d{1,2}g\.(\d{1,4})gb(?![a-z0-9])")
"""A part of a GPU by its MIG profile: Slurm names types like `a100_1g.5gb` or `nvidia_a100-sxm4-40gb_1g.5gb`."""
_SIZE = re.compile(r"(?<!\d)(\d{1,4})gi?b?(?![a-z0-9])")


def gpu_memory_of_node(gpu_types: Iterable[str], features: Iterable[str]) -> tuple[int, str]:
    """MiB of each GPU, and a feature that names this size, "" if none does; (0, "") if the size is unknown.

    Types come before features; of several sizes the smallest counts.
    """
    by_type = [found for name in gpu_types if (found := gpu_memory_mib(name))]
    telling = {name: found for name in sorted(features) if (found := gpu_memory_mib(name))}
    sizes = by_type or list(telling.values())
    if not sizes:
        return 0, ""
    least_mib = min(sizes)
    return least_mib, next((name for name, found in telling.items() if found == least_mib), "")


@lru_cache(maxsize=4096)
def gpu_memory_mib(name: str) -> int:
    """What the name of a type or feature tells: a size beside a model or a word for GPU memory, else the model's own.

    A size alone (`512g`) may be that of the node. Of a part of a GPU by MIG it is the part's.
    """
    words = name.lower().replace("_", "-")
    if part := _MIG.search(words):
        return int(part[1]) * _MIB_PER_GIB
    model = _MODEL.search(words)
    size = _SIZE.search(words)
    if size is None:  # `gpumem80g`
        size = re.search(r"(?:gpu|vram|mem)[a-z-]*(\d{1,4})g", words)
    if size and 0 < int(size[1]) <= _LARGEST_GIB and (model or "gpu" in words or "vram" in words):
        return int(size[1]) * _MIB_PER_GIB
    return _ONE_SIZE_GIB.get(model[0], 0) * _MIB_PER_GIB if model else 0
