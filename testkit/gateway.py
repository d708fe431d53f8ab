"""A gateway with the bundled model server on a development cluster, driven by the commands that users have."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import psutil
import yaml

from explsched import interpreter
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.process import HaproxyProcess
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from slurm_plugin.client.cli import CliClient

_ROOT = Path(__file__).parents[1]
SERVER = f"{shlex.join(interpreter.of_module('inference_gateway.model_server'))} --port {{port}} --name {{replica}}"
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Gateway:
    """A running gateway. `environment` selects its cluster (`Cluster.env`)."""

    environment: Mapping[str, str]
    services: Path
    url: str
    state: Path
    slot: int = 1

    @property
    def paths(self) -> GatewayPaths:
        """Its files."""
        return GatewayPaths(self.state, self.slot)

    def command(self, *argv: str) -> str:
        """The output of `sexplsched gateway ...`. Raises `GatewayError` if it fails."""
        program = interpreter.of_module("explsched.cli", "gateway", *argv)
        env = {**os.environ, **self.environment, **_here(), "SEXPLSCHED_GATEWAY_SERVICES": str(self.services)}
        done = subprocess.run(program, env=env, capture_output=True, text=True, check=False, timeout=120)
        if done.returncode:
            raise GatewayError(f"{argv}: {done.stderr or done.stdout}")
        return done.stdout

    def status(self, service: str = "tiny") -> dict[str, Any]:
        """The control plane's last report on a service."""
        nothing = {"serving": 0, "coming": 0, "replicas": [], "time_s": 0.0}
        path = self.state / "status.json"
        if not path.exists():
            return nothing
        shown = json.loads(path.read_text())
        found = (one for one in shown["services"] if one["name"] == service)
        return {**next(found, nothing), "time_s": shown["time_s"]}

    def serving(self, service: str = "tiny") -> int:
        """How many replicas of a service take requests."""
        return int(self.status(service)["serving"])

    def jobs(self, service: str) -> list[int]:
        """The pending and running jobs of a service, by Slurm."""
        found = CliClient(environment=self.environment).tagged_jobs(f"igw:t:{service}:")
        return [job.job_id for job in found if job.state in ("PENDING", "RUNNING")]

    def job_ids(self) -> set[int]:
        """The jobs of all replicas that the control plane knows."""
        return {one["job_id"] for one in self.status()["replicas"]}

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of the event log with this name, oldest first."""
        lines = (self.state / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def jobs_of(self, event: str) -> list[int]:
        """The jobs that these events are about."""
        return [event["job"] for event in self.events(event)]

    def has_started(self, times: int) -> bool:
        """Whether the control plane has been started this many times and the last one reports."""
        began = self.events("control plane started")
        return len(began) >= times and self.status()["time_s"] > began[-1]["unix_s"]

    def control_plane(self) -> int:
        """The process id of its control plane. Raises `GatewayError` if none runs."""
        return self.child("inference_gateway.control.loop")

    def haproxy(self) -> int:
        """The process id of its HAProxy's worker."""
        run = Path(json.loads(self.paths.gateway.read_text())["run_directory"])
        return HaproxyProcess(Files(run)).workers().current

    def child(self, module: str) -> int:
        """The process id of the supervisor's child that runs this module. Raises `GatewayError` if none does."""
        parent = json.loads(self.paths.gateway.read_text())["pid"]
        for child in psutil.Process(parent).children():
            if module in child.cmdline():
                return child.pid
        raise GatewayError(f"no {module} runs")


def services_file(
    directory: Path,
    port: int,
    replica: Mapping[str, object] = MappingProxyType({}),
    scale: Mapping[str, object] = MappingProxyType({}),
    second_port: int | None = None,
    **service: object,
) -> Path:
    """Write a services file with one service, `tiny`, run by the bundled model server.

    `replica`, `scale` and `service` are keys of that service. With a `second_port` there are two gateways.
    """
    replica = {"command": f"{SERVER} --token-ms 20", "memory": "100M", "time": "20", **replica}
    scale = {"min": 1, "max": 4, "start_s": 5, "hold_s": 5, **scale}
    tiny = {
        "concurrency": 4,
        "requests_per_s": 15,
        "drain_deadline_s": 30,
        **service,
        "replica": replica,
        "scale": scale,
    }
    data = {
        "name": "t",
        "directory": str(directory / "gateway"),
        "listen": {"host": "127.0.0.1", "port": port},
        "slurm": {"poll_s": 1},
        "job": {"memory": "200M", "cpus": 1, "second": None if second_port is None else {"port": second_port}},
        "services": {"tiny": tiny},
    }
    path = directory / "services.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@contextmanager
def in_foreground(
    environment: Mapping[str, str],
    directory: Path,
    port: int,
    replica: Mapping[str, object] = MappingProxyType({}),
    scale: Mapping[str, object] = MappingProxyType({}),
    second_port: int | None = None,
    **service: object,
) -> Iterator[Gateway]:
    """A gateway that runs on this host for the duration of the block; for the arguments see `services_file`.

    Of two gateways the first one is returned; `second` returns the other one.
    """
    services = services_file(directory, port, replica, scale, second_port, **service)
    gateway = Gateway(environment, services, f"http://127.0.0.1:{port}", directory / "gateway")
    with ExitStack() as stack:
        for paths in gateway.paths.slots[: 1 if second_port is None else None]:
            stack.enter_context(_supervisor(gateway, directory, paths))
        for paths in gateway.paths.slots[: 1 if second_port is None else None]:
            _wait_for(paths.gateway)
        yield gateway


def second(gateway: Gateway) -> Gateway:
    """The second of two gateways, given the first."""
    url = json.loads(gateway.paths.of(2).gateway.read_text())["url"]
    return replace(gateway, url=url, slot=2)


@contextmanager
def _supervisor(gateway: Gateway, directory: Path, paths: GatewayPaths) -> Iterator[None]:
    program = interpreter.of_module("inference_gateway.supervisor.loop", "--services", str(gateway.services))
    env = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    env |= {**gateway.environment, **_here(), "TMPDIR": str(directory)}
    with (directory / ("log" if paths.slot == 1 else f"log-{paths.slot}")).open("wb") as log:
        supervisor = subprocess.Popen([*program, "--slot", str(paths.slot)], env=env, stdout=log, stderr=log)
    try:
        yield
    finally:
        supervisor.terminate()
        supervisor.wait(_PATIENCE_S)


def _here() -> dict[str, str]:
    """What makes programs import the modules of this checkout."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))}


def _wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise GatewayError(f"the gateway did not serve within {_PATIENCE_S:.0f} s: {path} is missing")
        time.sleep(0.2)


@dataclass
class Load:
    """Sends requests at a steady rate; every failure is recorded with its time."""

    url: str
    per_s: float
    tokens: int = 10
    stream: bool = False
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        began_s = time.monotonic()
        body = {"model": "tiny", "max_tokens": self.tokens, "stream": self.stream}
        try:
            async with session.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                text = await answer.text()
                whole = text.rstrip().endswith("[DONE]") if self.stream else True
                self.answers[f"{answer.status}{'' if whole else ' cut'}"] += 1
                if answer.status != 200 or not whole:
                    self.failures.append(f"{time.time():.1f}: {answer.status} {text[:200]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.answers[type(error).__name__] += 1
            self.failures.append(f"{time.time():.1f}: {error!r}")
        self.waits_s.append(time.monotonic() - began_s)

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Send requests for the duration of the block, then wait for the last answer."""
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join(150)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            asked: list[asyncio.Task[None]] = []
            while not self._stop.is_set():
                asked.append(asyncio.create_task(self._one(session)))
                await asyncio.sleep(1 / self.per_s)
            await asyncio.gather(*asked)
