"""What the parts of the gateway tell each other: values only, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Observation:
    """One second of a service, as the autoscaler sees it.

    `arrivals` counts the requests of this second that hit a replica or should have: those refused with 503 and those
    that wait are in it; wrong keys (401), used-up quotas (429) and what a replica answered with 4xx are not. `ready`
    replicas serve, `starting` ones are pending in Slurm or loading, `leaving` ones drain and take nothing new; an
    expiring replica is in none of them once its successor is asked for. `answered` counts the requests that replicas
    have finished in this second. `loads` are those of the ready replicas whose servers' metrics are known.
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
    """What the metrics of a replica's server say.

    Requests that it runs, and those that wait inside it, although the data plane counts them as being served.
    `kv_cache` is the share of its KV cache that is in use, 0 to 1; None where the server does not say.
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
    """What one replica of a service does, as configured or as measured so far.

    A replica serves `concurrency` requests at once and, when it always has that many, answers `requests_per_s`.
    `start_s` is the time from submitting a replica until it serves: waiting in Slurm and loading the model.
    """

    requests_per_s: float
    concurrency: int
    start_s: float


class ScaleRule(Protocol):
    """A scaling rule with its memory of one service. Called once a second, with rising `now_s`."""

    name: str

    def decide(self, seen: Observation) -> Decision:
        """The number of replicas wanted now, within the service's bounds."""
        ...

    def calibrate(self, capacity: Capacity) -> None:
        """Plan with another capacity from now on, because it was measured anew."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a replica listens. `name` is unique within its service: letters, digits and `-`."""

    name: str
    host: str
    port: int
    concurrency: int

    @property
    def address(self) -> str:
        """`HOST:PORT`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerState:
    """A replica as the data plane has it. `state` is `up`, `down`, `draining` or `maintenance`."""

    service: str
    name: str
    host: str
    port: int
    state: str
    in_flight: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counters of one service since the data plane started (`arrivals`, ...), and what is there now."""

    service: str
    arrivals: int
    responses_5xx: int
    in_flight: int
    queued: int
    responses_4xx: int = 0

    @property
    def load(self) -> int:
        """The arrivals without those that were errors of clients, which cost a replica next to nothing."""
        return max(0, self.arrivals - self.responses_4xx)


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a service without room may have more: clients read `retry_after_s`. After too many failed starts, never."""

    retry_after_s: int
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class BatchLoad:
    """What the batch lane has sent to each service since its worker, `run`, began, and what it has in flight."""

    run: str
    sent: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)


class DataPlane(Protocol):
    """What carries the requests. Errors are `GatewayError`; every call returns within its timeout."""

    def add(self, service: str, endpoint: Endpoint) -> None:
        """Give a replica requests from now on. Adding what is there already changes its address."""
        ...

    def drain(self, service: str, name: str) -> None:
        """No new requests; those in flight go on."""
        ...

    def remove(self, service: str, name: str) -> bool:
        """Forget a replica; False while requests are in flight."""
        ...

    def servers(self) -> Sequence[ServerState]:
        """All replicas it knows."""
        ...

    def traffic(self) -> Sequence[Traffic]:
        """One entry per service."""
        ...

    def hold_back(self, until_s: Mapping[str, int]) -> None:
        """Refuse what these keys ask until the times given, since the epoch; all others are free."""
        ...

    def read_at(self, service: str, bytes_per_s: float) -> None:
        """What one replica of a service reads, in bytes of requests' bodies, as has been measured."""
        ...

    def expect(self, service: str, starts: StartForecast) -> None:
        """What clients are told when the service has no room for them."""
        ...
