"""Two gateways for the same services: what each HAProxy has, and what it is to have.

One control plane leads, the one that has the lock: it alone talks to Slurm, and decides. The other one follows: it
brings its HAProxy in line with what the leader orders. Each tells what its HAProxy has, so that the leader scales for
the load of both, and a replica ends only when neither has requests there. When the leader dies the kernel drops its
lock, and the follower leads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inference_gateway.control import state
from inference_gateway.control.data_plane_sync import DataPlaneSync
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ServerState, StartForecast, Traffic

_STALE_S = 5.0
"""A gateway that has told nothing for so long has no requests: its supervisor starts its parts again sooner."""

_ACTIVE_S = 10.0


@dataclass(frozen=True, slots=True)
class PlaneReport:
    """What one HAProxy has at `time_s`, since the orders of `orders_s` are in force (both since the epoch)."""

    run_directory: str
    time_s: float
    orders_s: float
    servers: tuple[ServerState, ...]
    traffic: tuple[Traffic, ...]


@dataclass(frozen=True, slots=True)
class Orders:
    """What every HAProxy is to have."""

    time_s: float
    replicas: tuple[Replica, ...]
    forecasts: dict[str, StartForecast]
    held_back: dict[str, int]


class OtherPlane:
    """What the other gateway's HAProxy has, as far as it tells. `paths` are those of this gateway."""

    def __init__(self, paths: GatewayPaths) -> None:
        self._paths = paths.of(3 - paths.slot)
        self._active_s: dict[str, float] = {}
        self._loads: dict[tuple[int, str], int] = {}
        self._sums: dict[str, int] = {}
        self._told: PlaneReport | None = None

    def read(self, now_s: float) -> None:
        """Look at what it has told last."""
        told = state.read(self._paths.plane, PlaneReport)
        self._told = told if told is not None and now_s - told.time_s < _STALE_S else None
        for one in self._told.traffic if self._told else ():
            if one.in_flight + one.queued:
                self._active_s[one.service] = now_s

    def share(self, concurrency: Mapping[str, int], now_s: float) -> dict[str, int]:
        """How many requests of a replica this gateway may have: all, or half of them while the other one is asked, too.

        Where one gateway is asked alone, as behind an address that moves, nothing is kept for the other.
        """
        busy = {name for name, at_s in self._active_s.items() if self._told and now_s - at_s < _ACTIVE_S}
        return {name: math.ceil(count / 2) if name in busy else count for name, count in concurrency.items()}

    def with_traffic(self, own: Mapping[str, Traffic]) -> dict[str, Traffic]:
        """The traffic of both. Each counts for itself, and begins anew with a new HAProxy; the sums only rise."""
        other = {one.service: one for one in (self._told.traffic if self._told else ())}
        return {name: self._sum(name, one, other.get(name)) for name, one in own.items()}

    def _sum(self, name: str, own: Traffic, other: Traffic | None) -> Traffic:
        came = self._since_last(0, own) + (self._since_last(1, other) if other else 0)
        self._sums[name] = self._sums.get(name, 0) + came
        more = other or Traffic(name, 0, 0, 0, 0)
        return Traffic(
            name,
            arrivals=self._sums[name],
            responses_5xx=own.responses_5xx + more.responses_5xx,
            in_flight=own.in_flight + more.in_flight,
            queued=own.queued + more.queued,
        )

    def _since_last(self, which: int, traffic: Traffic) -> int:
        last = self._loads.get((which, traffic.service))
        self._loads[which, traffic.service] = traffic.load
        if last is None:
            return 0
        return traffic.load - last if traffic.load >= last else traffic.load

    def with_servers(self, own: Sequence[ServerState], replicas: Iterable[Replica]) -> list[ServerState]:
        """The servers with the requests of both.

        One that drains counts as busy until the other gateway has heard of that.
        """
        if self._told is None:
            return list(own)
        more = {(server.service, server.name): server for server in self._told.servers}
        told_s = self._told.orders_s
        unheard = {(one.service, one.name) for one in replicas if one.phase is Phase.DRAINING and one.since_s >= told_s}
        found = []
        for server in own:
            key = (server.service, server.name)
            other = more.pop(key, None)
            in_flight = server.in_flight + (other.in_flight if other else 0) + (key in unheard)
            found.append(replace(server, in_flight=in_flight))
        return found + [server for server in more.values() if server.in_flight]


@dataclass(slots=True)
class Follower:
    """The control plane of the gateway that does not lead."""

    plane: DataPlaneSync
    paths: GatewayPaths
    run_directory: str
    concurrency: Mapping[str, int]
    other: OtherPlane = field(init=False)
    _orders_s: float = 0.0

    def __post_init__(self) -> None:
        self.other = OtherPlane(self.paths)

    def tick(self, now_s: float) -> None:
        """Do as ordered, and tell what there is."""
        orders = state.read(self.paths.orders, Orders)
        servers, traffic = self.plane.read()
        if servers is None:
            return
        self.other.read(now_s)
        if orders is not None:
            self.plane.limit(self.other.share(self.concurrency, now_s))
            self.plane.bring_in_line(orders.replicas, servers)
            self.plane.update_forecasts(orders.forecasts)
            self.plane.hold_back(orders.held_back)
            self._orders_s = orders.time_s
        told = PlaneReport(self.run_directory, now_s, self._orders_s, tuple(servers), tuple(traffic.values()))
        state.show(self.paths.plane, told)
