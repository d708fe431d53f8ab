"""The services file: what the gateway serves, how a replica is started, and how many there may be.

YAML, typed and strict: an unknown key is an error that names the nearest known one; every fault is reported at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

from explsched import strict_yaml
from explsched.strict_yaml import ConfigError, Key
from inference_gateway.errors import GatewayError
from inference_gateway.paths import path_faults
from inference_gateway.scaling.bounds import Bounds
from inference_gateway.scaling.registry import build
from inference_gateway.sections import GatewaySection, ServiceSection

PORT = "{port}"
PLACEHOLDERS = (PORT, "{host}", "{key_file}", "{replica}")
"""What the runner of a replica replaces in its command."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


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


def keys() -> Iterator[Key]:
    """Every key of a services file."""
    return strict_yaml.keys(GatewaySection)


def _resolved(section: GatewaySection, base: Path) -> GatewaySection:
    def at(path: Path | None) -> Path | None:
        return None if path is None else base / path.expanduser()

    found = section.listen
    listen = msgspec.structs.replace(found, certificate=at(found.certificate), keys=at(found.keys))
    return msgspec.structs.replace(section, directory=at(section.directory), listen=listen)


def _faults(section: GatewaySection) -> Iterator[str]:
    """What no single key shows."""
    if not section.services:
        yield "services: is empty, at least one is needed"
    for name, service in section.services.items():
        for fault in _service_faults(service):
            yield f"services.{name}.{fault}"
    owners: dict[str, str] = {}
    for name, service in section.services.items():
        for model in dict.fromkeys((name, *service.models)):
            first = owners.setdefault(model, name)
            if first != name:
                yield f"services.{name}.models: {model!r} leads to service {first!r} already"
    if section.listen.keys is None and section.listen.host not in _LOOPBACK:
        yield (
            f"listen.keys: without keys everybody who reaches {section.listen.host} may use the services; name a file "
            "of keys, or listen on 127.0.0.1"
        )


def _service_faults(service: ServiceSection) -> Iterator[str]:
    replica, scale = service.replica, service.scale
    try:
        shlex.split(replica.command)
    except ValueError as error:
        yield f"replica.command: {error}, found {replica.command!r}"
    if PORT not in replica.command:
        yield f"replica.command: must name the port to listen on as {PORT}, found {replica.command!r}"
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
