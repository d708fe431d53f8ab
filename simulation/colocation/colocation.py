"""Co-location of inference and training on shared GPUs: how many GPUs a placement needs for a trace of instances.

After the large-scale simulation of Dilu (ASPLOS 2025): instances start and are deleted, nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from sched_policy.columns import Ints
from simulation.colocation.colocation_check import Inspector
from simulation.colocation.instance_trace import Action, InstanceEvent
from simulation.colocation.placements.gpu_loads import GpuLoads
from simulation.colocation.placements.instance import Hosted, InstanceKind
from simulation.colocation.placements.share_base import SharePlace


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
