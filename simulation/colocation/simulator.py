"""Co-location of inference and training on shared GPUs: how many GPUs a placement needs for a trace of instances.

After the large-scale simulation of Dilu (ASPLOS 2025): instances start and are deleted, nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum, inf

import numpy as np
from msgspec import Struct

from explsched.errors import ExplschedError
from sched_policy.snapshot import Ints
from simulation.colocation.events import Action, InstanceEvent
from simulation.colocation.instance import GpuLoads, Hosted, InstanceKind, ShareBounds, SharePlace


class GpuUse(Struct, frozen=True):
    """The cluster after the events of one moment, until the next entry's.

    Attributes:
        time_s: the moment.
        active_gpus: GPUs that host something.
        sm_fragmentation: mean over active GPUs of 1 - sum of the requests declared for it; 0 if none is active.
        memory_fragmentation: mean over active GPUs of 1 - memory taken / memory; 0 if none is active.

    """

    time_s: float
    active_gpus: int
    sm_fragmentation: float
    memory_fragmentation: float


class Colocation(Struct, frozen=True):
    """A finished simulation.

    Attributes:
        gpus: GPUs of the cluster.
        events: events handled, deletes of refused instances included.
        started: how many instances got GPUs.
        refused: the starts that did not fit when they came, in that order; they do not come again.
        use: the cluster over time, one entry per moment at which something happened.

    """

    gpus: int
    events: int
    started: int
    refused: tuple[InstanceEvent, ...]
    use: tuple[GpuUse, ...]

    def refused_of(self, kind: InstanceKind) -> int:
        """How many instances of a kind were refused."""
        return sum(event.instance.kind is kind for event in self.refused)

    @property
    def max_active_gpus(self) -> int:
        """Most GPUs in use at one time: what the placement needs."""
        return max((use.active_gpus for use in self.use), default=0)

    @property
    def mean_active_gpus(self) -> float:
        """GPUs in use, mean over time."""
        return _mean_over_time(self.use, [use.active_gpus for use in self.use])

    @property
    def mean_sm_fragmentation(self) -> float:
        """Mean over the time in which GPUs are active, 0..1."""
        return self._mean_while_active([use.sm_fragmentation for use in self.use])

    @property
    def mean_memory_fragmentation(self) -> float:
        """Mean over the time in which GPUs are active, 0..1."""
        return self._mean_while_active([use.memory_fragmentation for use in self.use])

    def _mean_while_active(self, values: Sequence[float]) -> float:
        active_share = _mean_over_time(self.use, [float(use.active_gpus > 0) for use in self.use])
        return _mean_over_time(self.use, values) / active_share if active_share else 0.0


def colocate(events: Iterable[InstanceEvent], place: SharePlace, loads: GpuLoads) -> Colocation:
    """Run events, in order of time, on the GPUs of `loads`, which is changed.

    Raises `OvercommitError` as soon as a placement exceeds the memory of a GPU or the bounds it promises.
    """
    inspector = Inspector(loads, place.bounds)
    request_ppb = np.zeros(loads.node.size, dtype=np.int64)
    refused: dict[int, InstanceEvent] = {}
    use: list[GpuUse] = []
    handled = started = 0
    for event in events:
        handled += 1
        if event.action is Action.START:
            shares = place.choose(event.instance, loads)
            if shares is None:
                refused[event.key] = event
            else:
                hosted = Hosted(event.key, event.instance, shares)
                loads.add(hosted)
                inspector.started(hosted)
                request_ppb[[share.gpu for share in shares]] += event.instance.request_ppb
                started += 1
        elif event.key not in refused:
            hosted = loads.remove(event.key)
            inspector.ended(hosted)
            request_ppb[[share.gpu for share in hosted.shares]] -= event.instance.request_ppb
        now = _use(event.time_s, loads, request_ppb)
        if use and use[-1].time_s == event.time_s:
            use[-1] = now
        else:
            use.append(now)
    return Colocation(loads.node.size, handled, started, tuple(refused.values()), tuple(use))


def _use(time_s: float, loads: GpuLoads, request_ppb: Ints) -> GpuUse:
    active = loads.active
    count = int(np.count_nonzero(active))
    if not count:
        return GpuUse(time_s, 0, 0.0, 0.0)
    taken = loads.memory_mib[active] / loads.capacity_mib[active]
    return GpuUse(time_s, count, 1.0 - float(request_ppb.sum()) / 1e9 / count, 1.0 - float(taken.mean()))


def _mean_over_time(use: Sequence[GpuUse], values: Sequence[float]) -> float:
    """Mean of values that hold from their entry to the next one; of all values if no time passes."""
    if not use:
        return 0.0
    lasts_s = np.diff([entry.time_s for entry in use])
    return float(np.average(values[:-1], weights=lasts_s)) if lasts_s.sum() > 0 else float(np.mean(values))


_ROUNDING = 1e-9
"""Shares are counted in billionths of a GPU."""


class OvercommitError(ExplschedError):
    """A placement is invalid: a GPU is overcommitted, a training is split over nodes, or the loads do not add up."""


class Inspector:
    """Checks every start and delete independently: against what instances declare, not what they are charged."""

    def __init__(self, loads: GpuLoads, bounds: ShareBounds) -> None:
        self._loads = loads
        self._bounds = bounds
        self._on: dict[int, dict[int, Hosted]] = {}

    def started(self, hosted: Hosted) -> None:
        """Check a start that `loads` already holds. Raises `OvercommitError`."""
        self._check_whole(hosted)
        for share in hosted.shares:
            self._on.setdefault(share.gpu, {})[hosted.key] = hosted
            self._check_gpu(share.gpu)

    def ended(self, hosted: Hosted) -> None:
        """Check a delete that `loads` already reflects. Raises `OvercommitError`."""
        for share in hosted.shares:
            del self._on[share.gpu][hosted.key]
            self._check_gpu(share.gpu)

    def _check_whole(self, hosted: Hosted) -> None:
        gpus = {share.gpu for share in hosted.shares}
        given = sorted(share.memory_mib for share in hosted.shares)
        requested = sorted(hosted.instance.memory_mib)
        is_llm = hosted.instance.kind is InstanceKind.LLM_INFERENCE
        split = is_llm and len(given) > 1 and min(given) > 0 and sum(given) == sum(requested)
        if len(gpus) != len(hosted.shares) or not (given == requested or split):
            raise OvercommitError(
                f"{_name(hosted)} requested memory {requested} MiB and got {given} on GPUs {sorted(gpus)}"
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
        counted = (int(self._loads.instances[gpu]), int(self._loads.memory_mib[gpu]))
        if counted != (len(here), memory_mib):
            raise OvercommitError(
                f"{self._where(gpu)}: hosts {len(here)} instances with {memory_mib} MiB, "
                f"but the loads have {counted[0]} with {counted[1]} MiB"
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
