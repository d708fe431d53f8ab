"""Brings the data plane in line: reads its servers and counters, and changes what is not as it should be.

Compared anew every second: whatever was missed, refused or lost by a restart of HAProxy is made good in the next. Every
call waits for the data plane's answer, with the data plane's own time-out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.state import EventLog, Outage
from inference_gateway.errors import GatewayError
from inference_gateway.model import BatchLoad, DataPlane, Endpoint, ServerState, StartForecast, Traffic


class DataPlaneSync:
    """The servers of the services in `concurrency`, which says how many requests a replica of each may have."""

    def __init__(self, data_plane: DataPlane, concurrency: Mapping[str, int], events: EventLog) -> None:
        self._plane = data_plane
        self._concurrency = concurrency
        self._events = events
        self._outage = Outage("data plane", events)
        self._given: dict[tuple[str, str], int] | None = None
        self._forecasts: dict[str, StartForecast] = {}
        self._held_back: Mapping[str, int] = {}

    def servers(self) -> Sequence[ServerState]:
        """All that it has. Raises `GatewayError`."""
        return self._plane.servers()

    def read(self) -> tuple[Sequence[ServerState] | None, Mapping[str, Traffic]]:
        """Its servers and counters; None and nothing while it does not answer."""
        try:
            found = self._plane.servers(), {traffic.service: traffic for traffic in self._plane.traffic()}
        except GatewayError as error:
            self._outage.note(str(error))
            self._held_back = {}
            self._forecasts.clear()  # a new HAProxy begins with what is configured
            return None, {}
        self._outage.note("")
        return found

    def bring_in_line(self, replicas: Iterable[Replica], have: Sequence[ServerState]) -> None:
        """Change what is not as it should be. `have` is what was read last."""
        for change in changes(replicas, have, self._concurrency, self._given):
            try:
                self._make(change)
                if self._given is not None and isinstance(change, Add):
                    self._given[change.service, change.endpoint.name] = change.endpoint.concurrency
            except GatewayError as error:
                self._events.note("data plane refused", change.service, change=str(change), reason=str(error))

    def limit(self, concurrency: Mapping[str, int]) -> None:
        """Of two gateways: how many requests of a replica of each service go through this one."""
        self._concurrency = concurrency
        self._given = {} if self._given is None else self._given

    def update_forecasts(self, forecasts: Mapping[str, StartForecast]) -> None:
        """Let refused clients know how long a replica takes to start, by what has been measured."""
        for name, starts in forecasts.items():
            if self._forecasts.get(name) != starts:
                try:
                    self._plane.expect(name, starts)
                except GatewayError as error:
                    self._events.note("data plane refused", name, change="Retry-After", reason=str(error))
                self._forecasts[name] = starts

    def hold_back(self, until_s: Mapping[str, int]) -> None:
        """Let keys that have used up their tokens wait."""
        if until_s != self._held_back:
            try:
                self._plane.hold_back(until_s)
            except GatewayError as error:
                self._events.note("data plane refused", change="keys without tokens", reason=str(error))
                return
            self._held_back = dict(until_s)

    def _make(self, change: PlaneChange) -> None:
        if isinstance(change, Add):
            self._plane.add(change.service, change.endpoint)
        elif isinstance(change, Drain):
            self._plane.drain(change.service, change.name)
        else:
            self._plane.remove(change.service, change.name)  # False: in the next tick again


class WithoutBatches:
    """Takes what the batch lane has sent out of the traffic of services that are not to be scaled for it.

    What HAProxy counts and what the worker tells are read at different moments. So what was sent is a debt that
    arrivals pay off, and arrivals only rise: one that falls would be taken for a restart.
    """

    def __init__(self) -> None:
        self._last = BatchLoad("")
        self._debts: dict[str, int] = {}
        self._loads: dict[str, int] = {}
        self._others: dict[str, int] = {}

    def of(self, traffic: Mapping[str, Traffic], load: BatchLoad, idle: Container[str]) -> Mapping[str, Traffic]:
        """The same without the load of batches on the services `idle`."""
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
        last = self._loads.get(name)
        self._loads[name] = one.load
        came = 0 if last is None else one.load - last if one.load >= last else one.load
        debt = self._debts.get(name, 0) + sent
        paid = min(debt, came)
        self._debts[name] = min(debt - paid, in_flight)  # what never got to HAProxy is not owed
        self._others[name] = self._others.get(name, 0) + came - paid
        # Those that wait in HAProxy are the batch's own last.
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
    """Give a replica requests, or its new address."""

    service: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Drain:
    """Give a replica no new requests."""

    service: str
    name: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Forget a replica; not possible while requests are in flight."""

    service: str
    name: str


PlaneChange = Add | Drain | Remove


def changes(
    replicas: Iterable[Replica],
    have: Sequence[ServerState],
    concurrency: Mapping[str, int],
    given: Mapping[tuple[str, str], int] | None = None,
) -> tuple[PlaneChange, ...]:
    """Calls that bring the data plane in line. `concurrency` is by service; other services are left alone.

    `given` is what each replica was added with; None where that never changes.
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
        right = server is not None and (server.host, server.port) == (replica.host, replica.port)
        if right and server is not None and server.state in ("up", "down") and given == concurrency:
            return []
        return [Add(replica.service, Endpoint(replica.name, replica.host, replica.port, concurrency))]
    if server is None:
        return []
    if replica.phase is Phase.DRAINING:
        return [] if server.state in ("draining", "maintenance") else [Drain(replica.service, replica.name)]
    return _gone(server)


def _gone(server: ServerState) -> list[PlaneChange]:
    drain = [] if server.state in ("draining", "maintenance") else [Drain(server.service, server.name)]
    return [*drain, Remove(server.service, server.name)]
