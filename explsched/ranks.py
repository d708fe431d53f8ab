"""The processes that train together with PyTorch, if there are several. Imports nothing: who has them has `torch`."""

from __future__ import annotations

import sys
from types import ModuleType


def any_rank(wanted: bool) -> bool:  # noqa: FBT001  the flag is all that there is to say
    """Whether any process of the default group of `torch.distributed` says yes; without such a group its own answer.

    A collective: all processes must call it, at the same place. It runs on the device that the group's backend serves,
    for NCCL the current one (`torch.cuda.set_device`), and waits for that device. Raises what `all_reduce` raises.
    """
    distributed = _group()
    if distributed is None:
        return wanted
    torch = sys.modules["torch"]
    devices = [served.partition(":")[0] for served in distributed.get_backend_config().split(",")]
    flag = torch.tensor(int(wanted), device="cpu" if "cpu" in devices else devices[0])
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())


def is_first_rank() -> bool:
    """Whether this is rank 0 of the default group of `torch.distributed`, or there is no such group.

    No variable tells: SLURM_PROCID counts tasks that may train each by themselves, and RANK may be a training's own.
    """
    distributed = _group()
    return distributed is None or distributed.get_rank() == 0


def _group() -> ModuleType | None:
    """The module, if the process has joined a group."""
    distributed = sys.modules.get("torch.distributed")
    has_joined = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if has_joined else None
