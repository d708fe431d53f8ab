"""The processes that train together with PyTorch, if there are several. Imports nothing: who has them has `torch`."""

from __future__ import annotations

import sys
from types import ModuleType


def any_rank(wanted: bool) -> bool:  # noqa: FBT001  the flag is all that there is to say
    """Whether any process of the default group of `torch.distributed` says yes; without such a group its own answer.

    A collective: all processes must call it, at the same place. It runs on the device that the group's backend serves,
    and waits for that: with NCCL the group's `device_id`, without one the current GPU, which `torch.cuda.set_device`
    must have made another one in each process. Raises what `all_reduce` raises.
    """
    distributed = _group()
    if distributed is None:
        return wanted
    torch = sys.modules["torch"]
    served = dict(pair.split(":") for pair in distributed.get_backend_config().split(","))
    if served.get("cpu", "nccl") != "nccl":  # torch 2.0 names NCCL for the CPU as well, whose tensors it refuses
        device = "cpu"
    else:
        bound = getattr(distributed.group.WORLD, "bound_device_id", None)
        device = bound or next(name for name in served if name != "cpu")
    flag = torch.tensor(int(wanted), device=device)
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
