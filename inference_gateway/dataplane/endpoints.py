"""The replicas of each service in small files, one a service.

They outlive HAProxy, whose dynamic servers do not, and tell the activator where a request may go. A file is replaced in
one step: a reader finds the old list or the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from explsched.atomic_file import replace_file
from inference_gateway.errors import DataPlaneError
from inference_gateway.model import Endpoint


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
class EndpointBook:
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

    def strike(self, service: str, name: str) -> None:
        """Take a replica off the list, if it is there."""
        known = self.read(service)
        left = tuple(replica for replica in known if replica.name != name)
        if left != known:
            self.write(service, left)

    def path(self, service: str) -> Path:
        """The file of a service."""
        return self.directory / f"{service}.json"
