"""What the data plane should have against what it has. Pure.

Compared anew every second: whatever was missed, refused or lost by a restart of HAProxy is made good in the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inference_gateway.control.replica import Phase, Replica
from inference_gateway.model import Endpoint, ServerState


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
    replicas: Iterable[Replica], have: Sequence[ServerState], concurrency: Mapping[str, int]
) -> tuple[PlaneChange, ...]:
    """Calls that bring the data plane in line. `concurrency` is by service; other services are left alone."""
    wanted = {(replica.service, replica.name): replica for replica in replicas if replica.service in concurrency}
    known = {(server.service, server.name): server for server in have}
    found: list[PlaneChange] = []
    for key, replica in wanted.items():
        found += _for_replica(replica, known.get(key), concurrency[replica.service])
    for key, server in known.items():
        if key not in wanted and server.service in concurrency:
            found += _gone(server)
    return tuple(found)


def _for_replica(replica: Replica, server: ServerState | None, concurrency: int) -> list[PlaneChange]:
    if replica.phase is Phase.SERVING:
        right = server is not None and (server.host, server.port) == (replica.host, replica.port)
        if right and server is not None and server.state in ("up", "down"):
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
