"""Where a request may go now: an endpoint file, read again when it has changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from inference_gateway.dataplane.endpoints import EndpointBook
from inference_gateway.model import Endpoint


@dataclass(slots=True)
class Places:
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
