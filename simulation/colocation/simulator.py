"""Co-location of inference and training on shared GPUs: how many GPUs a placement needs for a trace of instances.

After the large-scale simulation of Dilu (ASPLOS 2025): instances start and are deleted. Before a start a placement may
move what runs. That takes no time here, but the copy starts before what it replaces ends, so both are counted and
checked together.
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
from simulation.colocation.moves import Move, MovingPlace


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
        moves: moves of running instances.
        moved_mib: memory of what was moved.
        behind_moves: starts that waited for moves.
        max_during_moves: most GPUs in use while an instance was held twice, there and here.

    """

    gpus: int
    events: int
    started: int
    refused: tuple[InstanceEvent, ...]
    use: tuple[GpuUse, ...]
    moves: int = 0
    moved_mib: int = 0
    behind_moves: int = 0
    max_during_moves: int = 0

    def refused_of(self, kind: InstanceKind) -> int:
        """How many instances of a kind were refused."""
        return sum(event.instance.kind is kind for event in self.refused)

    @property
    def max_active_gpus(self) -> int:
        """Most GPUs in use at one time, that of a move included: what the placement needs."""
        return max(self.max_during_moves, *(use.active_gpus for use in self.use), 0)

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
    cluster = _Cluster(loads, place.bounds)
    moving = place if isinstance(place, MovingPlace) else None
    refused: dict[int, InstanceEvent] = {}
    use: list[GpuUse] = []
    handled = started = behind_moves = 0
    for event in events:
        handled += 1
        if event.action is Action.START:
            moves = moving.moves(event.instance, loads) if moving else ()
            for move in moves:
                cluster.move(move)
            behind_moves += bool(moves)
            shares = place.choose(event.instance, loads)
            if shares is None:
                refused[event.key] = event
            else:
                cluster.start(Hosted(event.key, event.instance, shares))
                started += 1
        elif event.key not in refused:
            cluster.end(event.key)
        now = _use(event.time_s, loads, cluster.request_ppb)
        if use and use[-1].time_s == event.time_s:
            use[-1] = now
        else:
            use.append(now)
    return Colocation(
        loads.node.size,
        handled,
        started,
        tuple(refused.values()),
        tuple(use),
        moves=cluster.moves,
        moved_mib=cluster.moved_mib,
        behind_moves=behind_moves,
        max_during_moves=cluster.max_during_moves,
    )


_COPY = -1
"""The key of an instance that is to take the place of another, until it does."""


class _Cluster:
    """The loads, and what is counted and checked whenever they change."""

    def __init__(self, loads: GpuLoads, bounds: ShareBounds) -> None:
        self.request_ppb = np.zeros(loads.node.size, dtype=np.int64)
        self.moves = self.moved_mib = self.max_during_moves = 0
        self._loads = loads
        self._inspector = Inspector(loads, bounds)

    def start(self, hosted: Hosted) -> None:
        self._loads.add(hosted)
        self._inspector.started(hosted)
        self._request(hosted, 1)

    def end(self, key: int) -> Hosted:
        hosted = self._loads.remove(key)
        self._inspector.ended(hosted)
        self._request(hosted, -1)
        return hosted

    def move(self, move: Move) -> None:
        """Start the copy, then end the instance, whose key the copy takes: in between GPUs hold both."""
        self.moves += 1
        self.moved_mib += sum(share.memory_mib for share in move.shares)
        self.start(Hosted(_COPY, self._loads.get(move.key).instance, move.shares))
        self.max_during_moves = max(self.max_during_moves, int(np.count_nonzero(self._loads.active)))
        hosted = self.end(move.key)
        self._inspector.moved(hosted)
        self.end(_COPY)
        self.start(Hosted(move.key, hosted.instance, move.shares))

    def _request(self, hosted: Hosted, sign: int) -> None:
        self.request_ppb[[share.gpu for share in hosted.shares]] += sign * hosted.instance.request_ppb


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

    def moved(self, hosted: Hosted) -> None:
        """Check that it may be moved. Raises `OvercommitError`."""
        if hosted.instance.kind is InstanceKind.TRAINING:
            raise OvercommitError(f"{_name(hosted)} was moved; trainings stay where they are")

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
