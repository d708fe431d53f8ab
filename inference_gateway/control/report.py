"""The control plane's report, made once a second: for `gateway status` and for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import yaml
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_gateway.control.replica import COMING, Phase, Replica
from inference_gateway.control.service import ServiceControl
from inference_gateway.model import ReplicaLoad, ServerState

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica. `server` is its state in the data plane, empty while the data plane does not have it.

    `load` comes from its server's metrics, None if unknown; `metrics_fault` says why they cannot be read.
    """

    name: str
    phase: str
    job_id: int | None
    host: str
    port: int
    burst: bool
    in_flight: int
    server: str
    since_s: float
    ends_s: float | None
    reason: str
    load: ReplicaLoad | None = None
    metrics_fault: str = ""


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """One service.

    `arrivals` is that of the last second; `wanted` is None before the first decision. `next_in_s` is the time until the
    next replica serves, by Slurm's estimate or by measured times; None if none is starting.
    """

    name: str
    serving: int
    coming: int
    draining: int
    wanted: int | None
    minimum: int
    maximum: int
    reason: str
    arrivals: int
    in_flight: int
    queued: int
    start_s: float
    given_up: bool
    next_in_s: float | None
    replicas: tuple[ReplicaReport, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The whole gateway at `time_s` (seconds since the epoch). `run_directory` identifies the reporting gateway.

    `removed` are the replicas of services that are not configured any more.
    """

    gateway: str
    run_directory: str
    time_s: float
    closing: bool
    services: tuple[ServiceReport, ...]
    removed: tuple[ReplicaReport, ...] = ()

    @property
    def replicas(self) -> tuple[ReplicaReport, ...]:
        """All replicas."""
        return (*(replica for service in self.services for replica in service.replicas), *self.removed)


def report(
    gateway: str,
    run_directory: str,
    services: Mapping[str, ServiceControl],
    replicas: Sequence[Replica],
    servers: Sequence[ServerState],
    now_s: float,
    loads: Mapping[str, ReplicaLoad] = _NOTHING,
    faults: Mapping[str, str] = _NOTHING,
    *,
    closing: bool,
) -> Report:
    """Assemble the report; `loads` and `faults` come from the replicas' metrics, by replica name."""
    by_name = {server.name: server for server in servers}
    of: dict[str, list[ReplicaReport]] = {name: [] for name in services}
    for replica in replicas:
        shown = _replica(replica, by_name.get(replica.name))
        shown = replace(shown, load=loads.get(replica.name), metrics_fault=faults.get(replica.name, ""))
        of.setdefault(replica.service, []).append(shown)
    return Report(
        gateway,
        run_directory,
        now_s,
        closing,
        tuple(_service(service, of[name]) for name, service in services.items()),
        tuple(replica for name, replicas in of.items() if name not in services for replica in replicas),
    )


def _service(service: ServiceControl, replicas: Sequence[ReplicaReport]) -> ServiceReport:
    seen, decision = service.observation, service.decision
    return ServiceReport(
        name=service.name,
        serving=sum(replica.phase == Phase.SERVING for replica in replicas),
        coming=sum(replica.phase in COMING for replica in replicas),
        draining=sum(replica.phase == Phase.DRAINING for replica in replicas),
        wanted=decision.replicas if decision else None,
        minimum=service.minimum,
        maximum=service.section.scale.max,
        reason=decision.reason if decision else "",
        arrivals=seen.arrivals if seen else 0,
        in_flight=seen.in_flight if seen else 0,
        queued=seen.queued if seen else 0,
        start_s=round(service.start_s, 1),
        given_up=service.given_up,
        next_in_s=None if service.next_in_s is None else round(service.next_in_s, 1),
        replicas=tuple(replicas),
    )


def _replica(replica: Replica, server: ServerState | None) -> ReplicaReport:
    return ReplicaReport(
        replica.name,
        replica.phase,
        replica.job_id,
        replica.host,
        replica.port,
        replica.burst,
        server.in_flight if server else 0,
        server.state if server else "",
        replica.since_s,
        replica.ends_s,
        replica.reason,
    )


def router_endpoints(replicas: Sequence[Replica]) -> str:
    """The serving replicas of a service as YAML, for the `file-discovery` plugin of llm-d's router.

    The router supports only IPv4 addresses. It needs the gateway's certificate, or replicas refuse its requests.
    """
    found = [
        {
            "name": replica.name,
            "address": replica.host,
            "port": str(replica.port),
            "labels": {"service": replica.service, "job": str(replica.job_id)},
        }
        for replica in sorted(replicas, key=lambda replica: replica.name)
        if replica.phase is Phase.SERVING and ":" not in replica.host
    ]
    return yaml.safe_dump({"endpoints": found}, sort_keys=False)


class ControlPlaneCollector(Collector):
    """Prometheus metrics of one report of the control plane."""

    def __init__(self, shown: Report) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        """The metric families, by service and, where useful, by phase or replica."""
        jobs = GaugeMetricFamily("inference_gateway_replica_jobs", "Replicas by state", labels=["service", "phase"])
        wanted = GaugeMetricFamily(
            "inference_gateway_replicas_wanted", "Replicas that the scaling rule asks for", labels=["service"]
        )
        start = GaugeMetricFamily(
            "inference_gateway_replica_start_seconds", "Median time from submission to serving", labels=["service"]
        )
        given_up = GaugeMetricFamily(
            "inference_gateway_given_up", "1 if the service gave up after failed starts", labels=["service"]
        )
        inside = GaugeMetricFamily(
            "inference_gateway_replica_requests",
            "Requests running and waiting inside a replica, by its server's metrics",
            labels=["service", "replica", "state"],
        )
        cache = GaugeMetricFamily(
            "inference_gateway_replica_kv_cache_usage",
            "Share of a replica's KV cache in use, by its server's metrics",
            labels=["service", "replica"],
        )
        for service in self._shown.services:
            phases = Counter(replica.phase for replica in service.replicas)
            for phase in Phase:
                jobs.add_metric([service.name, phase], phases[phase])
            if service.wanted is not None:
                wanted.add_metric([service.name], service.wanted)
            start.add_metric([service.name], service.start_s)
            given_up.add_metric([service.name], float(service.given_up))
            for replica in service.replicas:
                if (load := replica.load) is not None:
                    inside.add_metric([service.name, replica.name, "running"], load.running)
                    inside.add_metric([service.name, replica.name, "waiting"], load.waiting)
                    if load.kv_cache is not None:
                        cache.add_metric([service.name, replica.name], load.kv_cache)
        yield from (jobs, wanted, start, given_up, *(family for family in (inside, cache) if family.samples))
