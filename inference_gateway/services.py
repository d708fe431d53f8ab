"""The services file: the services, how their replicas are started, and how many there may be.

YAML, typed and strict: an unknown key is an error that names the nearest known one; all faults are reported at once.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from explsched import strict_yaml
from explsched.strict_yaml import ConfigError, Key, Section
from inference_gateway.dataplane import settings
from inference_gateway.dataplane.open_paths import USUAL_PATHS, path_faults
from inference_gateway.errors import GatewayError
from inference_gateway.model import Capacity
from inference_gateway.scaling.rules import Bounds, build

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", description="letters, digits and -")]
_Plain = Annotated[str, Meta(pattern=r"^[\w.:@%+,-]*$")]
_Time = Annotated[str, Meta(pattern=r"^((\d+-)?\d+(:\d+){0,2})?$")]
_Memory = Annotated[str, Meta(pattern=r"^(\d+[KMGT]?)?$")]
_Model = Annotated[str, Meta(pattern=f"^{settings.MODEL.pattern}$")]
_PATH = f"^{settings.PATH.pattern}$"
_Share = Annotated[float, Meta(ge=0.001, le=1)]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]


def _seconds(description: str) -> Meta:
    return Meta(gt=0, le=86_400, description=description)


class ListenSection(Section, frozen=True):
    """Where clients reach the gateway."""

    host: Annotated[str, Meta(pattern=f"^({settings.HOST.pattern})$", description="address to listen on")] = "0.0.0.0"  # noqa: S104
    port: Annotated[int, Meta(ge=1, le=65535, description="port to listen on")] = 8080
    page: Annotated[
        Literal["none", "chat"], Meta(description="chat: a page at /chat to try models with an API key")
    ] = "none"
    certificate: Annotated[Path | None, Meta(description="PEM file with certificate and key: HTTPS")] = None
    keys: Annotated[
        Path | None, Meta(description="file of API keys; null: no keys, only with a host such as 127.0.0.1")
    ] = None
    threads: Annotated[int, Meta(ge=1, le=64, description="threads of HAProxy")] = 1
    connection_limit: Annotated[int, Meta(ge=10, le=1_000_000, description="concurrent client connections")] = 20_000
    source_connections: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)] | None,
        Meta(description="concurrent connections per client address; null: 1,000, at most half of all"),
    ] = None
    source_connections_per_s: Annotated[
        int, Meta(ge=1, le=1_000_000, description="new connections per client address and second, mean over 10 s")
    ] = 500
    request_timeout_s: Annotated[
        float, Meta(ge=0.1, le=3600, description="timeout for the headers of a request, and again for its body")
    ] = 10.0
    body_limit_mib: Annotated[int, Meta(ge=1, le=4096, description="larger request bodies get 413")] = 32


class SlurmSection(Section, frozen=True):
    """How to reach Slurm."""

    timeout_s: Annotated[float, _seconds("longest wait for one Slurm command")] = 15.0
    poll_s: Annotated[float, Meta(ge=1, le=300, description="polling interval of the replicas' jobs")] = 5.0


class SecondSection(Section, frozen=True):
    """A second gateway for the same services, with a job of its own."""

    node: Annotated[_Plain, Meta(description="node of the job; empty: any")] = ""
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None, Meta(description="port to listen on; null: as listen.port")
    ] = None


class JobSection(Section, frozen=True):
    """The gateway's own Slurm job."""

    node: Annotated[_Plain, Meta(description="node of the job; empty: any")] = ""
    second: SecondSection | None = None

    partition: Annotated[_Plain, Meta(description="partition")] = ""
    account: Annotated[_Plain, Meta(description="account")] = ""
    qos: Annotated[_Plain, Meta(description="QOS")] = ""
    time: Annotated[_Time, Meta(description="time limit, as sbatch takes it")] = ""
    cpus: Annotated[int, Meta(ge=1, le=1024, description="CPUs")] = 2
    memory: Annotated[_Memory, Meta(description="memory, as sbatch takes it")] = "2G"
    handover_s: Annotated[
        int, Meta(ge=10, le=65_535, description="a successor job takes over this long before the time limit")
    ] = 300


class KernelSection(Section, frozen=True):
    """Share of a GPU, where replicas run under the kernel manager: what `sxrun` is given."""

    share: Annotated[Literal["high", "best-effort"] | None, Meta(description="kernel class; null: no sharing")] = None
    request: Annotated[_Share | None, Meta(description="guaranteed share of the GPU's time")] = None
    limit: Annotated[_Share | None, Meta(description="maximum share of the GPU's time")] = None


class StageSection(Section, frozen=True):
    """A model that is copied to the node's own disk before the server starts; {model} is where."""

    source: Annotated[Path, Meta(description="file or directory on shared storage")]
    target: Annotated[Path, Meta(description="directory on the node's disk, private to the user")]


class ReplicaSection(Section, frozen=True):
    """One replica: a Slurm job that runs an HTTP server on one node, or on several."""

    command: Annotated[
        str, Meta(min_length=1, description="server to run; {port} is replaced (also {host}, {key_file}, {replica})")
    ]
    nodes: Annotated[int, Meta(ge=1, le=1024, description="nodes per replica; GPUs, CPUs and memory are per node")] = 1
    worker_command: Annotated[
        str, Meta(description="command on all nodes but the first; empty: the same command, with another {rank}")
    ] = ""
    stage: StageSection | None = None
    setup: Annotated[str, Meta(description="shell lines before the command, such as module load")] = ""
    gpus: Annotated[int, Meta(ge=0, le=64, description="GPUs")] = 0
    gres: Annotated[_Plain, Meta(description="other GRES, such as shard:8")] = ""
    cpus: Annotated[int, Meta(ge=1, le=1024, description="CPUs")] = 1
    memory: Annotated[_Memory, Meta(description="memory, as sbatch takes it")] = ""
    time: Annotated[_Time, Meta(description="time limit, as sbatch takes it")] = ""
    partition: Annotated[_Plain, Meta(description="partition; of several (a,b) the first with room")] = ""
    account: Annotated[_Plain, Meta(description="account")] = ""
    qos: Annotated[
        _Plain, Meta(description="QOS of the replicas up to scale.min; of several (a,b) the one that starts soonest")
    ] = ""
    burst_qos: Annotated[_Plain, Meta(description="QOS (a,b) of replicas above scale.min, which may be requeued")] = ""
    options: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^--[a-z]")], ...],
        Meta(description="more sbatch options, such as --exclude=n3"),
    ] = ()
    key_variable: Annotated[
        str, Meta(pattern=r"^[A-Za-z_]\w*$", description="environment variable with the replica's API key")
    ] = "EXPLSCHED_REPLICA_KEY"
    start_limit_s: Annotated[float, _seconds("a job that is not ready this long after its start is cancelled")] = 900.0
    kernel: KernelSection = KernelSection()


_WRAPPER = 2
"""Version of the protocol between replicas and the gateway: 2 is mutual TLS."""

# Computed once: it takes milliseconds.
_REPLICA_FIELDS = msgspec.structs.fields(ReplicaSection)


class ScaleSection(Section, frozen=True):
    """How many replicas."""

    rule: Annotated[str, Meta(description="scaling rule")] = "slurm"
    options: Annotated[dict[str, bool | int | float | str], Meta(description="options of the rule")] = msgspec.field(
        default_factory=dict
    )
    min: Annotated[int, Meta(ge=0, le=10_000, description="minimum replicas; 0: scale to zero")] = 1
    max: Annotated[int, Meta(ge=1, le=10_000, description="maximum replicas")] = 8
    max_pending: Annotated[int, Meta(ge=1, le=10_000, description="maximum replicas that start at a time")] = 8
    start_s: Annotated[float, _seconds("time from submission to serving, until it has been measured")] = 120.0
    hold_s: Annotated[float, Meta(ge=0, le=86_400, description="no scale-in for this long after a start")] = 60.0
    attempts: Annotated[
        int, Meta(ge=1, le=100, description="consecutive failed starts before the service gives up")
    ] = 5


class HealthSection(Section, frozen=True):
    """How a replica is watched."""

    path: Annotated[str, Meta(pattern=_PATH, description="answers GET with 200 when ready")] = "/health"
    interval_s: Annotated[float, Meta(ge=0.1, le=3600, description="time between two checks")] = 2.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=600, description="timeout of a check")] = 5.0
    fall: Annotated[int, Meta(ge=1, le=100, description="consecutive failures that take a replica out")] = 3
    rise: Annotated[int, Meta(ge=1, le=100, description="consecutive successes that bring it back")] = 2
    down_limit_s: Annotated[float, _seconds("a replica that passes no check for this long is replaced")] = 120.0


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Names of gauges in a server's metrics. Of several the first one present is used; empty: not available."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_cache: tuple[str, ...]


_METRIC_NAMES = {
    "vllm": MetricNames(
        ("vllm:num_requests_running",),
        ("vllm:num_requests_waiting",),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # a share, whatever the name says
    ),
    "sglang": MetricNames(("sglang:num_running_reqs",), ("sglang:num_queue_reqs",), ("sglang:token_usage",)),
    "tgi": MetricNames(("tgi_batch_current_size",), ("tgi_queue_size",), ()),
}
_MetricName = Annotated[str, Meta(pattern=r"^([a-zA-Z_:][\w:]*)?$")]


class MetricsSection(Section, frozen=True):
    """Metrics of the replicas' servers, for scaling: requests that wait inside a replica, and how full its cache is."""

    server: Annotated[Literal["vllm", "sglang", "tgi"], Meta(description="whose metric names to expect")] = "vllm"
    path: Annotated[str, Meta(pattern=_PATH, description="answers GET with Prometheus text")] = "/metrics"
    running: Annotated[_MetricName, Meta(description="gauge of running requests; empty: the server's")] = ""
    waiting: Annotated[_MetricName, Meta(description="gauge of waiting requests; empty: the server's")] = ""
    kv_cache: Annotated[
        _MetricName, Meta(description="gauge of the share of the KV cache that requests use; empty: the server's")
    ] = ""
    kv_cache_limit: Annotated[_Share, Meta(description="share of the KV cache to plan with")] = 0.9

    def names(self) -> MetricNames:
        """The names of the gauges."""
        usual = _METRIC_NAMES[self.server]
        return MetricNames(
            (self.running,) if self.running else usual.running,
            (self.waiting,) if self.waiting else usual.waiting,
            (self.kv_cache,) if self.kv_cache else usual.kv_cache,
        )


class CanarySection(Section, frozen=True):
    """A share of a service's requests goes to another service, as long as that has a replica."""

    service: Annotated[Name, Meta(description="the canary service; its replicas must serve the same models")]
    share: Annotated[
        _Share, Meta(description="share of the requests; requests with the same x-session-id stay together")
    ] = 0.05


class ServiceSection(Section, frozen=True):
    """One service: reached by /services/NAME, the header x-service: NAME, or a model's name in the body."""

    replica: ReplicaSection
    models: Annotated[
        tuple[_Model, ...], Meta(description="values of `model` routed to this service, besides its name")
    ] = ()
    also_serves: Annotated[
        tuple[_Model, ...], Meta(description="further model names: LoRA adapters that the replicas have loaded")
    ] = ()
    paths: Annotated[
        tuple[str, ...], Meta(description="paths open to clients; /v1/files/* for all below; others get 404")
    ] = USUAL_PATHS
    concurrency: Annotated[int, Meta(ge=1, le=100_000, description="concurrent requests per replica")] = 8
    requests_per_s: Annotated[float, Meta(ge=1e-6, le=1e6, description="requests/s per replica, until measured")] = 10.0
    prompt_tokens_per_s: Annotated[
        Annotated[float, Meta(ge=0, le=1e9)] | None,
        Meta(description="prefill rate per replica; spreads long prompts over replicas; null: measured; 0: off"),
    ] = None
    queue_limit: Annotated[_Count, Meta(description="queued requests while replicas are busy; more get 503")] = 1000
    queue_deadline_s: Annotated[
        float, Meta(ge=0.001, le=86_400, description="longest time in that queue; then 503")
    ] = 120.0
    queue_target_s: Annotated[
        float, Meta(ge=0, le=86_400, description="target queueing delay; late requests are deprioritised; 0: FIFO")
    ] = 2.0
    cold_start_limit: Annotated[_Count, Meta(description="queued requests while no replica is ready; more get 503")] = (
        1000
    )
    cold_start_deadline_s: Annotated[float, _seconds("longest time in that queue; then 503")] = 300.0
    response_timeout_s: Annotated[
        float, Meta(ge=0.001, le=86_400, description="longest time without data from a replica")
    ] = 600.0
    drain_deadline_s: Annotated[float, _seconds("time for a draining replica to finish its requests")] = 300.0
    affinity: Annotated[
        Literal["none", "prefix"],
        Meta(description="prefix: requests with a common prefix, or the same x-session-id, go to the same replica"),
    ] = "none"
    canary: CanarySection | None = None
    batches: Annotated[
        Literal["none", "idle", "start"],
        Meta(description="/v1/batches: disabled; idle replicas only; may also start replicas"),
    ] = "none"
    repeat_posts: Annotated[
        Literal["never-sent", "unanswered"], Meta(description="POSTs that may be retried on another replica")
    ] = "never-sent"
    metrics: MetricsSection | None = None
    health: HealthSection = HealthSection()
    scale: ScaleSection = ScaleSection()

    def capacity(self) -> Capacity:
        """The configured capacity of one replica."""
        return Capacity(self.requests_per_s, self.concurrency, self.scale.start_s)

    def generation(self) -> str:
        """A digest of a replica's configuration; jobs of another generation are replaced.

        Only values that differ from the defaults count, so that a new version of explsched with one more key replaces
        nothing, unless the protocol between replicas and the gateway has changed.
        """
        given = {field.name: getattr(self.replica, field.name) for field in _REPLICA_FIELDS}
        chosen = {field.name: given[field.name] for field in _REPLICA_FIELDS if given[field.name] != field.default}
        return hashlib.sha256(msgspec.json.encode([_WRAPPER, chosen], enc_hook=str)).hexdigest()[:8]


class BatchesSection(Section, frozen=True):
    """What each key may keep in the batch lane, which services open with `batches`."""

    file_limit_mib: Annotated[int, Meta(ge=1, le=4096, description="larger files get 413")] = 100
    files_per_key: Annotated[int, Meta(ge=3, le=100_000, description="files per key, results included")] = 100
    requests_per_batch: Annotated[int, Meta(ge=1, le=1_000_000, description="maximum requests per batch")] = 50_000


class GatewaySection(Section, frozen=True):
    """A whole services file."""

    services: dict[Name, ServiceSection]
    name: Annotated[Name, Meta(description="the gateway's name: in job names and tags")] = "gateway"
    directory: Annotated[
        Path | None, Meta(description="state, on storage all nodes share; null: ~/.explsched/gateway/NAME")
    ] = None
    listen: ListenSection = ListenSection()
    slurm: SlurmSection = SlurmSection()
    job: JobSection = JobSection()
    batches: BatchesSection = BatchesSection()

    @property
    def state_directory(self) -> Path:
        """The directory of the gateway's state."""
        return self.directory or Path.home() / ".explsched" / "gateway" / self.name


PORT = "{port}"
MODEL = "{model}"

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

_OWN_OPTIONS = {"--array": "-a", "--comment": "", "--dependency": "-d", "--job-name": "-J"}


def option_faults(options: Iterable[str]) -> Iterator[str]:
    """A message for each option of sbatch without which the gateway would not know its jobs again, or their order."""
    for option in options:
        name = option.partition("=")[0].partition(" ")[0]
        # sbatch takes any beginning of a name that no other option has.
        if any(long.startswith(name) or (short and option.startswith(short)) for long, short in _OWN_OPTIONS.items()):
            yield f"found {option!r}, accepted: all but {', '.join(_OWN_OPTIONS)}, which are the gateway's own"


def load(path: Path) -> GatewaySection:
    """Read and check a services file. Raises `ConfigError` listing every fault."""
    return parse(strict_yaml.file_text(path), path)


def read(path: Path, shown_as: Path) -> tuple[GatewaySection, str]:
    """The services file at `path` and its text; messages name `shown_as`. Raises `ConfigError`."""
    text = strict_yaml.file_text(path)
    return parse(text, shown_as), text


def parse(text: str, path: Path) -> GatewaySection:
    """Check the text of a services file. Messages name `path`, and relative paths start from its directory.

    Raises `ConfigError` listing every fault.
    """
    faults: list[str] = []
    written = strict_yaml.mapping(text, path)
    found = strict_yaml.read(GatewaySection, written, faults)
    if written.get("services") == {}:  # those found lack what has a fault of its own
        faults.append("services: is empty, at least one is needed")
    if found is not None:
        faults += _faults(found)
    if found is None or faults:
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults))
    return _resolved(found, path)


def keys() -> Iterator[Key]:
    """Every key of a services file."""
    return strict_yaml.keys(GatewaySection)


def _resolved(section: GatewaySection, file: Path) -> GatewaySection:
    base = file.resolve().parent

    def at(key: str, path: Path | None) -> Path | None:
        try:
            return None if path is None else base / path.expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{file}: {key}: the user in {str(path)!r} has no home directory, or is none") from error

    found = section.listen
    certificate = at("listen.certificate", found.certificate)
    if certificate is not None and not settings.CERTIFICATE.fullmatch(str(certificate)):
        raise ConfigError(
            f"{file}: listen.certificate: found '{certificate}', accepted: ASCII letters, digits and `_./~+-`"
        )
    listen = msgspec.structs.replace(found, certificate=certificate, keys=at("listen.keys", found.keys))
    return msgspec.structs.replace(section, directory=at("directory", section.directory), listen=listen)


def _faults(section: GatewaySection) -> Iterator[str]:
    """Faults that involve more than one key."""
    for name, service in section.services.items():
        for fault in _service_faults(service):
            yield f"services.{name}.{fault}"
    owners: dict[str, str] = {}
    for name, service in section.services.items():
        for model in dict.fromkeys((name, *service.models, *service.also_serves)):
            first = owners.setdefault(model, name)
            if first != name:
                key = "also_serves" if model in service.also_serves else "models"
                yield f"services.{name}.{key}: {model!r} is already routed to service {first!r}"
    yield from _canary_faults(section)
    yield from _second_faults(section)
    if section.listen.keys is None and section.listen.host not in _LOOPBACK:
        yield (
            f"listen.keys: without keys anybody who can reach {section.listen.host} may use the services; name a file "
            "of keys, or listen on 127.0.0.1"
        )


def _canary_faults(section: GatewaySection) -> Iterator[str]:
    for name, service in section.services.items():
        if service.canary is None:
            continue
        other = section.services.get(service.canary.service)
        where = f"services.{name}.canary.service: "
        if other is None or service.canary.service == name:
            known = ", ".join(known for known in section.services if known != name) or "none"
            yield f"{where}no other service {service.canary.service!r} ({known})"
        elif other.canary is not None:
            yield f"{where}{service.canary.service!r} has a canary of its own"


def _second_faults(section: GatewaySection) -> Iterator[str]:
    first, second = section.job, section.job.second
    if second is None or second.port not in (None, section.listen.port):
        return
    if not (first.node and second.node) or first.node == second.node:
        yield (
            f"job.second: both gateways may run on the same node and listen on port {section.listen.port}; "
            "name two nodes in job.node and job.second.node, or another port in job.second.port"
        )


def _service_faults(service: ServiceSection) -> Iterator[str]:
    replica, scale = service.replica, service.scale
    try:
        shlex.split(replica.command)
    except ValueError as error:
        yield f"replica.command: {error}, found {replica.command!r}"
    try:
        if shlex.split(replica.worker_command) and replica.nodes == 1:
            yield "replica.worker_command: is for replicas over several nodes, replica.nodes is 1"
    except ValueError as error:
        yield f"replica.worker_command: {error}, found {replica.worker_command!r}"
    for key, path in () if replica.stage is None else msgspec.structs.asdict(replica.stage).items():
        if not path.is_absolute():
            yield f"replica.stage.{key}: must be an absolute path, found {str(path)!r}"
    if replica.stage is None and MODEL in replica.command:
        yield f"replica.command: {MODEL} is what replica.stage has copied, which is not there"
    if PORT not in replica.command:
        yield f"replica.command: must name the port to listen on as {PORT}, found {replica.command!r}"
    for fault in option_faults(replica.options):
        yield f"replica.options: {fault}"
    for fault in path_faults(service.paths):
        yield f"paths: {fault}"
    request, limit = replica.kernel.request, replica.kernel.limit
    if request is not None and limit is not None and request > limit:
        yield f"replica.kernel.request: {request} is above the limit, {limit}"
    try:
        build(scale.rule, scale.options, service.capacity())
        Bounds(scale.min, scale.max, scale.max_pending)
    except GatewayError as error:
        yield f"scale: {error}"
