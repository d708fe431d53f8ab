"""What the activator reads in the data plane's directory: services that it holds requests for, their ready replicas.

An endpoint file is read again when it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from inference_gateway.dataplane.endpoints import EndpointBook
from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.errors import ActivatorError
from inference_gateway.model import Endpoint


@dataclass(slots=True)
class ReadyReplicas:
    """The ready replicas of one service."""

    book: EndpointBook
    service: str
    _seen: tuple[int, int] | None = None
    _ready: tuple[Endpoint, ...] = field(default=())

    def ready(self) -> tuple[Endpoint, ...]:
        """The replicas that take requests. Raises `DataPlaneError` if the file cannot be understood."""
        path: Path = self.book.path(self.service)
        try:
            found = path.stat()
        except FileNotFoundError:
            self._seen, self._ready = None, ()
            return ()
        # Every change is a new file.
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._seen:
            self._ready = self.book.ready(self.service)
            self._seen = version
        return self._ready


class HeldService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service with its bounds; see `ServiceSettings`."""

    name: str
    models: tuple[str, ...]
    limit: int
    deadline_s: float
    response_timeout_s: float
    retry_after_s: int
    floor_share: float
    ejection_s: float


def services_text(services: Iterable[ServiceSettings]) -> str:
    """The file's text."""
    held = [
        HeldService(
            name=service.name,
            models=service.served_models,
            limit=service.cold_start_limit,
            deadline_s=service.cold_start_deadline_s,
            response_timeout_s=service.response_timeout_s,
            retry_after_s=service.retry_after_s,
            floor_share=service.health.floor_share,
            ejection_s=service.health.ejection_s,
        )
        for service in services
    ]
    return msgspec.json.encode(held).decode()


def read_services(path: Path) -> dict[str, HeldService]:
    """The services by name. Raises `ActivatorError`."""
    try:
        services = msgspec.json.decode(path.read_bytes(), type=tuple[HeldService, ...])
    except (OSError, msgspec.MsgspecError) as error:
        raise ActivatorError(f"{path}: cannot be read: {error}") from error
    return {service.name: service for service in services}
