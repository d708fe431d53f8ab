"""The keys of the services file: the services, how their replicas are started, and how many there may be."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from explsched.strict_yaml import Section
from inference_gateway.dataplane import settings
from inference_gateway.dataplane.open_paths import USUAL_PATHS
from inference_gateway.model import Capacity

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
        float,
        Meta(
            ge=0.001,
            le=86_400,
            description="longest time without data from a replica; once queued at least cold_start_deadline_s",
        ),
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
        own, fields = self.replica, _REPLICA_FIELDS
        chosen = {one.name: value for one in fields if (value := getattr(own, one.name)) != one.default}
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
