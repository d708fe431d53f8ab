"""The services file, the key file and the certificate as last accepted.

The gateway continues with the accepted files when a file has become invalid, and through restarts of its parts: the
running configuration changes only when a valid file is loaded.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from explsched.atomic_file import replace_file
from explsched.strict_yaml import ConfigError
from inference_gateway import key_file, services
from inference_gateway.dataplane.settings import (
    LEAVING_LIMIT_S,
    ApiKey,
    BatchSettings,
    Canary,
    GatewaySettings,
    HealthSettings,
    ServiceSettings,
)
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.replicas.identity import Authority
from inference_gateway.sections import GatewaySection, ServiceSection

_SERVICES = "services.yaml"
_KEYS = "keys.yaml"
_CERTIFICATE = "certificate.pem"
_ORIGIN = "origin."
_BESIDE_CERTIFICATE = (".key", ".ocsp", ".issuer", ".sctl", ".rsa", ".dsa", ".ecdsa")
_LONGEST_RETRY_S = 86_400


@dataclass(frozen=True, slots=True)
class Accepted:
    """The contents of the files, validated, and their texts. `services_path` is the path of the services file.

    `slot` is 2 for the second of two gateways. `certificate` is the text of `listen.certificate`, with its private key;
    where HAProxy has to read more than that file it is its path.
    """

    services_path: Path
    section: GatewaySection
    keys: tuple[ApiKey, ...]
    services_text: str
    keys_text: str
    slot: int = 1
    certificate: str | Path | None = field(default=None, repr=False)

    @property
    def paths(self) -> GatewayPaths:
        """The paths of the gateway's files."""
        return GatewayPaths(self.section.state_directory, self.slot)

    @property
    def port(self) -> int:
        """The port on which this gateway listens."""
        second = self.section.job.second
        own = second.port if second is not None and self.slot > 1 else None
        return self.section.listen.port if own is None else own

    def settings(self, run_directory: Path) -> GatewaySettings:
        """The settings of HAProxy and the activator. `run_directory` is on a local disk.

        Raises `SettingsError` for a value that HAProxy does not accept, `GatewayError` if the gateway's certificate
        authority cannot be made.
        """
        listen = self.section.listen
        return GatewaySettings(
            directory=run_directory,
            port=self.port,
            host=listen.host,
            services=tuple(_service(name, service) for name, service in self.section.services.items()),
            trust=Authority.of(self.paths.identity).trust,
            batches=self.batches(),
            page=listen.page,
            authentication="none" if listen.keys is None else "keys",
            keys=self.keys,
            certificate=self.certificate,
            threads=listen.threads,
            connection_limit=listen.connection_limit,
            source_connections=listen.source_connections,
            source_connections_per_s=listen.source_connections_per_s,
            request_timeout_s=listen.request_timeout_s,
            body_limit_mib=listen.body_limit_mib,
            leaving_limit_s=max(LEAVING_LIMIT_S, self.section.job.handover_s),
        )

    def batches(self) -> BatchSettings | None:
        """The settings of batches; None if no service accepts them."""
        if all(service.batches == "none" for service in self.section.services.values()):
            return None
        given = self.section.batches
        limits = (given.file_limit_mib << 20, given.files_per_key, given.requests_per_batch)
        return BatchSettings(self.paths.batches, *limits)

    def check(self) -> None:
        """Make the gateway's directories and check the values for HAProxy. Raises as `settings`, and `OSError`."""
        self.paths.make()
        self.settings(Path("/tmp/explsched"))  # noqa: S108  only checked

    def keep(self) -> None:
        """Save the files in a directory that only the user may enter. Raises `GatewayError` (disk full).

        What is saved already is not written again, so that a gateway can start while the disk is full.
        """
        directory = self.paths.accepted
        texts = {_SERVICES: self.services_text, _KEYS: self.keys_text}
        texts |= {_CERTIFICATE: self.certificate} if isinstance(self.certificate, str) else {}
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            origin = directory / _origin(self.services_path)
            for former in directory.glob(f"{_ORIGIN}*"):
                if former != origin:
                    former.unlink(missing_ok=True)
            origin.touch()
            for name, text in texts.items():
                path = directory / name
                if not path.exists() or path.read_bytes() != text.encode():
                    replace_file(path, text, mode=0o600)
            if _CERTIFICATE not in texts:
                (directory / _CERTIFICATE).unlink(missing_ok=True)
        except OSError as error:
            raise GatewayError(f"{error.filename or directory}: cannot be written: {error.strerror}") from error


def read(services_path: Path, slot: int = 1) -> Accepted:
    """Read and check the services file and its key file, and read the certificate, which HAProxy checks.

    Raises `ConfigError` listing every fault.
    """
    section, text = services.read(services_path, services_path)
    if faults := [f"{services_path}: {fault}" for fault in services.canary_path_faults(section)]:
        raise ConfigError("\n".join(faults))
    found, keys_text = key_file.read(section.listen.keys, section.listen.keys)
    unknown = [(key.name, name) for key in found for name in key.services if name not in section.services]
    if unknown:
        known = ", ".join(section.services)
        where = f"{section.listen.keys}: keys"
        raise ConfigError("\n".join(f"{where}.{key}.services: no service {name!r} ({known})" for key, name in unknown))
    certificate = _certificate(section.listen.certificate)
    return Accepted(services_path.resolve(), section, found, text, keys_text, slot, certificate)


def section_in_force(paths: GatewayPaths, services_path: Path) -> GatewaySection | None:
    """The services file in force; None if there is none, or it was read from another path than this.

    The name in a file with faults may be that of another gateway. Raises `ConfigError`, and `GatewayError` where it is
    another user's.
    """
    saved, origin = paths.accepted / _SERVICES, paths.accepted / _origin(services_path.resolve())
    try:
        return services.read(saved, services_path)[0] if saved.exists() and origin.exists() else None
    except OSError as error:
        raise GatewayError(f"{saved}: {error.strerror}") from error


def _origin(services_path: Path) -> str:
    """The name of an empty file (a full disk has no blocks) that tells from which path the saved files were read."""
    return f"{_ORIGIN}{hashlib.sha256(os.fsencode(services_path)).hexdigest()[:16]}"


def kept(directory: Path, services_path: Path, slot: int = 1) -> Accepted | None:
    """The saved files; None if there are none. Paths in them are relative to `services_path`. Raises `ConfigError`."""
    if not (directory / _SERVICES).exists():
        return None
    section, text = services.read(directory / _SERVICES, services_path)
    found, keys_text = key_file.read(directory / _KEYS, section.listen.keys)
    saved, named = directory / _CERTIFICATE, section.listen.certificate
    # None is saved of several files, nor by the version before, whose HAProxy reads them at its start, as it did then.
    certificate = _certificate(saved) if named is not None and saved.exists() else named
    return Accepted(services_path.resolve(), section, found, text, keys_text, slot, certificate)


def _certificate(path: Path | None) -> str | Path | None:
    """The text of a certificate, or its path if it is a directory or HAProxy reads others beside it, such as its key.

    Raises `ConfigError`.
    """
    if path is None:
        return None
    try:
        if path.is_dir() or any(path.with_name(path.name + end).exists() for end in _BESIDE_CERTIFICATE):
            return path
        return path.read_text(encoding="utf-8", errors="replace")  # a comment may be in another encoding
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def changed(now: Accepted) -> Accepted:
    """Read the files again. Raises `ConfigError`, also for a key that cannot be changed while the gateway is up."""
    new = read(now.services_path, now.slot)
    wanted = unchangeable(new.section)
    for key, was in unchangeable(now.section).items():
        if was != wanted[key]:
            raise ConfigError(
                f"{now.services_path}: {key}: is {was} and cannot become {wanted[key]} while the gateway is up"
            )
    return new


def unchangeable(section: GatewaySection) -> dict[str, object]:
    """What cannot be changed while the gateway runs, by its key."""
    return {
        "name": section.name,
        "directory": section.state_directory,
        "listen.host": section.listen.host,
        "listen.port": section.listen.port,
        "listen.certificate": _scheme(section),
        "job.second": _second(section),
    }


def _second(section: GatewaySection) -> str:
    second = section.job.second
    return "null" if second is None else f"on port {second.port or section.listen.port}"


def _scheme(section: GatewaySection) -> str:
    return "http" if section.listen.certificate is None else "https"


def _service(name: str, service: ServiceSection) -> ServiceSettings:
    health = service.health
    return ServiceSettings(
        name=name,
        models=(*service.models, *service.also_serves),
        adapters=service.also_serves,
        paths=service.paths,
        queue_limit=service.queue_limit,
        queue_deadline_s=service.queue_deadline_s,
        queue_target_s=service.queue_target_s,
        requests_per_s=service.requests_per_s,
        prompt_tokens_per_s=service.prompt_tokens_per_s,
        concurrency=service.concurrency,
        cold_start_limit=service.cold_start_limit,
        cold_start_deadline_s=service.cold_start_deadline_s,
        response_timeout_s=service.response_timeout_s,
        retry_after_s=retry_after_s(service.scale.start_s),
        affinity=service.affinity,
        canary=None if service.canary is None else Canary(service.canary.service, service.canary.share),
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
    """The value of Retry-After: about the time that a replica takes to start, at most a day."""
    return max(1, min(_LONGEST_RETRY_S, round(start_s)))
