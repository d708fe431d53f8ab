"""The services file and the file of keys as they were last accepted.

The gateway goes on with them when a file has become wrong, and through restarts of its parts: what runs changes when a
good file is taken, and at no other time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from explsched import strict_yaml
from explsched.atomic_file import replace_file
from inference_gateway import keys, services
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, HealthSettings, ServiceSettings
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas.identity import Authority
from inference_gateway.services import GatewaySection, ServiceSection


@dataclass(frozen=True, slots=True)
class Accepted:
    """What both files say, checked, and their texts."""

    section: GatewaySection
    keys: tuple[ApiKey, ...]
    services_text: str
    keys_text: str


def read(services_path: Path) -> Accepted:
    """Read and check the services file and the file of keys it names. Raises `ConfigError` with every fault."""
    services_text = strict_yaml.file_text(services_path)
    section = services.parse(services_text, services_path)
    keys_text = "" if section.listen.keys is None else strict_yaml.file_text(section.listen.keys)
    return _checked(section, services_text, keys_text)


def keep(accepted: Accepted, directory: Path) -> None:
    """Remember it in a directory that only its user may enter. Raises `GatewayError` (disk full)."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        for name, text in ((_SERVICES, accepted.services_text), (_KEYS, accepted.keys_text)):
            replace_file(directory / name, text)
    except OSError as error:
        raise GatewayError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error


def kept(directory: Path, services_path: Path) -> Accepted | None:
    """What was kept; None if nothing was. Paths in it start from where `services_path` lies. Raises `ConfigError`."""
    if not (directory / _SERVICES).exists():
        return None
    text = strict_yaml.file_text(directory / _SERVICES)
    return _checked(services.parse(text, services_path), text, strict_yaml.file_text(directory / _KEYS))


def unchangeable(old: GatewaySection, new: GatewaySection) -> str:
    """The key that a running gateway cannot take another value for, with both values; empty if there is none."""
    values = (
        ("name", old.name, new.name),
        ("directory", old.state_directory, new.state_directory),
        ("listen.host", old.listen.host, new.listen.host),
        ("listen.port", old.listen.port, new.listen.port),
        ("listen.certificate", _scheme(old), _scheme(new)),
    )
    return next((f"{key}: is {was} and cannot become {wanted}" for key, was, wanted in values if was != wanted), "")


_SERVICES = "services.yaml"
_KEYS = "keys.yaml"


def _checked(section: GatewaySection, services_text: str, keys_text: str) -> Accepted:
    path = section.listen.keys
    found = () if path is None else keys.parse(keys_text, path)
    return Accepted(section, found, services_text, keys_text)


def _scheme(section: GatewaySection) -> str:
    return "http" if section.listen.certificate is None else "https"


_LONGEST_RETRY_S = 86_400


def settings(
    section: GatewaySection, paths: GatewayPaths, run_directory: Path, keys: tuple[ApiKey, ...] = ()
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
        trust=Authority.of(paths.identity).trust,
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
