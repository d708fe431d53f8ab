"""From the services file to the data plane's settings."""

from __future__ import annotations

from pathlib import Path

from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, HealthSettings, ServiceSettings
from inference_gateway.replicas.identity import Authority
from inference_gateway.replicas.places import Places
from inference_gateway.sections import GatewaySection, ServiceSection

_LONGEST_RETRY_S = 86_400


def settings(
    section: GatewaySection, places: Places, run_directory: Path, keys: tuple[ApiKey, ...] = ()
) -> GatewaySettings:
    """What HAProxy and the activator are told. `run_directory` is on a local disk.

    Raises `SettingsError` for a value that HAProxy cannot take, `GatewayError` if its authority cannot be made.
    """
    listen = section.listen
    return GatewaySettings(
        directory=run_directory,
        port=listen.port,
        host=listen.host,
        services=tuple(_service(name, service) for name, service in section.services.items()),
        trust=Authority.of(places.identity).trust,
        authentication="none" if listen.keys is None else "keys",
        keys=keys,
        certificate=listen.certificate,
        threads=listen.threads,
        connection_limit=listen.connection_limit,
        source_connections=listen.source_connections,
        source_connections_per_s=listen.source_connections_per_s,
        request_timeout_s=listen.request_timeout_s,
        body_limit_mib=listen.body_limit_mib,
    )


def _service(name: str, service: ServiceSection) -> ServiceSettings:
    health = service.health
    return ServiceSettings(
        name=name,
        models=service.models,
        paths=service.paths,
        queue_limit=service.queue_limit,
        queue_deadline_s=service.queue_deadline_s,
        queue_target_s=service.queue_target_s,
        requests_per_s=service.requests_per_s,
        concurrency=service.concurrency,
        cold_start_limit=service.cold_start_limit,
        cold_start_deadline_s=service.cold_start_deadline_s,
        response_timeout_s=service.response_timeout_s,
        retry_after_s=retry_after_s(service.scale.start_s),
        repeat_posts=service.repeat_posts,
        health=HealthSettings(
            path=health.path,
            interval_s=health.interval_s,
            timeout_s=health.timeout_s,
            fall=health.fall,
            rise=health.rise,
        ),
    )


def retry_after_s(start_s: float) -> int:
    """When a client may come again: after about as long as a replica takes to start."""
    return max(1, min(_LONGEST_RETRY_S, round(start_s)))
