"""Several HAProxies for the same services: two gateways, and those of gateway jobs that have handed over.

Each gateway has its own HAProxy. The control plane that holds the lock is the leader: it alone decides and talks to
Slurm. The other is the follower: it brings its HAProxy in line with the leader's orders. Each publishes the state of
its HAProxy, so that the leader scales for the load of both, and a replica ends only when neither has requests there.
When the leader dies the kernel releases its lock, and the follower becomes leader.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inference_gateway.accepted import Accepted
from inference_gateway.control import state
from inference_gateway.control.data_plane_sync import DataPlaneSync, Orders
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.state import EventLog
from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import ServerState, Traffic

_STALE_S = 5.0
"""A gateway without a report for this long has no requests: its supervisor restarts its parts sooner than that."""

_ACTIVE_S = 10.0


@dataclass(frozen=True, slots=True)
class PlaneReport:
    """The state of one HAProxy at `time_s`, when the orders of `orders_s` were in force (both since the epoch)."""

    run_directory: str
    time_s: float
    orders_s: float
    servers: tuple[ServerState, ...]
    traffic: tuple[Traffic, ...]


class ReportFile:
    """A file that is written anew every second, while the process that writes it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told_s, self._heard_s = 0.0, 0.0

    def read(self, now_s: float) -> PlaneReport | None:
        """The latest report. How old it is goes by our own clock: that of the other node may be another one."""
        found = state.read(self.path, PlaneReport)
        if found is not None and found.time_s != self._told_s:
            self._told_s, self._heard_s = found.time_s, now_s
        return found if now_s - self._heard_s < _STALE_S else None


def _with_servers(report: PlaneReport, own: Sequence[ServerState], replicas: Iterable[Replica]) -> list[ServerState]:
    """Our servers with the requests that another HAProxy has there, and its servers that ours does not have.

    A draining replica counts as busy until the other HAProxy has received that order.
    """
    theirs = {(server.service, server.name): server for server in report.servers}
    draining = (one for one in replicas if one.phase is Phase.DRAINING)
    busy = {(one.service, one.name) for one in draining if one.since_s >= report.orders_s}
    found = []
    for server in own:
        key = (server.service, server.name)
        other = theirs.pop(key, None)
        in_flight = server.in_flight + (other.in_flight if other else 0) + (key in busy)
        found.append(replace(server, in_flight=in_flight))
    left = [replace(server, in_flight=server.in_flight + (key in busy)) for key, server in theirs.items()]
    return found + [server for server in left if server.in_flight]


NO_MORE_S = sys.float_info.max
"""The time of the orders of an HAProxy that takes no new requests: no later one makes a difference to it."""


class LeavingPlanes:
    """The HAProxies of gateway jobs that have handed over, while they finish their requests."""

    def __init__(self, paths: GatewayPaths) -> None:
        self._directory = paths.leaving
        self._files: dict[Path, ReportFile] = {}
        self._reports: dict[Path, PlaneReport] = {}

    def read(self, now_s: float) -> None:
        """Read their latest reports."""
        paths = tuple(self._directory.glob("*.json"))
        self._files = {path: self._files.get(path) or ReportFile(path) for path in paths}
        self._reports = {path: report for path, file in self._files.items() if (report := file.read(now_s))}

    def prune(self) -> None:
        """Remove what killed jobs have left. Raises `OSError`."""
        for path in self._files.keys() - self._reports.keys():
            path.unlink(missing_ok=True)

    def with_traffic(self, traffic: Mapping[str, Traffic]) -> dict[str, Traffic]:
        """The traffic with the requests that are open there. They have arrived when others counted."""
        found = dict(traffic)
        for one in (one for report in self._reports.values() for one in report.traffic if one.service in traffic):
            seen = found[one.service]
            in_flight, queued = seen.in_flight + one.in_flight, seen.queued + one.queued
            found[one.service] = replace(seen, in_flight=in_flight, queued=queued)
        return found

    def with_servers(self, own: Sequence[ServerState], replicas: Sequence[Replica]) -> Sequence[ServerState]:
        """The servers with the requests that are open there."""
        for report in self._reports.values():
            own = _with_servers(report, own, replicas)
        return own


class OtherPlane:
    """The published state of the other gateway's HAProxy. `paths` are those of this gateway."""

    def __init__(self, paths: GatewayPaths) -> None:
        self._file = ReportFile(paths.of(3 - paths.slot).plane)
        self._active_s: dict[str, float] = {}
        self._seen: dict[tuple[int, str], Traffic] = {}
        self._sums: dict[str, int] = {}
        self._report: PlaneReport | None = None

    def read(self, now_s: float) -> None:
        """Read its latest report."""
        self._report = self._file.read(now_s)
        for one in self._report.traffic if self._report else ():
            if one.in_flight + one.queued:
                self._active_s[one.service] = now_s

    def share(self, concurrency: Mapping[str, int], now_s: float) -> dict[str, int]:
        """How many requests per replica this gateway may have: all, or half of them while the other one is in use too.

        Where only one gateway is in use, as behind a floating address, nothing is reserved for the other.
        """
        busy = {name for name, at_s in self._active_s.items() if self._report and now_s - at_s < _ACTIVE_S}
        return {name: math.ceil(count / 2) if name in busy else count for name, count in concurrency.items()}

    def with_traffic(self, own: Mapping[str, Traffic]) -> dict[str, Traffic]:
        """The traffic of both gateways, or of the one that is known.

        A new HAProxy counts from zero; the sums of arrivals never decrease.
        """
        other = {one.service: one for one in (self._report.traffic if self._report else ())}
        return {name: self._sum(name, (own.get(name), other.get(name))) for name in {**own, **other}}

    def _sum(self, name: str, both: Iterable[Traffic | None]) -> Traffic:
        known = {which: one for which, one in enumerate(both) if one is not None}
        came = sum(self._since_last(which, one) for which, one in known.items())
        self._sums[name] = self._sums.get(name, 0) + came
        return Traffic(
            name,
            arrivals=self._sums[name],
            responses_5xx=sum(one.responses_5xx for one in known.values()),
            in_flight=sum(one.in_flight for one in known.values()),
            queued=sum(one.queued for one in known.values()),
        )

    def _since_last(self, which: int, traffic: Traffic) -> int:
        last = self._seen.get((which, traffic.service), traffic)
        self._seen[which, traffic.service] = traffic
        return max(0, traffic.load_since(last))

    def with_servers(self, own: Sequence[ServerState], replicas: Iterable[Replica]) -> list[ServerState]:
        """The servers with the requests of both gateways."""
        return list(own) if self._report is None else _with_servers(self._report, own, replicas)


@dataclass(slots=True)
class Follower:
    """The control plane of the gateway that is not the leader."""

    plane: DataPlaneSync
    paths: GatewayPaths
    run_directory: str
    concurrency: Mapping[str, int]
    other: OtherPlane = field(init=False)
    _orders_s: float = 0.0

    @classmethod
    def of(cls, now: Accepted, run_directory: Path) -> Follower:
        """The follower of the gateway whose data plane is in this directory."""
        concurrency = {name: service.concurrency for name, service in now.section.services.items()}
        data_plane = HaproxyDataPlane(now.settings(run_directory))
        plane = DataPlaneSync(data_plane, concurrency, EventLog(now.paths.events))
        return cls(plane, now.paths, str(run_directory), concurrency)

    def __post_init__(self) -> None:
        self.other = OtherPlane(self.paths)

    def tick(self, now_s: float) -> None:
        """Carry out the leader's orders and publish the state of this data plane."""
        orders = state.read(self.paths.orders, Orders)
        servers, traffic = self.plane.read()
        if servers is None:
            return
        self.other.read(now_s)
        if orders is not None:
            self.plane.limit(self.other.share(self.concurrency, now_s))
            self.plane.carry_out(orders, servers)
        # With the orders in force when the servers were read: until the new ones were, requests went on coming.
        report = PlaneReport(self.run_directory, now_s, self._orders_s, tuple(servers), tuple(traffic.values()))
        state.show(self.paths.plane, report)
        self._orders_s = self._orders_s if orders is None else orders.time_s
