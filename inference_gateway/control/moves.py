"""Which replicas of a service to start, cancel and drain, so that as many serve as are wanted. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference_gateway.control.replica import COMING, LIVE, Phase, Replica


@dataclass(frozen=True, slots=True)
class ClassifiedReplicas:
    """The replicas of a service by their use: `expiring` ones need a successor, `leaving` ones drain or end."""

    serving: tuple[Replica, ...]
    coming: tuple[Replica, ...]
    expiring: tuple[Replica, ...]
    leaving: tuple[Replica, ...]

    @property
    def present(self) -> int:
        """The number of replicas that stay: serving and coming."""
        return len(self.serving) + len(self.coming)

    @property
    def outgoing(self) -> tuple[Replica, ...]:
        """The expiring replicas that serve."""
        return tuple(replica for replica in self.expiring if replica.phase is Phase.SERVING)

    def unreplaced(self, wanted: int | None) -> int:
        """How many of the outgoing ones have no successor yet, where `wanted` replicas were wanted last.

        Without a last decision, as after a restart, the coming replicas are taken for successors.
        """
        missing = len(self.outgoing) - len(self.coming) if wanted is None else wanted - self.present
        return min(max(0, missing), len(self.outgoing))


@dataclass(frozen=True, slots=True)
class Moves:
    """What to do now. `start` is a number; the others are replicas with reasons."""

    start: int = 0
    cancel: tuple[tuple[Replica, str], ...] = ()
    drain: tuple[tuple[Replica, str], ...] = ()


def classify(
    replicas: Sequence[Replica], generation: str, start_s: float, drain_s: float, now_s: float
) -> ClassifiedReplicas:
    """Classify the replicas. A successor may need `start_s` to start; from `drain_s` before its end one may drain."""
    live = [replica for replica in replicas if replica.phase in LIVE]
    expiring = {
        replica.name
        for replica in live
        if replica.generation != generation or replica.replaceable or _ends_soon(replica, start_s + drain_s, now_s)
    }
    counted = [replica for replica in live if replica.name not in expiring]
    return ClassifiedReplicas(
        serving=tuple(replica for replica in counted if replica.phase is Phase.SERVING),
        coming=tuple(replica for replica in counted if replica.phase in COMING),
        expiring=tuple(replica for replica in live if replica.name in expiring),
        leaving=tuple(replica for replica in replicas if replica.phase not in LIVE),
    )


def _ends_soon(replica: Replica, notice_s: float, now_s: float) -> bool:
    if replica.phase is not Phase.SERVING or replica.ends_s is None or replica.limit_s is None:
        return False  # one that still starts in its last minutes is on the way to a failed start
    # With a time limit shorter than the notice every replica would be replaced as soon as it starts.
    return replica.ends_s - now_s < min(notice_s, replica.limit_s / 2)


def moves(found: ClassifiedReplicas, wanted: int, startable: int, in_flight: Mapping[str, int]) -> Moves:
    """The moves that bring a service to `wanted` replicas. At most `startable` are started; `in_flight` is by name."""
    cancel, drain = _retire(found, wanted, in_flight)
    missing = wanted - found.present
    if missing > 0:
        return Moves(min(missing, startable), cancel, drain)
    fewer_cancel, fewer_drain = _fewer(found, -missing, in_flight)
    return Moves(0, cancel + fewer_cancel, drain + fewer_drain)


def _retire(
    found: ClassifiedReplicas, wanted: int, in_flight: Mapping[str, int]
) -> tuple[tuple[tuple[Replica, str], ...], tuple[tuple[Replica, str], ...]]:
    """Expiring replicas that are no longer needed: those that do not serve yet, and those with a serving successor."""
    idle = tuple((replica, "of an earlier configuration") for replica in found.expiring if replica.phase in COMING)
    spare = max(0, len(found.serving) + len(found.outgoing) - wanted)
    outgoing = sorted(
        found.outgoing, key=lambda replica: (_ends(replica), in_flight.get(replica.name, 0), replica.name)
    )
    return idle, tuple((replica, "replaced by a new one") for replica in outgoing[:spare])


def _fewer(
    found: ClassifiedReplicas, count: int, in_flight: Mapping[str, int]
) -> tuple[tuple[tuple[Replica, str], ...], tuple[tuple[Replica, str], ...]]:
    """The `count` least useful replicas: first those not started, then burst, least loaded and soonest ending ones."""
    # Replicas being submitted have no job yet that could be cancelled; they are considered again when they have.
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
