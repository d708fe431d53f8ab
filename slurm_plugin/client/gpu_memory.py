"""The memory of a node's GPUs, from what Slurm knows of them: the type of the GRES, and features. Pure.

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
_SIZE = re.compile(r"(?<!\d)(\d{1,4})gi?b?(?![a-z0-9])")


def of_node(gpu_types: Iterable[str], features: Iterable[str]) -> tuple[int, str]:
    """MiB of each GPU, and the feature that tells, "" where the type does; (0, "") where nothing does, or both differ.

    Of GPUs of several sizes the smallest counts.
    """
    by_type = [found for name in gpu_types if (found := memory_mib(name))]
    telling = {name: found for name in sorted(features) if (found := memory_mib(name))}
    sizes = by_type or list(telling.values())
    if not sizes:
        return 0, ""
    least_mib = min(sizes)
    return least_mib, next((name for name, found in telling.items() if found == least_mib), "")


@lru_cache(maxsize=4096)
def memory_mib(name: str) -> int:
    """What the name of a type or feature tells: a size beside a model or a word for GPU memory, else the model's own.

    A size alone (`512g`) may be that of the node.
    """
    words = name.lower().replace("_", "-")
    model = _MODEL.search(words)
    size = _SIZE.search(words)
    if size is None:  # `gpumem80g`
        size = re.search(r"(?:gpu|vram|mem)[a-z-]*(\d{1,4})g", words)
    if size and 0 < int(size[1]) <= _LARGEST_GIB and (model or "gpu" in words or "vram" in words):
        return int(size[1]) * _MIB_PER_GIB
    return _ONE_SIZE_GIB.get(model[0], 0) * _MIB_PER_GIB if model else 0
