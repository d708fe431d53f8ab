"""Brings the data plane in line: reads its servers and counters, and changes what differs from the wanted state.

The comparison is repeated every second, so a change that was missed, refused or lost by a restart of HAProxy is made in
the next one. Every call waits for the data plane's answer, with the data plane's own timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVarTuple

from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.state import EventLog, Outage
from inference_gateway.errors import GatewayError
from inference_gateway.model import BatchLoad, DataPlane, Endpoint, ServerState, StartForecast, Traffic

_MUCH = 0.1
_About = TypeVarTuple("_About")


@dataclass(frozen=True, slots=True)
class Orders:
    """The wanted state of every HAProxy, as the leader has decided at `time_s` (since the epoch).

    `forecasts` are by service, for the clients that are refused. `held_back`: keys that have used up their tokens, and
    until when (since the epoch). `reading`: the bytes of prompts that a replica reads per second, by service.
    """

    time_s: float
    replicas: tuple[Replica, ...]
    forecasts: dict[str, StartForecast]
    held_back: dict[str, int]
    reading: dict[str, float] = field(default_factory=dict)


class DataPlaneSync:
    """Manages the servers of the services in `concurrency`, the number of requests that a replica of each may have."""

    def __init__(self, data_plane: DataPlane, concurrency: Mapping[str, int], events: EventLog) -> None:
        self._plane = data_plane
        self._concurrency = concurrency
        self._events = events
        self._outage = Outage("data plane", events)
        self._given: dict[tuple[str, str], int] | None = None
        self._forecasts: dict[str, StartForecast] = {}
        self._held_back: Mapping[str, int] = {}
        self._reading: dict[str, float] = {}
        self._refused: dict[tuple[str, str], str] = {}
        self._refused_changes: dict[PlaneChange, str] = {}
        self._worker = 0

    def servers(self) -> Sequence[ServerState]:
        """All servers of the data plane. Raises `GatewayError`."""
        return self._plane.servers()

    def read(self) -> tuple[Sequence[ServerState] | None, Mapping[str, Traffic]]:
        """Its servers and the traffic by service; None and empty while it does not answer."""
        try:
            worker = self._plane.worker()
            found = self._plane.servers(), {traffic.service: traffic for traffic in self._plane.traffic()}
        except GatewayError as error:
            self._outage.note(str(error))
            return None, {}
        self._outage.note("")
        if worker != self._worker:  # it starts with the configured values, and may have started between two ticks
            self._worker, self._held_back = worker, {}
            self._forecasts.clear()
            self._reading.clear()
        return found

    def carry_out(self, orders: Orders, have: Sequence[ServerState]) -> None:
        """Give the data plane all orders that it does not follow yet. `have` are the servers as last read."""
        self.bring_in_line(orders.replicas, have)
        self.update_forecasts(orders.forecasts)
        self.hold_back(orders.held_back)
        self.read_at(orders.reading)

    def bring_in_line(self, replicas: Iterable[Replica], have: Sequence[ServerState]) -> None:
        """Make the changes that are needed. `have` are the servers as last read."""
        refused: dict[PlaneChange, str] = {}
        for change in changes(replicas, have, self._concurrency, self._given):
            try:
                self._make(change)
                if self._given is not None and isinstance(change, Add):
                    self._given[change.service, change.endpoint.name] = change.endpoint.concurrency
            except GatewayError as error:
                refused[change] = str(error)
                if self._refused_changes.get(change) != str(error):
                    self._events.note("data plane refused", change.service, change=str(change), reason=str(error))
        self._refused_changes = refused

    def limit(self, concurrency: Mapping[str, int]) -> None:
        """With two gateways: set how many requests per replica of each service may go through this one."""
        self._concurrency = concurrency
        self._given = {} if self._given is None else self._given

    def update_forecasts(self, forecasts: Mapping[str, StartForecast]) -> None:
        """Pass on changed forecasts, which refused clients see."""
        for name, starts in forecasts.items():
            known = self._forecasts.get(name)
            if known != starts and self._takes(name, "Retry-After", self._plane.expect, name, starts):
                self._forecasts[name] = starts

    def hold_back(self, until_s: Mapping[str, int]) -> None:
        """Refuse keys that have used up their tokens until the given times (seconds since the epoch)."""
        if until_s != self._held_back and self._takes("", "keys without tokens", self._plane.hold_back, until_s):
            self._held_back = dict(until_s)

    def read_at(self, bytes_per_s: Mapping[str, float]) -> None:
        """Pass on the measured reading rates, by which long prompts are placed, if they have changed by a tenth."""
        for name, rate in bytes_per_s.items():
            sent = self._reading.get(name, 0.0)
            if abs(rate - sent) > _MUCH * sent and self._takes(name, "what is read", self._plane.read_at, name, rate):
                self._reading[name] = rate

    def _takes(self, service: str, change: str, order: Callable[[*_About], None], *about: *_About) -> bool:
        """Whether the data plane takes an order. One that it refuses is given again every second, and noted once."""
        try:
            order(*about)
        except GatewayError as error:
            if self._refused.get((service, change)) != str(error):
                self._events.note("data plane refused", service, change=change, reason=str(error))
            self._refused[service, change] = str(error)
            return False
        self._refused.pop((service, change), None)
        return True

    def _make(self, change: PlaneChange) -> None:
        if isinstance(change, Add):
            self._plane.add(change.service, change.endpoint)
        elif isinstance(change, Drain):
            self._plane.drain(change.service, change.name)
        else:
            self._plane.remove(change.service, change.name)  # if it returns False, the next tick tries again


class WithoutBatches:
    """Subtracts the requests of batches from the traffic of services that are not to be scaled for them.

    HAProxy's counters and the worker's report are read at different times. So requests sent are kept as a debt that
    later arrivals pay off; the resulting arrivals never decrease, because a decrease would be taken for a restart.
    """

    def __init__(self) -> None:
        self._last = BatchLoad("")
        self._debts: dict[str, int] = {}
        self._seen: dict[str, Traffic] = {}
        self._others: dict[str, int] = {}

    def of(self, traffic: Mapping[str, Traffic], load: BatchLoad, idle: Container[str]) -> Mapping[str, Traffic]:
        """The traffic without the requests of batches, for the services in `idle`."""
        before = self._last.sent if self._last.run == load.run else {}
        self._last = load
        return {
            name: self._without(one, load.sent.get(name, 0) - before.get(name, 0), load.in_flight.get(name, 0))
            if name in idle
            else one
            for name, one in traffic.items()
        }

    def _without(self, one: Traffic, sent: int, in_flight: int) -> Traffic:
        name = one.service
        came = max(0, one.load_since(self._seen.get(name, one)))
        self._seen[name] = one
        debt = self._debts.get(name, 0) + sent
        paid = min(debt, came)
        self._debts[name] = min(debt - paid, in_flight)  # requests that never reached HAProxy are no debt
        self._others[name] = self._others.get(name, 0) + came - paid
        # Of the requests queued in HAProxy those of batches come last.
        left = max(0, in_flight - one.in_flight)
        return replace(
            one,
            arrivals=self._others[name],
            responses_4xx=0,
            in_flight=max(0, one.in_flight - in_flight),
            queued=max(0, one.queued - left),
        )


@dataclass(frozen=True, slots=True)
class Add:
    """Send requests to a replica, or change its address."""

    service: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Drain:
    """Send a replica no new requests."""

    service: str
    name: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a replica; not possible while requests are in flight."""

    service: str
    name: str


PlaneChange = Add | Drain | Remove


def changes(
    replicas: Iterable[Replica],
    have: Sequence[ServerState],
    concurrency: Mapping[str, int],
    given: Mapping[tuple[str, str], int] | None = None,
) -> tuple[PlaneChange, ...]:
    """The changes that bring the data plane in line. `concurrency` is by service; other services are left alone.

    `given` is the concurrency with which each replica was added; None if it never changes.
    """
    wanted = {(replica.service, replica.name): replica for replica in replicas if replica.service in concurrency}
    known = {(server.service, server.name): server for server in have}
    found: list[PlaneChange] = []
    for key, replica in wanted.items():
        count = concurrency[replica.service]
        found += _for_replica(replica, known.get(key), count, count if given is None else given.get(key))
    for key, server in known.items():
        if key not in wanted and server.service in concurrency:
            found += _gone(server)
    return tuple(found)


def _for_replica(
    replica: Replica, server: ServerState | None, concurrency: int, given: int | None
) -> list[PlaneChange]:
    if replica.phase is Phase.SERVING:
        right = server is not None and server.listed and (server.host, server.port) == (replica.host, replica.port)
        if right and server is not None and server.state in ("up", "down") and given == concurrency:
            return []
        return [Add(replica.service, Endpoint(replica.name, replica.host, replica.port, concurrency))]
    if server is None:
        return []
    if replica.phase is Phase.DRAINING:
        return _drain(server)
    return _gone(server)


def _gone(server: ServerState) -> list[PlaneChange]:
    return [*_drain(server), Remove(server.service, server.name)]


def _drain(server: ServerState) -> list[PlaneChange]:
    drained = server.listed and server.state in ("draining", "maintenance")
    return [] if drained else [Drain(server.service, server.name)]
