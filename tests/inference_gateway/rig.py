"""A gateway with real processes for tests: HAProxy, the activator, tiny model servers."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from inference_gateway.dataplane.plane import HaproxyDataPlane
from inference_gateway.dataplane.settings import ApiKey, GatewaySettings, ServiceSettings, digest_of
from inference_gateway.model import Endpoint
from slurm_plugin.devcluster.machine import reserved

CLIENT_KEY = "the-key-of-alice"
ALICE = ApiKey("alice", digest_of(CLIENT_KEY))
PATIENCE_S = 120.0
"""For what comes at once on an idle machine. Beside other suites a model server has taken more than 20 s to start."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Replica:
    """A tiny model server as a process."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> Endpoint:
        return self.with_concurrency(8)

    def with_concurrency(self, concurrency: int) -> Endpoint:
        return Endpoint(self.name, "127.0.0.1", self.port, concurrency)

    def behave(self, **behaviour: Any) -> None:
        """From now on; what is not named is as at the start."""
        plain = {"first_token_ms": 0.0, "token_ms": 0.0, "fault": "", "unhealthy": ""}
        assert ask(self.port, "PUT", "/behaviour", {**plain, **behaviour}).status == 200

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = ask(self.port, "GET", "/state").json
        return state

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def ask(port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
    """One request. A body that is no bytes is sent as JSON."""
    return _exchange(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S), method, path, body, headers)


def _exchange(
    link: http.client.HTTPConnection, method: str, path: str, body: object, headers: Mapping[str, str] | None
) -> Answer:
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with suppress(BrokenPipeError, ConnectionResetError):  # a large body may be refused before it is sent
            link.request(method, path, data, dict(headers or {}))
        answer = link.getresponse()
        return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
    finally:
        link.close()


@dataclass(slots=True)
class Rig:
    """A running gateway and a way to talk to it."""

    plane: HaproxyDataPlane
    added: list[tuple[str, str]] = field(default_factory=list)
    _coming: list[threading.Thread] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.plane.settings.port

    def add(self, service: str, *endpoints: Endpoint) -> None:
        for endpoint in endpoints:
            self.plane.add(service, endpoint)
            self.added.append((service, endpoint.name))

    def add_soon(self, service: str, endpoint: Endpoint) -> None:
        """Add it while the next request waits; an answer may be there before HAProxy has taken all that this means."""
        timer = threading.Timer(0.3, self.add, (service, endpoint))
        self._coming.append(timer)
        timer.start()

    def settle(self) -> None:
        """Wait for what `add_soon` still does."""
        for thread in self._coming:
            thread.join()
        self._coming.clear()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """With Alice's key, unless a header `authorization` is given."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.port, method, path, body, {"authorization": f"Bearer {CLIENT_KEY}", **named})

    def complete(self, service: str, body: Mapping[str, object] | None = None, **headers: str) -> Answer:
        return self.ask("POST", "/v1/chat/completions", {"model": service, "max_tokens": 2, **(body or {})}, **headers)

    def ask_for_batch(self, method: str, path: str, body: object, service: str, key: str) -> Answer:
        """As the worker of batches asks."""
        link = http.client.HTTPConnection("gateway")
        link.sock = socket.socket(socket.AF_UNIX)
        link.sock.connect(str(self.plane.files.again_socket))
        headers = {"x-gateway-service": service, "x-gateway-key": key, "x-gateway-batch": "1"}
        return _exchange(link, method, path, body, headers)

    def replica_states(self, service: str) -> dict[str, str]:
        return {server.name: server.state for server in self.plane.servers() if server.service == service}

    def access_log(self) -> list[dict[str, Any]]:
        """The lines that are there as a whole; the activator may be in the middle of one."""
        path = self.plane.files.access_log
        whole, _, _begun = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
        return [json.loads(line) for line in whole.splitlines()]

    def logged(self, **fields: Any) -> dict[str, Any]:
        """The last line of the access log with these fields, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.access_log() if fields.items() <= line.items()]

        wait_until(found)
        return found()[-1]

    def clear(self) -> None:
        """Take all replicas away; their requests may be cut."""
        self.settle()
        for service, name in self.added:
            wait_until(partial(self.plane.remove, service, name))
        self.added.clear()


@contextmanager
def gateway(directory: Path, *services: ServiceSettings, **settings: Any) -> Iterator[Rig]:
    # HAProxy shares a reserved port, so it is kept: given back, it may be another's before HAProxy has it.
    with reserved(1) as (port,):
        known = {"keys": (ALICE,), **settings}
        plane = HaproxyDataPlane(GatewaySettings(directory / "g", port, services=services, **known))
        rig = Rig(plane)
        try:
            plane.start()
            yield rig
        finally:
            rig.settle()
            plane.stop(grace_s=0.0)


@contextmanager
def replicas(*names: str) -> Iterator[list[Replica]]:
    """Model servers that answer their health checks. They share their reserved ports, which are kept for them."""
    program = [sys.executable, "-m", "inference_gateway.model_server"]
    started: list[Replica] = []
    with reserved(len(names)) as ports:
        try:
            for name, port in zip(names, ports, strict=True):
                process = subprocess.Popen([*program, f"--port={port}", f"--name={name}"])
                started.append(Replica(name, port, process))
            for replica in started:
                wait_until(partial(healthy, replica))
            yield started
        finally:
            for replica in started:
                replica.process.send_signal(signal.SIGKILL)
                replica.process.wait()


def wait_until(condition: Callable[[], object]) -> None:
    """Return as soon as it holds; fail if it does not within a generous time."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)


def early_in_a_minute() -> None:
    """Wait until a minute of the clock, in which requests per minute are counted, lasts long enough for a test."""
    while time.time() % 60 > 20:
        time.sleep(0.1)


def healthy(replica: Replica) -> bool:
    """Whether it answers its health check. Fails if its process has ended."""
    assert replica.process.poll() is None, f"{replica.name} ended with {replica.process.returncode} at its start"
    try:
        return ask(replica.port, "GET", "/health").status == 200
    except ConnectionError:
        return False
