"""Implements `model.DataPlane` with HAProxy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from explsched.atomic_file import replace_file
from inference_gateway.dataplane import runtime
from inference_gateway.dataplane.configuration import (
    BACKEND_PREFIX,
    certificates,
    long_from,
    maps,
    ms_per_byte,
    render,
    server_arguments,
)
from inference_gateway.dataplane.endpoints import (
    ActivatorProcess,
    EndpointFiles,
    Listed,
    ReadyReplicas,
    read_state,
    services_text,
)
from inference_gateway.dataplane.files import Files, version, write
from inference_gateway.dataplane.process import HaproxyProcess, affordable_connections
from inference_gateway.dataplane.runtime import RuntimeApi, haproxy_version
from inference_gateway.dataplane.settings import GatewaySettings
from inference_gateway.dataplane.statistics import HaproxyStatistics
from inference_gateway.errors import DataPlaneError, RefusedError, SettingsError, StartError
from inference_gateway.model import Endpoint, ServerState, StartForecast, Traffic

TURNS = Path(__file__).with_name("turns.lua")
PROMPTS = Path(__file__).with_name("prompts.lua")
PAGE = Path(__file__).with_name("chat.html")
_ADDRESS_SET = ("no need to change", "nothing changed", "IP changed", "port changed")
"""HAProxy's answers when a server has the requested address; the second is that of version 3.0 and later."""
_REPLICAS = re.compile(r"^    (?:server|maxconn) .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Processes:
    """The HAProxy and the activator that run in one directory."""

    files: Files

    @property
    def haproxy(self) -> HaproxyProcess:
        """HAProxy's process."""
        return HaproxyProcess(self.files)

    @property
    def activator(self) -> ActivatorProcess:
        """The activator's process."""
        return ActivatorProcess(self.files)

    def alive(self) -> bool:
        """Whether both run."""
        return self.haproxy.pid() is not None and self.activator.pid() is not None

    def stop(self, grace_s: float) -> None:
        """Take no new requests, give those in flight `grace_s` to finish, and end both processes."""
        self.haproxy.stop(grace_s)
        self.activator.stop()


class HaproxyDataPlane:
    """The HAProxy of one directory, started or found running.

    HAProxy continues when the process that uses this class ends; the next one finds it by its directory. Replicas are
    also written to the endpoint files, so that a reloaded or new HAProxy starts with them. Not thread-safe.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.files = Files(settings.directory)
        self._processes = Processes(self.files)
        self._process = self._processes.haproxy
        self._helper = self._processes.activator
        self._api = RuntimeApi(self.files.stats_socket)
        self._endpoints = EndpointFiles(self.files.endpoints)
        self._reading = HaproxyStatistics(self.files)
        self._ready_replicas: dict[str, ReadyReplicas] = {}
        self._starts: dict[str, StartForecast] = {}
        self._ahead = False  # the files may have what HAProxy has not read, as after a write that failed in their midst

    def alive(self) -> bool:
        """Whether HAProxy and the activator run. If not, `start` starts what is missing."""
        return self._processes.alive()

    def start(self, predecessor: Files | None = None) -> None:
        """Start HAProxy and the activator, or take over those that run here, with a reload if the settings differ.

        `predecessor`: the files of the data plane on this host that has the address; both serve until it is stopped.

        Raises:
            StartError: the port is taken, the configuration is refused, HAProxy is not installed, the disk is full.
            ActivatorError: the activator does not start.

        """
        try:
            self.files.endpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.files.directory.chmod(0o700)
        except OSError as error:
            raise StartError(f"{self.files.directory}: cannot be made: {error.strerror}") from error
        if self._process.pid() is not None:
            self.apply(self.settings)
        else:
            new = self._texts(self.settings)
            changed = self._changed(new)
            for path, text in new.items():
                write(path, text)
            if changed:  # unchanged if a killed HAProxy is restarted, which takes half the time without this check
                self._process.check()
        if self._helper.pid() is None:
            self._helper.start()
        if self._process.pid() is None:
            try:
                self._process.start(predecessor)
            except StartError:
                self._helper.stop(grace_s=0.0)  # useless without HAProxy
                raise

    def apply(self, settings: GatewaySettings) -> None:
        """Change services, keys or limits by a reload, without losing requests. Does nothing if nothing has changed.

        Address and directory cannot be changed. If HAProxy refuses the new configuration the old one remains in force.

        Raises:
            SettingsError: address or directory differ.
            StartError: HAProxy refuses the new configuration, or it cannot be written.
            NotRunningError: HAProxy does not run.

        """
        fixed = ("directory", "host", "port")
        for name in fixed:
            if getattr(settings, name) != getattr(self.settings, name):
                raise SettingsError(f"{name} of a running gateway cannot be changed")
        new = self._texts(settings)
        if self._ahead or self._changed(new):
            old = _texts_of(new)
            self.traffic()  # read the worker's counters once more before it is replaced
            self._ahead = True
            try:
                for path, text in new.items():
                    write(path, text)
                self._process.reload()
            except StartError:
                for path, text in old.items():
                    write(path, text)
                self._ahead = False
                raise
            self._ahead = False
        self.settings = settings

    def finish(self) -> None:
        """Take no new requests; HAProxy ends after those in flight, at `stop` at the latest."""
        self._process.finish()

    def hand_on(self, service: str, replicas: Iterable[Endpoint]) -> None:
        """After `finish`: send requests that wait for a replica to these. Raises `DataPlaneError` (disk full)."""
        self._endpoints.update(service, tuple(Listed.of(replica) for replica in replicas))

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no new requests, give those in flight `grace_s` to finish, and end HAProxy and the activator."""
        self._processes.stop(grace_s)

    def add(self, service: str, endpoint: Endpoint) -> None:
        """Send requests to a replica from now on. If it is known already, its address is changed.

        Raises:
            SettingsError: the service is unknown.
            NotRunningError, RefusedError: HAProxy cannot be reached, or refuses the command.

        """
        known = self.settings.service(service)
        full = f"{BACKEND_PREFIX}{service}/{endpoint.name}"
        if any(row.name == endpoint.name for row in self._reading.states(service)):
            answer = self._api.ask(f"set server {full} addr {endpoint.host} port {endpoint.port}").strip()
            if not answer.startswith(_ADDRESS_SET):
                raise RefusedError(f"HAProxy refused the address of {full}: {answer}")
            self._api.order([f"set maxconn server {full} {endpoint.concurrency}", f"set server {full} state ready"])
        else:
            version = haproxy_version(self._api.ask("show info"))
            add = f"add server {full} {server_arguments(self.settings, known, endpoint, version)}"
            self._api.order([add, f"enable health {full}", f"enable server {full}"])
        self._api.order(self._reading_order("add", service, full))
        self._endpoints.put(service, Listed.of(endpoint))

    def drain(self, service: str, name: str) -> None:
        """Send no new requests; those in flight continue. Does nothing if the replica is unknown. Raises as `add`."""
        rows = [row for row in self._reading.states(service) if row.name == name]
        if any(row.state != "maintenance" for row in rows):
            full = f"{BACKEND_PREFIX}{service}/{name}"
            self._api.order([f"set server {full} state drain", *self._reading_order("del", service, full)])
        self._endpoints.leave(service, name, ((row.host, row.port) for row in rows))

    def remove(self, service: str, name: str) -> bool:
        """Remove a replica; False while requests are in flight. From the first call on it gets no new ones.

        HAProxy keeps the server for another second or two, until its idle connections are closed: call again.
        """
        self.drain(service, name)
        if self._reading.in_flight(read_state(self.files.activator_socket), service)[service, name] > 0:
            return False
        if any(row.name == name for row in self._reading.states(service)):
            full = f"{BACKEND_PREFIX}{service}/{name}"
            self._api.order([f"set server {full} state maint"])
            # HAProxy deletes a server although a request names it that waits to be sent again, and then may crash. In
            # maintenance it gets no more of them.
            if runtime.is_named(self._api.ask("show sess"), f"{BACKEND_PREFIX}{service}", name):
                return False
            try:
                self._api.order([f"del server {full}"])
            except RefusedError as error:
                if "still has connections" not in str(error):
                    raise
                return False
        self._endpoints.remove(service, name)
        return True

    def _reading_order(self, change: str, service: str, full: str) -> list[str]:
        """The command that updates the Lua script which places long prompts, if the service uses it."""
        return [f"reading {change} {full}"] if self.settings.service(service).spreads_prompts else []

    def worker(self) -> int:
        """HAProxy's worker that takes requests; another one after a reload or a restart."""
        return self._reading.workers().current

    def servers(self) -> Sequence[ServerState]:
        """All replicas that HAProxy has, and removed ones that requests from before a reload still use."""
        found = self._reading.servers(read_state(self.files.activator_socket))
        listed = {service: self._listed(service) for service in {server.service for server in found}}
        return [replace(server, listed=_is_listed(server, listed[server.service])) for server in found]

    def open_requests(self) -> Sequence[ServerState]:
        """All replicas with their requests in flight, also after `finish`, when nothing else is known of them."""
        found = self._reading.in_flight(read_state(self.files.activator_socket))
        return [ServerState(service, name, "", 0, "draining", count) for (service, name), count in found.items()]

    def traffic(self) -> Sequence[Traffic]:
        """One entry per service; counters continue over reloads and restarts. Costs one `show stat` of the backends."""
        names = [service.name for service in self.settings.services]
        return self._reading.traffic(names, read_state(self.files.activator_socket))

    def expect(self, service: str, starts: StartForecast) -> None:
        """Set what refused clients of a service are told: how long to wait, or that no replica will start.

        The current worker and the activator tell it.
        """
        self.settings.service(service)
        self._starts = {**self._starts, service: starts}
        try:
            replace_file(self.files.starts, msgspec.json.encode(self._starts))
        except OSError as error:
            raise DataPlaneError(f"{self.files.starts}: cannot be written: {error.strerror}") from error
        self._api.order([f"set map {self.files.retry_after} {service} {max(1, starts.retry_after_s)}"])

    def hold_back(self, until_s: Mapping[str, int]) -> None:
        """Refuse requests of these keys until the given times (seconds since the epoch); this worker does so."""
        path = self.files.spent
        self._api.order([f"clear map {path}", *(f"add map {path} {key} {at_s}" for key, at_s in until_s.items())])

    def read_at(self, service: str, bytes_per_s: float) -> None:
        """Set the measured reading rate of a service's replicas, unless it is configured; for this worker."""
        known = self.settings.service(service)
        if known.measures_reading:
            rate = f"{ms_per_byte(bytes_per_s):g} {service} {long_from(bytes_per_s)}"
            self._api.order([f"reading rate {BACKEND_PREFIX}{service} {rate} {self.files.long_from}"])

    @staticmethod
    def _changed(new: Mapping[Path, str]) -> bool:
        """Whether these texts differ from the files in more than their replicas."""
        old = _texts_of(new)
        return any(_without_replicas(text) != _without_replicas(old[path]) for path, text in new.items())

    def _texts(self, settings: GatewaySettings) -> dict[Path, str]:
        endpoints = {service.name: self._ready(service.name) for service in settings.services}
        count = sum(len(replicas) for replicas in endpoints.values())
        connections = affordable_connections(settings.connection_limit, count)
        return {
            **maps(settings),
            **certificates(settings),
            self.files.batches: msgspec.json.encode(settings.batches, enc_hook=str).decode(),
            self.files.services: services_text(settings.services),
            self.files.turns: TURNS.read_text(encoding="utf-8"),
            self.files.prompts: PROMPTS.read_text(encoding="utf-8"),
            self.files.page: PAGE.read_text(encoding="utf-8"),
            self.files.configuration: render(settings, endpoints, connections, version(settings.certificate)),
        }

    def _ready(self, service: str) -> tuple[Endpoint, ...]:
        """The replicas that take requests. Of a thousand endpoint files only those that have changed are read."""
        return self._ready_replicas.setdefault(service, ReadyReplicas(self._endpoints, service)).ready()

    def _listed(self, service: str) -> Mapping[str, tuple[str, int]] | None:
        """The addresses of the replicas that take requests; None if the file cannot be read: a change replaces it."""
        try:
            return {replica.name: (replica.host, replica.port) for replica in self._ready(service)}
        except DataPlaneError:
            return None


def _texts_of(paths: Iterable[Path]) -> dict[Path, str]:
    """The present contents of these files; empty for missing ones."""
    return {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in paths}


def _is_listed(server: ServerState, listed: Mapping[str, tuple[str, int]] | None) -> bool:
    """Whether the replicas that take requests by the endpoint file include it if, and only if, HAProxy lets it."""
    wanted = (server.host, server.port) if server.state in ("up", "down") else None
    return listed is not None and listed.get(server.name) == wanted


def _without_replicas(text: str) -> str:
    """A configuration without the lines that change at run time."""
    return _REPLICAS.sub("", text)
