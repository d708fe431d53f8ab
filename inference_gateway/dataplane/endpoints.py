"""What HAProxy's parts read in the data plane's directory: services and their replicas, in small files.

They outlive HAProxy, whose dynamic servers do not, and tell the activator where a request may go. A file is replaced in
one step: a reader finds the old list or the new one, and reads it again when it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from explsched.atomic_file import replace_file
from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.errors import ActivatorError, DataPlaneError
from inference_gateway.model import Endpoint, StartForecast


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica in a file. `leaving` ones take nothing new."""

    name: str
    host: str
    port: int
    concurrency: int
    leaving: bool = False

    @classmethod
    def of(cls, endpoint: Endpoint) -> Listed:
        """A replica that takes requests."""
        return cls(endpoint.name, endpoint.host, endpoint.port, endpoint.concurrency)

    def endpoint(self) -> Endpoint:
        """The replica as it is added."""
        return Endpoint(self.name, self.host, self.port, self.concurrency)


@dataclass(frozen=True, slots=True)
class EndpointFiles:
    """The files of one directory."""

    directory: Path

    def read(self, service: str) -> tuple[Listed, ...]:
        """The replicas of a service; none if it has no file. Raises `DataPlaneError` if the file is not one of ours."""
        path = self.path(service)
        try:
            return msgspec.json.decode(path.read_bytes(), type=tuple[Listed, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.MsgspecError) as error:
            raise DataPlaneError(f"{path}: cannot be read: {error}") from error

    def ready(self, service: str) -> tuple[Endpoint, ...]:
        """The replicas of a service that take requests."""
        return tuple(listed.endpoint() for listed in self.read(service) if not listed.leaving)

    def write(self, service: str, replicas: Sequence[Listed]) -> None:
        """Replace the list of a service. Raises `DataPlaneError` (disk full): the old list is then in force."""
        path = self.path(service)
        try:
            replace_file(path, msgspec.json.encode(replicas))
        except OSError as error:
            raise DataPlaneError(f"{path}: cannot be written: {error.strerror}") from error

    def put(self, service: str, replica: Listed) -> None:
        """Add a replica, or replace the one of its name."""
        self.write(service, (*(known for known in self.read(service) if known.name != replica.name), replica))

    def remove(self, service: str, name: str) -> None:
        """Take a replica off the list, if it is there."""
        known = self.read(service)
        left = tuple(replica for replica in known if replica.name != name)
        if left != known:
            self.write(service, left)

    def path(self, service: str) -> Path:
        """The file of a service."""
        return self.directory / f"{service}.json"


@dataclass(slots=True)
class ReadyReplicas:
    """The ready replicas of one service."""

    book: EndpointFiles
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
    adapters: tuple[str, ...] = ()


def services_text(services: Iterable[ServiceSettings]) -> str:
    """The file's text."""
    held = [
        HeldService(
            name=service.name,
            models=service.served_models,
            adapters=service.adapters,
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


def read_starts(path: Path) -> dict[str, StartForecast]:
    """What the control plane expects, by service; nothing before it has told. Raises `ActivatorError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, StartForecast])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise ActivatorError(f"{path}: cannot be read: {error}") from error


def read_services(path: Path) -> dict[str, HeldService]:
    """The services by name. Raises `ActivatorError`."""
    try:
        services = msgspec.json.decode(path.read_bytes(), type=tuple[HeldService, ...])
    except (OSError, msgspec.MsgspecError) as error:
        raise ActivatorError(f"{path}: cannot be read: {error}") from error
    return {service.name: service for service in services}
