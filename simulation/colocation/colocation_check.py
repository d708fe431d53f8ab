"""The watch over a co-location simulation: keeps books of its own and believes no placement."""

from __future__ import annotations

from math import fsum, inf

from explsched.errors import ExplschedError
from simulation.colocation.placements.gpu_loads import GpuLoads
from simulation.colocation.placements.instance import Hosted, InstanceKind
from simulation.colocation.placements.share_base import ShareBounds

_ROUNDING = 1e-9
"""Shares are booked in billionths of a GPU."""


class OvercommitError(ExplschedError):
    """A placement broke a promise: too much on a GPU, a torn training, or books that do not add up."""


class Inspector:
    """Checks every start and delete against what the instances declare, not against what they are charged."""

    def __init__(self, loads: GpuLoads, bounds: ShareBounds) -> None:
        self._loads = loads
        self._bounds = bounds
        self._on: dict[int, dict[int, Hosted]] = {}

    def started(self, hosted: Hosted) -> None:
        """Check a start that `loads` has booked. Raises `OvercommitError`."""
        self._check_whole(hosted)
        for share in hosted.shares:
            self._on.setdefault(share.gpu, {})[hosted.key] = hosted
            self._check_gpu(share.gpu)

    def ended(self, hosted: Hosted) -> None:
        """Check a delete that `loads` has booked. Raises `OvercommitError`."""
        for share in hosted.shares:
            del self._on[share.gpu][hosted.key]
            self._check_gpu(share.gpu)

    def _check_whole(self, hosted: Hosted) -> None:
        gpus = {share.gpu for share in hosted.shares}
        given = sorted(share.memory_mib for share in hosted.shares)
        asked = sorted(hosted.instance.memory_mib)
        is_llm = hosted.instance.kind is InstanceKind.LLM_INFERENCE
        split = is_llm and len(given) > 1 and min(given) > 0 and sum(given) == sum(asked)
        if len(gpus) != len(hosted.shares) or not (given == asked or split):
            raise OvercommitError(
                f"{_name(hosted)} asked for memory {asked} MiB and got {given} on GPUs {sorted(gpus)}"
            )
        allowed_ppb = sum(share.limit_ppb for share in hosted.shares)
        if split and self._bounds.limit < inf and allowed_ppb < hosted.instance.limit_ppb - 1:
            raise OvercommitError(f"{_name(hosted)} is split and gets less than its limit {hosted.instance.limit:g}")
        if len({int(self._loads.node[gpu]) for gpu in gpus}) > 1:
            raise OvercommitError(f"{_name(hosted)} is spread over several nodes")
        closed = [gpu for gpu in sorted(gpus) if not self._loads.usable[gpu]]
        if closed:
            raise OvercommitError(f"{_name(hosted)} got {self._where(closed[0])}, which takes no instances")

    def _check_gpu(self, gpu: int) -> None:
        here = tuple(self._on[gpu].values())
        memory_mib = sum(share.memory_mib for hosted in here for share in hosted.shares if share.gpu == gpu)
        rounding = _ROUNDING * len(here)
        for what, taken, most in (
            ("requests", fsum(hosted.instance.request for hosted in here), self._bounds.request + rounding),
            ("limits", fsum(_limit_on(gpu, hosted) for hosted in here), self._bounds.limit + rounding),
            ("memory (MiB)", memory_mib, int(self._loads.capacity_mib[gpu])),
        ):
            if taken > most:
                names = ", ".join(_name(hosted) for hosted in here)
                raise OvercommitError(f"{self._where(gpu)}: {what} sum up to {taken:g}, at most {most:g} fit: {names}")
        booked = (int(self._loads.instances[gpu]), int(self._loads.memory_mib[gpu]))
        if booked != (len(here), memory_mib):
            raise OvercommitError(
                f"{self._where(gpu)}: hosts {len(here)} instances with {memory_mib} MiB, "
                f"but {booked[0]} with {booked[1]} MiB are booked"
            )

    def _where(self, gpu: int) -> str:
        node = self._loads.nodes[int(self._loads.node[gpu])].name
        return f"GPU {int(self._loads.position[gpu])} of {node}"


def _limit_on(gpu: int, hosted: Hosted) -> float:
    """What an instance may use of a GPU: its limit, of which a split LLM is given a part on each of its GPUs."""
    if len(hosted.shares) == hosted.instance.gpus:
        return hosted.instance.limit
    return fsum(share.limit_ppb / 1e9 for share in hosted.shares if share.gpu == gpu)


def _name(hosted: Hosted) -> str:
    return f"{hosted.instance.kind} instance {hosted.key} ({hosted.instance.service})"
