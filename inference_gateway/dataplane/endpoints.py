"""The interfaces between the parts of the data plane: files with services and replicas, the activator and its sockets.

Unlike HAProxy's dynamic servers, the files survive a restart of HAProxy, and they tell the activator where a request
may go. Files are replaced atomically: a reader finds the old list or the new one, and reads it again when it changes.
"""

from __future__ import annotations

import http.client
import itertools
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from explsched import interpreter, process
from explsched.atomic_file import replace_file
from explsched.process import ProcessId
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.process import environment
from inference_gateway.dataplane.settings import ServiceSettings
from inference_gateway.errors import ActivatorError, DataPlaneError, NotRunningError
from inference_gateway.model import Endpoint, StartForecast


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica in an endpoint file. `leaving` ones take no new requests."""

    name: str
    host: str
    port: int
    concurrency: int
    leaving: bool = False

    @classmethod
    def of(cls, endpoint: Endpoint) -> Listed:
        """The entry of a replica that takes requests."""
        return cls(endpoint.name, endpoint.host, endpoint.port, endpoint.concurrency)

    def endpoint(self) -> Endpoint:
        """The replica's address, as for `DataPlane.add`."""
        return Endpoint(self.name, self.host, self.port, self.concurrency)


@dataclass(frozen=True, slots=True)
class EndpointFiles:
    """The endpoint files in one directory."""

    directory: Path

    def read(self, service: str) -> tuple[Listed, ...]:
        """The replicas of a service; empty if it has no file. Raises `DataPlaneError` if the file is invalid."""
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
        """Replace the list of a service. Raises `DataPlaneError` (disk full); the old list then remains."""
        path = self.path(service)
        try:
            replace_file(path, msgspec.json.encode(replicas))
        except OSError as error:
            raise DataPlaneError(f"{path}: cannot be written: {error.strerror}") from error

    def put(self, service: str, replica: Listed) -> None:
        """Add a replica, or replace the one with its name."""
        self.update(service, (*(known for known in self._known(service) if known.name != replica.name), replica))

    def leave(self, service: str, name: str, served: Iterable[tuple[str, int]]) -> None:
        """Note that a replica takes no new requests, if it is in the list, or has `served` at an address."""
        listed = (known for known in self._known(service) if known.name == name)
        anew = (Listed(name, host, port, 0) for host, port in served)
        if replica := next(itertools.chain(listed, anew), None):
            self.put(service, msgspec.structs.replace(replica, leaving=True))

    def remove(self, service: str, name: str) -> None:
        """Remove a replica from the list, if it is there."""
        self.update(service, tuple(replica for replica in self._known(service) if replica.name != name))

    def update(self, service: str, replicas: tuple[Listed, ...]) -> None:
        """`write` the list of a service unless it is the present one."""
        try:
            is_present = replicas == self.read(service)
        except DataPlaneError:
            is_present = False
        if not is_present:
            self.write(service, replicas)

    def _known(self, service: str) -> tuple[Listed, ...]:
        """The present list; empty if it cannot be read: no replica counts as listed then, so all are added anew."""
        try:
            return self.read(service)
        except DataPlaneError:
            return ()

    def path(self, service: str) -> Path:
        """The file of a service."""
        return self.directory / f"{service}.json"


@dataclass(slots=True)
class ReadyReplicas:
    """The ready replicas of one service, cached until its file changes."""

    book: EndpointFiles
    service: str
    _seen: tuple[int, int] | None = None
    _ready: tuple[Endpoint, ...] = field(default=())

    def ready(self) -> tuple[Endpoint, ...]:
        """The replicas that take requests. Raises `DataPlaneError` if the file is invalid or cannot be read."""
        path: Path = self.book.path(self.service)
        try:
            found = path.stat()
        except FileNotFoundError:
            self._seen, self._ready = None, ()
            return ()
        except OSError as error:
            raise DataPlaneError(f"{path}: cannot be read: {error}") from error
        # Every change creates a new file.
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._seen:
            self._ready = self.book.ready(self.service)
            self._seen = version
        return self._ready


class HeldService(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service and its limits, as the activator needs them; see `ServiceSettings`."""

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
    """The text of the services file for the activator."""
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
    """The control plane's forecasts by service; empty before the first. Raises `ActivatorError`."""
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


_START_S = 30.0


@dataclass(frozen=True, slots=True)
class ActivatorProcess:
    """The activator of one directory."""

    files: Files

    def pid(self) -> int | None:
        """Its process id; None unless it runs and listens."""
        found = self._found()
        return found.pid if found else None

    def start(self) -> None:
        """Start it and wait until it listens. Raises `ActivatorError`."""
        argv = interpreter.of_module("inference_gateway.activator.server", str(self.files.directory))
        try:
            self.files.activator_pid.unlink(missing_ok=True)
            log_size = self.files.activator_log.stat().st_size if self.files.activator_log.exists() else 0
            child = process.start(argv, self.files.directory, environment(), self.files.activator_log)
        except OSError as error:
            raise ActivatorError(f"{error.filename or self.files.directory}: {error.strerror}") from error
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s:
            if child.poll() is not None:
                said = _tail(self.files.activator_log, log_size)
                raise ActivatorError(f"the activator ended with {child.returncode} at its start: {said}")
            if self.pid() == child.pid:
                return
            time.sleep(0.02)
        child.kill()
        raise ActivatorError(f"the activator does not listen {_START_S:g} s after its start")

    def stop(self, grace_s: float = 5.0) -> None:
        """Give its requests `grace_s` to finish, then end it. Does nothing if it does not run."""
        found = self._found()
        if found is not None:
            process.stop([found], ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)))

    def _found(self) -> ProcessId | None:
        return process.recorded(self.files.activator_pid, self.files.as_argument(self.files.directory))


def _tail(path: Path, start: int) -> str:
    with path.open("rb") as log:
        log.seek(start)
        return log.read().decode(errors="replace").strip()[-500:]


_TIMEOUT_S = 5.0


class ActivatorState(msgspec.Struct, frozen=True):
    """The requests of one service in the activator: those `waiting`, and those being relayed to each replica."""

    waiting: int
    relaying: dict[str, int]


def read_state(path: Path) -> dict[str, ActivatorState]:
    """The activator's state by service; empty if none runs, because its requests have ended with it.

    Raises:
        NotRunningError: it does not answer in time, or its answer is invalid.

    """
    link = _UnixConnection(path)
    try:
        link.request("GET", "/state")
        answer = link.getresponse()
        body = answer.read()
    except (FileNotFoundError, ConnectionError):
        return {}
    except (OSError, http.client.HTTPException) as error:
        raise NotRunningError(f"{path}: the activator does not answer: {error}") from error
    finally:
        link.close()
    try:
        return msgspec.json.decode(body, type=dict[str, ActivatorState])
    except msgspec.MsgspecError as error:
        raise NotRunningError(f"{path}: not an activator's answer: {error}") from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("activator", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self._path))


class Wake(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Message to the control plane: `waiting` requests of a service have no replica."""

    service: str
    waiting: int


def send(path: Path, wake: Wake) -> bool:
    """Send the message without waiting. False if the control plane does not listen or its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.settimeout(0)
        try:
            link.sendto(msgspec.json.encode(wake), str(path))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            return False
    return True


@dataclass(slots=True)
class WakeListener:
    """The control plane's end of the socket: `with WakeListener(path) as listener: listener.receive(timeout_s=1)`."""

    path: Path
    _link: socket.socket | None = None

    def __enter__(self) -> Self:
        """Bind the socket, replacing one left behind by a killed control plane. Raises `ActivatorError`."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self.path.unlink(missing_ok=True)
            link.bind(str(self.path))
            self.path.chmod(0o600)
        except OSError as error:
            link.close()
            raise ActivatorError(f"{self.path}: cannot be listened on: {error.strerror}") from error
        self._link = link
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Close and remove the socket."""
        if self._link is not None:
            self._link.close()
            self.path.unlink(missing_ok=True)

    def fileno(self) -> int:
        """The socket's file descriptor, for selectors."""
        return self._bound().fileno()

    def receive(self, timeout_s: float) -> dict[str, Wake]:
        """The newest message of each service, by name; empty if none arrived within `timeout_s`."""
        link = self._bound()
        newest: dict[str, Wake] = {}
        link.settimeout(timeout_s)
        while True:
            try:
                wake = msgspec.json.decode(link.recv(65536), type=Wake)
            except (TimeoutError, BlockingIOError):
                return newest
            except msgspec.MsgspecError as error:
                raise ActivatorError(f"{self.path}: unknown message: {error}") from error
            newest[wake.service] = wake
            link.settimeout(0)

    def _bound(self) -> socket.socket:
        if self._link is None:
            raise ActivatorError(f"{self.path}: not listened on yet")
        return self._link
