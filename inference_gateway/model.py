"""The values that the parts of the gateway exchange. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Observation:
    """One second of a service, as the autoscaler sees it.

    `arrivals` counts the requests of this second that reached a replica or should have: it includes waiting requests
    and those refused with 503, but not wrong keys (401), exhausted quotas (429) and 4xx answers of replicas. `ready`
    replicas serve, `starting` ones are pending in Slurm or loading, `leaving` ones drain. An expiring replica is ready
    until its successor serves, which is not counted until then; those beyond the wanted number are leaving. `answered`
    counts the requests finished in this second. `loads` has an entry for each serving replica whose server's metrics
    are known.
    """

    now_s: float
    arrivals: int
    in_flight: int
    queued: int
    ready: int
    starting: int
    leaving: int = 0
    answered: int = 0
    loads: tuple[ReplicaLoad, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of a replica, by the metrics of its server.

    `running` and `waiting` are the requests that the server runs and queues; for the data plane both are in flight.
    `kv_cache` is the fraction of the KV cache in use, 0 to 1; None if the server does not report it.
    """

    running: int
    waiting: int
    kv_cache: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas (ready + starting) a rule wants, and why, for the event log."""

    replicas: int
    reason: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of one replica of a service, as configured or as measured so far.

    A replica serves `concurrency` requests at once and answers `requests_per_s` while it always has that many.
    `start_s` is the time from submission until it serves: waiting in Slurm's queue and loading the model.
    """

    requests_per_s: float
    concurrency: int
    start_s: float


class ScaleRule(Protocol):
    """A scaling rule with the history of one service. Called once a second, with increasing `now_s`."""

    name: str

    def decide(self, seen: Observation) -> Decision:
        """The number of replicas wanted now, within the service's bounds."""
        ...

    def calibrate(self, capacity: Capacity) -> None:
        """Use this newly measured capacity from now on."""
        ...


def authority(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a replica. `name` is unique within its service: letters, digits and `-`."""

    name: str
    host: str
    port: int
    concurrency: int

    @property
    def address(self) -> str:
        """`HOST:PORT`, with brackets around an IPv6 address."""
        return authority(self.host, self.port)


@dataclass(frozen=True, slots=True)
class ServerState:
    """A replica as the data plane sees it. `state` is `up`, `down`, `draining` or `maintenance`.

    `passed`: whether it passed its last health check; None while there is none, or one is under way. It may be up all
    the same, because some replicas stay in whatever their health. `listed`: the list with which the data plane starts
    says the same of it.
    """

    service: str
    name: str
    host: str
    port: int
    state: str
    in_flight: int
    passed: bool | None = None
    listed: bool = True


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic of one service: `arrivals` and `responses_*` since the data plane started, the others at present."""

    service: str
    arrivals: int
    responses_5xx: int
    in_flight: int
    queued: int
    responses_4xx: int = 0

    @property
    def load(self) -> int:
        """The arrivals without client errors, which cost a replica next to nothing."""
        return max(0, self.arrivals - self.responses_4xx)

    def load_since(self, last: Traffic) -> int:
        """The load that has come since `last`: negative where client errors belong to requests that came before.

        A smaller number of arrivals was reset by a restart of the data plane: all that it shows has come since.
        """
        return self.load if self.arrivals < last.arrivals else self.load - last.load


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a busy service may have another replica, or room in its queue, sent to clients as Retry-After.

    `given_up`: no replica will start, after too many failed starts, or because the gateway closes.
    """

    retry_after_s: int
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """Requests of batches by service: sent since the worker `run` began, and in flight."""

    run: str
    sent: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)


class DataPlane(Protocol):
    """Carries the requests. Methods raise `GatewayError` and return within their timeouts."""

    def add(self, service: str, endpoint: Endpoint) -> None:
        """Send requests to a replica from now on. If it is known already, its address is changed."""
        ...

    def drain(self, service: str, name: str) -> None:
        """Send no new requests to a replica; those in flight continue."""
        ...

    def remove(self, service: str, name: str) -> bool:
        """Remove a replica; False while requests are in flight."""
        ...

    def worker(self) -> int:
        """The process that takes requests. A new one does not know what the last three methods have said."""
        ...

    def servers(self) -> Sequence[ServerState]:
        """All known replicas."""
        ...

    def traffic(self) -> Sequence[Traffic]:
        """One entry per service."""
        ...

    def hold_back(self, until_s: Mapping[str, int]) -> None:
        """Refuse requests of these keys until the given times (seconds since the epoch); all others are admitted."""
        ...

    def read_at(self, service: str, bytes_per_s: float) -> None:
        """Set the measured rate at which a replica of a service reads prompts, in bytes of request bodies."""
        ...

    def expect(self, service: str, starts: StartForecast) -> None:
        """Set what refused clients of a service are told."""
        ...
