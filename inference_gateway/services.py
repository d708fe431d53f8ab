"""The services file: what the gateway serves, how a replica is started, and how many there may be.

YAML, typed and strict: an unknown key is an error that names the nearest known one; every fault is reported at once.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from inference_gateway.errors import GatewayError
from inference_gateway.model import Capacity
from inference_gateway.scaling import Bounds, build
from slurm_plugin import strict_yaml
from slurm_plugin.strict_yaml import ConfigError, Section

PORT = "{port}"
PLACEHOLDERS = (PORT, "{host}", "{key_file}", "{replica}")
"""What the runner of a replica replaces in its command."""

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", description="letters, digits and -")]
_Plain = Annotated[str, Meta(pattern=r"^[\w.:@%+,-]*$")]
_Time = Annotated[str, Meta(pattern=r"^((\d+-)?\d+(:\d+){0,2})?$")]
_Memory = Annotated[str, Meta(pattern=r"^(\d+[KMGT]?)?$")]
_UrlPath = Annotated[str, Meta(pattern=r"^(/[\w.~%-]+)*/?$")]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]


def _seconds(description: str) -> Meta:
    return Meta(gt=0, le=86_400, description=description)


class ListenSection(Section, frozen=True):
    """Where clients reach the gateway."""

    host: Annotated[str, Meta(pattern=r"^[\w.:-]+$", description="address to listen on")] = "0.0.0.0"  # noqa: S104
    port: Annotated[int, Meta(ge=1, le=65535, description="port to listen on")] = 8080
    certificate: Annotated[Path | None, Meta(description="PEM file with certificate and key: TLS")] = None


class SlurmSection(Section, frozen=True):
    """How to reach Slurm."""

    timeout_s: Annotated[float, _seconds("longest wait for one Slurm command")] = 15.0
    poll_s: Annotated[float, Meta(ge=1, le=300, description="time between two looks at the replicas' jobs")] = 5.0


class JobSection(Section, frozen=True):
    """The gateway's own Slurm job."""

    partition: Annotated[_Plain, Meta(description="partition")] = ""
    account: Annotated[_Plain, Meta(description="account")] = ""
    qos: Annotated[_Plain, Meta(description="QOS")] = ""
    time: Annotated[_Time, Meta(description="time limit, as sbatch takes it")] = ""
    cpus: Annotated[int, Meta(ge=1, le=1024, description="CPUs")] = 2
    memory: Annotated[_Memory, Meta(description="memory, as sbatch takes it")] = "2G"
    handover_s: Annotated[
        int, Meta(ge=10, le=65_535, description="a successor takes over this long before the end")
    ] = 300


class HeaderSection(Section, frozen=True):
    """A header that leads to a service."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+$", description="header name")]
    value: Annotated[str, Meta(pattern=r"^[\x21-\x7e]+$", description="value, exactly")]


class KernelSection(Section, frozen=True):
    """Share of a GPU, where replicas run under the kernel manager."""

    priority: Annotated[Literal["high", "best-effort"] | None, Meta(description="kernel class; null: no share")] = None
    request: Annotated[float, Meta(ge=0, le=1, description="share that is always there")] = 0.0
    limit: Annotated[float, Meta(gt=0, le=1, description="share that is never exceeded")] = 1.0


class ReplicaSection(Section, frozen=True):
    """One replica: a Slurm job that runs an HTTP server on one node."""

    command: Annotated[
        str, Meta(min_length=1, description="server to run; {port} is replaced (also {host}, {key_file})")
    ]
    setup: Annotated[str, Meta(description="shell lines before the command, such as module load")] = ""
    gpus: Annotated[int, Meta(ge=0, le=64, description="GPUs")] = 0
    gres: Annotated[_Plain, Meta(description="other GRES, such as shard:8")] = ""
    cpus: Annotated[int, Meta(ge=1, le=1024, description="CPUs")] = 1
    memory: Annotated[_Memory, Meta(description="memory, as sbatch takes it")] = ""
    time: Annotated[_Time, Meta(description="time limit, as sbatch takes it")] = ""
    partition: Annotated[_Plain, Meta(description="partition")] = ""
    account: Annotated[_Plain, Meta(description="account")] = ""
    qos: Annotated[_Plain, Meta(description="QOS of the replicas up to scale.min")] = ""
    burst_qos: Annotated[_Plain, Meta(description="QOS of those above scale.min; they are requeueable")] = ""
    options: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^--[a-z]")], ...],
        Meta(description="more sbatch options, such as --exclude=n3"),
    ] = ()
    health_path: Annotated[str, Meta(pattern=r"^/[\x21-\x7e]*$", description="answers 200 once it can serve")] = (
        "/health"
    )
    key_variable: Annotated[
        str, Meta(pattern=r"^[A-Za-z_]\w*$", description="environment variable with the replica's API key")
    ] = "EXPLSCHED_API_KEY"
    start_limit_s: Annotated[float, _seconds("a running job that does not serve by then is cancelled")] = 900.0
    kernel: KernelSection = KernelSection()


class ScaleSection(Section, frozen=True):
    """How many replicas."""

    rule: Annotated[str, Meta(description="scaling rule")] = "slurm"
    options: Annotated[dict[str, bool | int | float | str], Meta(description="options of the rule")] = (
        msgspec.field(default_factory=dict)
    )
    min: Annotated[int, Meta(ge=0, le=10_000, description="replicas at least; 0: none while nobody asks")] = 1
    max: Annotated[int, Meta(ge=1, le=10_000, description="replicas at most")] = 8
    max_pending: Annotated[int, Meta(ge=1, le=10_000, description="replicas that start at a time, at most")] = 8
    start_s: Annotated[float, _seconds("time from submission to serving, until it has been measured")] = 120.0
    hold_s: Annotated[float, Meta(ge=0, le=86_400, description="no scale-in for this long after a start")] = 60.0
    attempts: Annotated[int, Meta(ge=1, le=100, description="failed starts in a row after which no more are made")] = 5


class ServiceSection(Section, frozen=True):
    """One service."""

    replica: ReplicaSection
    models: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...], Meta(description="model names")
    ] = ()
    path: Annotated[_UrlPath, Meta(description="path prefix that leads here")] = ""
    header: HeaderSection | None = None
    concurrency: Annotated[int, Meta(ge=1, le=100_000, description="requests of one replica at a time")] = 8
    requests_per_s: Annotated[float, Meta(gt=0, le=1e6, description="requests/s that one replica answers")] = 10.0
    queue_length: Annotated[_Count, Meta(description="requests that may wait; more get 503")] = 1000
    queue_deadline_s: Annotated[float, _seconds("longest wait; then 503")] = 60.0
    drain_deadline_s: Annotated[float, _seconds("longest a leaving replica may finish its requests")] = 300.0
    scale: ScaleSection = ScaleSection()

    def capacity(self) -> Capacity:
        """What one replica does, as configured."""
        return Capacity(self.requests_per_s, self.concurrency, self.scale.start_s)

    def generation(self) -> str:
        """Changes with all that makes one replica unlike another: jobs of another generation get replaced."""
        return hashlib.sha256(msgspec.json.encode(self.replica)).hexdigest()[:8]


class GatewaySection(Section, frozen=True):
    """All of a services file."""

    services: dict[Name, ServiceSection]
    name: Annotated[Name, Meta(description="the gateway's name: in job names and tags")] = "gateway"
    directory: Annotated[
        Path | None, Meta(description="state, on storage all nodes share; null: ~/.explsched/gateway/NAME")
    ] = None
    keys: Annotated[Path | None, Meta(description="file of API keys; null: no keys")] = None
    listen: ListenSection = ListenSection()
    slurm: SlurmSection = SlurmSection()
    job: JobSection = JobSection()

    @property
    def state_directory(self) -> Path:
        """Where the gateway keeps its state."""
        return self.directory or Path.home() / ".explsched" / "gateway" / self.name


def load(path: Path) -> GatewaySection:
    """Read and check a services file. Raises `ConfigError` listing every fault at once."""
    return parse(strict_yaml.file_text(path), path)


def parse(text: str, path: Path) -> GatewaySection:
    """Check the text of a services file; `path` serves the messages, and relative paths start from its directory."""
    faults: list[str] = []
    found = strict_yaml.read(GatewaySection, strict_yaml.mapping(text, path), faults)
    if found is not None:
        faults += _faults(found)
    if found is None or faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return _resolved(found, path.resolve().parent)


def described() -> Iterator[tuple[str, str, object]]:
    """Every key in dots, with its meaning and its default."""
    return strict_yaml.described(GatewaySection)


def _resolved(section: GatewaySection, base: Path) -> GatewaySection:
    def at(path: Path | None) -> Path | None:
        return None if path is None else base / path.expanduser()

    listen = msgspec.structs.replace(section.listen, certificate=at(section.listen.certificate))
    return msgspec.structs.replace(section, directory=at(section.directory), keys=at(section.keys), listen=listen)


def _faults(section: GatewaySection) -> Iterator[str]:
    """What no single key shows."""
    if not section.services:
        yield "services: is empty, at least one is needed"
    for name, service in section.services.items():
        for fault in _service_faults(service):
            yield f"services.{name}.{fault}"
    yield from _ambiguous("model", {name: service.models for name, service in section.services.items()})
    paths = {name: (service.path.rstrip("/"),) for name, service in section.services.items() if service.path}
    yield from _ambiguous("path", paths)
    headers = {
        name: (f"{service.header.name.lower()}: {service.header.value}",)
        for name, service in section.services.items()
        if service.header
    }
    yield from _ambiguous("header", headers)


def _service_faults(service: ServiceSection) -> Iterator[str]:
    replica, scale = service.replica, service.scale
    if not (service.models or service.path or service.header):
        yield "models: nothing leads to this service; give it models, a path or a header"
    try:
        shlex.split(replica.command)
    except ValueError as error:
        yield f"replica.command: {error}, found {replica.command!r}"
    if PORT not in replica.command:
        yield f"replica.command: must name the port to listen on as {PORT}, found {replica.command!r}"
    if replica.kernel.request > replica.kernel.limit:
        yield f"replica.kernel.request: {replica.kernel.request} is above the limit, {replica.kernel.limit}"
    try:
        build(scale.rule, scale.options, service.capacity(), Bounds(scale.min, scale.max, scale.max_pending))
    except GatewayError as error:
        yield f"scale: {error}"


def _ambiguous(kind: str, values: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for service, given in values.items():
        for value in given:
            first = owners.setdefault(value, service)
            if first != service or given.count(value) > 1:
                yield f"services.{service}: {kind} {value!r} leads to {first!r} already"
