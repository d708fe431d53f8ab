"""The settings of the data plane: values, validated at construction.

Every string ends up in HAProxy's configuration or in a file that it reads, so its characters are checked here; code
that builds these values need not know HAProxy's syntax.
"""

from __future__ import annotations

import hashlib
import math
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from inference_gateway.dataplane.open_paths import USUAL_PATHS, path_faults
from inference_gateway.errors import SettingsError
from inference_gateway.queueing import BYTES_PER_TOKEN, Turns


@dataclass(frozen=True, slots=True)
class Trust:
    """The gateway's certificate with its key, and the certificate of the authority that signs the replicas'. PEM."""

    authority: str
    certificate: str = field(repr=False)


def client_context(authority: Path, certificate: Path) -> ssl.SSLContext:
    """The TLS context for connections to replicas; use the replica's name as the server name. Raises `OSError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(authority)
    context.load_cert_chain(certificate)
    return context


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,199}")
PATH = re.compile(r"/[A-Za-z0-9_.~/-]{0,199}")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|[0-9a-fA-F:.]{2,45}")
DIGEST = re.compile(r"[0-9A-F]{64}")
DIRECTORY = re.compile(r"/[A-Za-z0-9_./~+-]{0,80}")
CERTIFICATE = re.compile(r"/[A-Za-z0-9_./~+-]{0,4000}")


def matches(what: str, found: str, pattern: re.Pattern[str], accepted: str, shown: str = "") -> None:
    """Check the whole text against a pattern. `shown` replaces a secret text in the message. Raises `SettingsError`."""
    if not pattern.fullmatch(found):
        raise SettingsError(f"{what}: found {shown or repr(found)}, accepted: {accepted}")


def within(what: str, found: float, least: float, most: float) -> None:
    """Check that a number is finite and within the limits. Raises `SettingsError`."""
    if not (math.isfinite(found) and least <= found <= most):
        raise SettingsError(f"{what}: found {found}, accepted: {least:g} to {most:g}")


def one_of(what: str, found: str, accepted: tuple[str, ...]) -> None:
    """Check that a value is one of those accepted. Raises `SettingsError`."""
    if found not in accepted:
        raise SettingsError(f"{what}: found {found!r}, accepted: {', '.join(accepted)}")


def unique(what: str, found: list[str]) -> None:
    """Check that no name occurs twice. Raises `SettingsError`."""
    seen = set[str]()
    for name in found:
        if name in seen:
            raise SettingsError(f"{what} {name!r} is there twice")
        seen.add(name)


Priority = Literal["interactive", "batch"]
PRIORITIES = ("interactive", "batch")

Route = Literal["none", "prefix"]
"""`prefix`: requests of a session (`x-session-id`), or with a common prefix of the body, go to the same replica unless
it has more than twice the mean load. `none`: to the replica with the fewest requests."""

Repeat = Literal["never-sent", "unanswered"]
"""Which POST requests may be retried on another replica: those that no replica has received, or also those that a
replica received but did not answer (it died, closed the connection, or answered 502 or 503)."""


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """The health checks of a replica.

    Active: `GET path` every `interval_s`, answered 200 within `timeout_s`; `fall` consecutive failures take it out,
    `rise` passes bring it back. Passive: `error_limit` consecutive failed requests (no connection, no or an incomplete
    answer, status 5xx) take it out at once. The health loop, which runs once a second, then ejects it for
    `ejection_s`, and n times as long the n-th time; interval_s x rise should be longer than its period. At least
    `floor_share` of the replicas that accept connections, and at least one, stay in whatever their health.
    """

    path: str = "/health"
    interval_s: float = 2.0
    timeout_s: float = 5.0
    fall: int = 3
    rise: int = 2
    error_limit: int = 3
    floor_share: float = 0.5
    ejection_s: float = 30.0

    def __post_init__(self) -> None:
        matches("health.path", self.path, PATH, "an absolute path")
        within("health.interval_s", self.interval_s, 0.1, 3600)
        within("health.timeout_s", self.timeout_s, 0.1, 600)
        within("health.fall", self.fall, 1, 100)
        within("health.rise", self.rise, 1, 100)
        within("health.error_limit", self.error_limit, 1, 1000)
        within("health.floor_share", self.floor_share, 0, 1)
        within("health.ejection_s", self.ejection_s, 0, 3600)


@dataclass(frozen=True, slots=True)
class Canary:
    """Sends a fraction of a service's requests to another service while that has a replica."""

    service: str
    share: float

    def __post_init__(self) -> None:
        matches("canary.service", self.service, NAME, "names of services")
        within("canary.share", self.share, 0, 1)

    @property
    def of_ten_thousand(self) -> int:
        """The share in units of 1/10,000, in which HAProxy compares it."""
        return round(self.share * 10_000)


_HANDING_ON_S = 10.0


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """One service: its names, and the limits of its requests.

    Clients reach it by the path prefix `/services/NAME`, by the header `x-service: NAME`, or by one of `models` as
    `model` in a JSON body (its name is always one of them). While every replica is at its concurrency, up to
    `queue_limit` requests wait for at most `queue_deadline_s`; while there is no replica, up to `cold_start_limit`
    wait in the activator for at most `cold_start_deadline_s`. Beyond that clients get 503 with `Retry-After:
    retry_after_s`. Requests that have waited longer than `queue_target_s` let those in time pass; 0: first in, first
    out. The order uses a replica's capacity, `requests_per_s` and `concurrency` (see `queueing`). Requests go to the
    replica with the least left to read, at the rate `prompt_tokens_per_s` (None: measured; 0: off), unless `affinity`
    decides.

    A replica has `response_timeout_s` for the first byte and between two bytes, `queued_timeout_s` if the request
    waited for a place. `repeat_posts` says which POST requests may be retried (GET and other idempotent ones may while
    no byte of an answer has arrived); a client overrides it for one request with an `Idempotency-Key` header.

    `paths` are open to clients; others get 404. Those of `models` that are `adapters` (LoRA) are listed as children of
    the first model.
    """

    name: str
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    paths: tuple[str, ...] = USUAL_PATHS
    queue_limit: int = 1000
    queue_deadline_s: float = 120.0
    queue_target_s: float = 0.0
    requests_per_s: float = 10.0
    prompt_tokens_per_s: float | None = None
    concurrency: int = 8
    cold_start_limit: int = 1000
    cold_start_deadline_s: float = 300.0
    response_timeout_s: float = 600.0
    retry_after_s: int = 30
    affinity: Route = "none"
    canary: Canary | None = None
    repeat_posts: Repeat = "never-sent"
    health: HealthSettings = field(default_factory=HealthSettings)

    def __post_init__(self) -> None:
        matches("name", self.name, NAME, "letters, digits, `_`, `.` and `-`, at most 63")
        where = f"service {self.name}: "
        for model in self.models:
            matches(where + "models", model, MODEL, "letters, digits and `_.:/@+-`, at most 200")
        for fault in path_faults(self.paths):
            raise SettingsError(f"{where}paths: {fault}")
        within(where + "queue_limit", self.queue_limit, 0, 1_000_000)
        within(where + "queue_deadline_s", self.queue_deadline_s, 0.001, 86400)
        within(where + "queue_target_s", self.queue_target_s, 0, 86400)
        within(where + "requests_per_s", self.requests_per_s, 1e-6, 1e6)
        within(where + "prompt_tokens_per_s", self.prompt_tokens_per_s or 0.0, 0, 1e9)
        within(where + "concurrency", self.concurrency, 1, 100_000)
        within(where + "cold_start_limit", self.cold_start_limit, 0, 1_000_000)
        within(where + "cold_start_deadline_s", self.cold_start_deadline_s, 0, 86400)
        within(where + "response_timeout_s", self.response_timeout_s, 0.001, 86400)
        within(where + "retry_after_s", self.retry_after_s, 1, 86400)
        one_of(where + "repeat_posts", self.repeat_posts, ("never-sent", "unanswered"))

    @property
    def turns(self) -> Turns:
        """The order of its waiting requests, if it has a target."""
        return Turns(self.queue_target_s, self.queue_deadline_s, self.requests_per_s, self.concurrency)

    @property
    def queued_timeout_s(self) -> float:
        """How long a replica may take for a request that waited: as the activator may hold it if the last one goes."""
        return max(self.response_timeout_s, self.cold_start_deadline_s + _HANDING_ON_S)

    @property
    def held_timeout_s(self) -> float:
        """How long the activator may take, which holds a request until a replica is there and then passes it on."""
        return self.cold_start_deadline_s + self.response_timeout_s + _HANDING_ON_S

    @property
    def spreads_prompts(self) -> bool:
        """Whether requests go to the replica with the least left to read."""
        return self.prompt_tokens_per_s != 0 and self.affinity == "none"

    @property
    def measures_reading(self) -> bool:
        """Whether the reading rate of its replicas is measured at run time."""
        return self.prompt_tokens_per_s is None and self.affinity == "none"

    @property
    def body_bytes_per_s(self) -> float:
        """The configured reading rate of a replica in bytes of request bodies per second; 0 if it is measured."""
        return BYTES_PER_TOKEN * (self.prompt_tokens_per_s or 0.0)

    @property
    def served_models(self) -> tuple[str, ...]:
        """The values of `model` that are routed to this service: its name and `models`, each once."""
        return tuple(dict.fromkeys((self.name, *self.models)))


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Batches: the directory of their files, on storage that all gateways share, and the limits of each key."""

    directory: Path
    file_bytes: int
    files_per_key: int
    requests_per_batch: int


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client's key, of which only the SHA-256 is known (64 capital hex digits; `digest_of`).

    Keys are long and random, so a plain hash is enough: a dictionary attack is not possible. `services` are those that
    it may use; empty: all. `requests_per_minute` limits admitted requests per minute of the clock; None: no limit. From
    `expires_s` (since the epoch) on it is refused; None: never. `tokens_per_minute` and `tokens_per_day` are counted by
    the control plane (`DataPlane.hold_back`).

    Of waiting requests those of `interactive` keys go first, and of these the first `weight` of each key; those of
    `batch` keys go when no interactive one waits.
    """

    name: str
    digest: str
    services: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    expires_s: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    weight: int = 1
    priority: Priority = "interactive"

    def __post_init__(self) -> None:
        matches("key name", self.name, NAME, "letters, digits, `_`, `.` and `-`, at most 63")
        where = f"key {self.name}: "
        matches(where + "digest", self.digest, DIGEST, "64 capital hex digits, a SHA-256", shown="something else")
        for service in self.services:
            matches(where + "services", service, NAME, "names of services")
        for limit in ("requests_per_minute", "tokens_per_minute", "tokens_per_day"):
            found = getattr(self, limit)
            if found is not None:
                within(where + limit, found, 1, 1_000_000_000_000)
        within(where + "weight", self.weight, 1, 1000)
        one_of(where + "priority", self.priority, PRIORITIES)

    @property
    def metered(self) -> bool:
        """Whether its tokens are limited."""
        return self.tokens_per_minute is not None or self.tokens_per_day is not None


def digest_of(key: str) -> str:
    """SHA-256 of a key in the data plane's form: 64 capital hex digits."""
    return hashlib.sha256(key.encode()).hexdigest().upper()


_SOURCE_CONNECTIONS = 1000


LEAVING_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings of the data plane.

    `directory` holds its configuration, sockets and logs, and should be on a local disk. `authentication` is `keys`
    (401 without a known one) or `none`. A request body of more than `body_limit_mib` is refused with 413. HAProxy finds
    a `model` within the first `body_buffer_kib` of a body, the activator any other; each request that is being received
    uses a buffer of that size, so `connection_limit` bounds the memory. One source, an IPv4 address or the first half
    of an IPv6 address, has at most `source_connections` (None: 1,000, and at most half of all) and opens at most
    `source_connections_per_s`, as a mean over 10 s; further ones are closed at once. `certificate` is PEM, the chain
    and its private key, or what HAProxy reads itself as its `crt`; with it the gateway speaks HTTPS.

    `trust` authenticates replicas: nothing is sent before the other end has shown the certificate of the replica of
    that name. None is for tests and measurements: plain HTTP to any server that listens.

    `batches` enables `/v1/files` and `/v1/batches`, `page` the chat page at `/chat`, which itself needs no key.
    """

    directory: Path
    port: int
    host: str = "127.0.0.1"
    services: tuple[ServiceSettings, ...] = ()
    authentication: Literal["keys", "none"] = "keys"
    keys: tuple[ApiKey, ...] = ()
    certificate: str | Path | None = field(default=None, repr=False)
    trust: Trust | None = None
    batches: BatchSettings | None = None
    page: Literal["none", "chat"] = "none"
    threads: int = 1
    connection_limit: int = 8_000
    source_connections: int | None = None
    source_connections_per_s: int = 500
    body_limit_mib: int = 32
    body_buffer_kib: int = 64
    client_timeout_s: float = 60.0
    request_timeout_s: float = 10.0
    leaving_limit_s: float = LEAVING_LIMIT_S
    """How long a replaced HAProxy may finish its requests, after a reload or a handover."""

    def __post_init__(self) -> None:
        # A Unix socket's whole path has 107 characters.
        matches("directory", str(self.directory), DIRECTORY, "an absolute path of at most 80 plain characters")
        within("port", self.port, 1, 65535)
        matches("host", self.host, HOST, "an address or a host name")
        one_of("authentication", self.authentication, ("keys", "none"))
        within("threads", self.threads, 1, 64)
        within("connection_limit", self.connection_limit, 10, 1_000_000)
        if self.source_connections is not None:
            within("source_connections", self.source_connections, 1, 1_000_000)
        within("source_connections_per_s", self.source_connections_per_s, 1, 1_000_000)
        within("body_limit_mib", self.body_limit_mib, 1, 4096)
        within("body_buffer_kib", self.body_buffer_kib, 16, 4096)
        within("client_timeout_s", self.client_timeout_s, 0.1, 86400)
        within("request_timeout_s", self.request_timeout_s, 0.1, 3600)
        within("leaving_limit_s", self.leaving_limit_s, 1, 864000)
        if isinstance(self.certificate, Path):
            matches("certificate", str(self.certificate), CERTIFICATE, "an absolute path of plain characters")
        unique("service", [service.name for service in self.services])
        unique("key", [key.name for key in self.keys])
        unique("digest of key", [key.digest for key in self.keys])
        unique("model", [model for service in self.services for model in service.served_models])

    def of_one_source(self, connections: int) -> int:
        """How many of `connections` one source may have."""
        if self.source_connections is not None:
            return self.source_connections
        return max(1, min(_SOURCE_CONNECTIONS, connections // 2))

    def service(self, name: str) -> ServiceSettings:
        """The service of that name. Raises `SettingsError`."""
        for service in self.services:
            if service.name == name:
                return service
        raise SettingsError(
            f"no service {name!r} (known: {', '.join(known.name for known in self.services) or 'none'})"
        )
