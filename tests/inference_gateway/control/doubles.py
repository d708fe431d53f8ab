"""A Slurm and a data plane that do as they are told, and a control plane between them that ticks by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from inference_gateway import services
from inference_gateway.control.control_plane import ControlPlane
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.errors import NotRunningError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import Endpoint, ServerState, StartForecast, Traffic
from inference_gateway.replicas import reports
from inference_gateway.replicas.reports import Registration
from slurm_plugin.client.records import SlurmJob
from tests.slurm_kit import NOW_S, FakeSlurm, record


def job(job_id: int, name: str, comment: str, **fields: Any) -> SlurmJob:
    """A job of the gateway's user."""
    own = {"name": name, "comment": comment, "submit_s": NOW_S, "eligible_s": NOW_S, "gpus": 0, "gpus_per_node": None}
    return record(job_id, **{**own, **fields})


@dataclass
class FakePlane:
    """The servers of a data plane. `in_flight` is by replica; `process` its worker; with `dead` it is silent."""

    table: dict[str, ServerState] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    counters: dict[str, Traffic] = field(default_factory=dict)
    told: list[tuple[str, StartForecast]] = field(default_factory=list)
    held_back: dict[str, int] = field(default_factory=dict)
    read_rates: list[tuple[str, float]] = field(default_factory=list)
    dead: bool = False
    process: int = 1

    def worker(self) -> int:
        self._answer()
        return self.process

    def add(self, service: str, endpoint: Endpoint) -> None:
        self._answer()
        self.table[endpoint.name] = ServerState(service, endpoint.name, endpoint.host, endpoint.port, "up", 0)

    def drain(self, service: str, name: str) -> None:
        self._answer()
        self.table[name] = replace(self.table[name], state="draining")

    def remove(self, service: str, name: str) -> bool:
        self._answer()
        if self.in_flight.get(name):
            return False
        self.table.pop(name, None)
        return True

    def servers(self) -> Sequence[ServerState]:
        self._answer()
        return [replace(server, in_flight=self.in_flight.get(name, 0)) for name, server in self.table.items()]

    def traffic(self) -> Sequence[Traffic]:
        self._answer()
        return list(self.counters.values())

    def expect(self, service: str, starts: StartForecast) -> None:
        self._answer()
        self.told.append((service, starts))

    def hold_back(self, until_s: Mapping[str, int]) -> None:
        self._answer()
        self.held_back = dict(until_s)

    def read_at(self, service: str, bytes_per_s: float) -> None:
        self._answer()
        self.read_rates.append((service, bytes_per_s))

    def _answer(self) -> None:
        if self.dead:
            raise NotRunningError("no answer from HAProxy")


class AtOnce(Executor):
    """Does work where it is submitted."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Rig:
    """A control plane of one service `chat` with the `target` rule: one replica per 2 requests in flight, at once."""

    def __init__(self, directory: Path, **service: Any) -> None:
        scale = {
            "rule": "target",
            "options": {"utilization": 1.0, "look_back": 1, "up_delay_s": 0, "down_delay_s": 0},
            "min": 1,
            "max": 8,
            "hold_s": 0,
            "start_s": 30,
            **service.pop("scale", {}),
        }
        replica = {"command": "serve --port {port}", **service.pop("replica", {})}
        job = service.pop("job", {})
        chat = {"concurrency": 2, "drain_deadline_s": 60, **service, "replica": replica, "scale": scale}
        data = {
            "name": "g",
            "directory": str(directory / "state"),
            "listen": {"host": "127.0.0.1"},
            "slurm": {"poll_s": 1},
            "job": job,
            "services": {"chat": chat},
        }
        self.section = services.parse(yaml.safe_dump(data), directory / "services.yaml")
        self.paths = GatewayPaths(self.section.state_directory)
        self.paths.make()
        self.slurm = FakeSlurm()
        self.plane = FakePlane()
        self.ready: set[str] = set()
        self.now_s = NOW_S
        self.arrived = 0
        self.set_load(0)
        self.restart()

    def restart(self) -> None:
        """A new control plane, as after a SIGKILL of the old one."""
        where = (self.paths.root, "127.0.0.1")
        self.control = ControlPlane(self.section, self.paths, self.plane, self.slurm, *where, AtOnce(), AtOnce())
        self.control.adopt(self.now_s)

    def set_load(self, in_flight: int) -> None:
        """So many requests from now on."""
        self.arrived += in_flight
        self.plane.counters = {"chat": Traffic("chat", self.arrived, 0, in_flight, 0)}

    def tick(self, seconds: int = 1) -> ServiceReport:
        """So many seconds pass."""
        shown: Report | None = None
        for _ in range(seconds):
            self.now_s += 1
            shown = self.control.tick(self.now_s)
            known = {"tagged_jobs", "queue", "submit", "apply", "expected_start_s"}
            assert self.slurm.asked <= known, "of others the gateway asks for their places in the queue alone"
        assert shown is not None
        return shown.services[0]

    def run_all(self) -> None:
        """Slurm starts every job, and every replica registers."""
        for number, found in self.slurm.known.items():
            if found.state == "PENDING":
                self.run(number)

    def run(self, job_id: int) -> None:
        """Slurm starts one job, and its replica registers."""
        self.slurm.set(job_id, state="RUNNING", start_s=self.now_s)
        found = self.slurm.known[job_id]
        told = Registration("127.0.0.1", 20000 + job_id, job_id, found.restarts)
        reports.register(self.paths.replica(found.name), told)

    def serve(self, replicas: int) -> None:
        """Until so many replicas serve."""
        for _ in range(20):
            self.run_all()
            if self.tick().serving == replicas:
                return
        raise AssertionError(f"{replicas} replicas do not serve")

    def events(self) -> list[str]:
        """What the event log says, in order."""
        import json

        lines = self.paths.events.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["event"] for line in lines]
