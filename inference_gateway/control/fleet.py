"""From a number of replicas to what is done about it. Pure: which to start, which to cancel, which to drain.

Replicas whose time ends soon, or that were started from another configuration, are *expiring*: they serve, but do not
count, so that successors are asked for; they are drained once those serve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference_gateway.control.replica import COMING, LIVE, Phase, Replica


@dataclass(frozen=True, slots=True)
class ClassifiedReplicas:
    """The replicas of a service by what they are good for."""

    serving: tuple[Replica, ...]
    coming: tuple[Replica, ...]
    expiring: tuple[Replica, ...]
    leaving: tuple[Replica, ...]

    @property
    def present(self) -> int:
        """Those that count: serving and coming."""
        return len(self.serving) + len(self.coming)


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do now. `start` is a number; the others are replicas with the reason."""

    start: int = 0
    cancel: tuple[tuple[Replica, str], ...] = ()
    drain: tuple[tuple[Replica, str], ...] = ()


def classify(
    replicas: Sequence[Replica], generation: str, start_s: float, drain_s: float, now_s: float
) -> ClassifiedReplicas:
    """Sort the replicas. `start_s` is how long a successor may take, `drain_s` how long the last requests may."""
    live = [replica for replica in replicas if replica.phase in LIVE]
    expiring = {
        replica.name
        for replica in live
        if replica.generation != generation or _ends_soon(replica, start_s + drain_s, now_s)
    }
    counted = [replica for replica in live if replica.name not in expiring]
    return ClassifiedReplicas(
        serving=tuple(replica for replica in counted if replica.phase is Phase.SERVING),
        coming=tuple(replica for replica in counted if replica.phase in COMING),
        expiring=tuple(replica for replica in live if replica.name in expiring),
        leaving=tuple(replica for replica in replicas if replica.phase not in LIVE),
    )


def _ends_soon(replica: Replica, notice_s: float, now_s: float) -> bool:
    if replica.ends_s is None or replica.limit_s is None:
        return False
    # With a time limit shorter than the notice every replica would be replaced as soon as it starts.
    return replica.ends_s - now_s < min(notice_s, replica.limit_s / 2)


def moves(found: ClassifiedReplicas, wanted: int, startable: int, in_flight: Mapping[str, int]) -> Moves:
    """What brings a service to `wanted` replicas. At most `startable` are started; `in_flight` is by replica name."""
    cancel, drain = _retire(found, wanted, in_flight)
    missing = wanted - found.present
    if missing > 0:
        return Moves(min(missing, startable), cancel, drain)
    fewer_cancel, fewer_drain = _fewer(found, -missing, in_flight)
    return Moves(0, cancel + fewer_cancel, drain + fewer_drain)


def _retire(
    found: ClassifiedReplicas, wanted: int, in_flight: Mapping[str, int]
) -> tuple[tuple[tuple[Replica, str], ...], tuple[tuple[Replica, str], ...]]:
    """Expiring replicas that are not needed any more: those that do not serve, and as many as successors serve."""
    idle = tuple((replica, "of an earlier configuration") for replica in found.expiring if replica.phase in COMING)
    serving = [replica for replica in found.expiring if replica.phase is Phase.SERVING]
    spare = max(0, len(found.serving) + len(serving) - wanted)
    serving.sort(key=lambda replica: (_ends(replica), in_flight.get(replica.name, 0), replica.name))
    return idle, tuple((replica, "replaced by a new one") for replica in serving[:spare])


def _fewer(
    found: ClassifiedReplicas, count: int, in_flight: Mapping[str, int]
) -> tuple[tuple[tuple[Replica, str], ...], tuple[tuple[Replica, str], ...]]:
    """The least useful ones: not started first, then the burst ones, least loaded, nearest to their end."""
    # Submissions under way have no job yet that could be cancelled; they are looked at again when they have.
    order = {Phase.PENDING: 0, Phase.STARTING: 1}
    coming = [replica for replica in found.coming if replica.phase in order]
    coming.sort(key=lambda replica: (order[replica.phase], not replica.burst, -replica.asked_s, replica.name))
    cancel = tuple((replica, "not needed any more") for replica in coming[:count])
    under_way = len(found.coming) - len(coming)
    rest = max(0, count - len(cancel) - under_way)
    serving = sorted(
        found.serving,
        key=lambda replica: (not replica.burst, in_flight.get(replica.name, 0), _ends(replica), replica.name),
    )
    return cancel, tuple((replica, "not needed any more") for replica in serving[:rest])


def _ends(replica: Replica) -> float:
    return math.inf if replica.ends_s is None else replica.ends_s
