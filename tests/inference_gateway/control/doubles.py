"""A Slurm and a data plane that do as they are told, and a control plane between them that ticks by hand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from inference_gateway import services
from inference_gateway.control.loop import ControlPlane
from inference_gateway.control.report import Report, ServiceReport
from inference_gateway.errors import NotRunningError
from inference_gateway.model import Endpoint, ServerState, Traffic
from inference_gateway.replicas import registration
from inference_gateway.replicas.places import Places
from inference_gateway.replicas.registration import Registration
from slurm_plugin.client.capabilities import Capabilities
from slurm_plugin.client.changes import CancelJob, Change, ChangeFailure, ClearDependency
from slurm_plugin.client.errors import SlurmError, SlurmUnreachableError
from slurm_plugin.client.records import ControllerLoad, SlurmJob, SlurmNode, SlurmReservation

NOW_S = 1_800_000_000.0


def job(job_id: int, name: str, comment: str, **fields: Any) -> SlurmJob:
    base = SlurmJob(
        job_id=job_id,
        name=name,
        user="ada",
        uid=1000,
        account="",
        partition="main",
        qos="",
        state="PENDING",
        reason="",
        priority=1,
        site_factor=None,
        submit_s=NOW_S,
        eligible_s=NOW_S,
        start_s=None,
        time_limit_s=3600.0,
        nodes=1,
        gpus=0,
        gpus_per_node=None,
        gpu_nodes=(),
        reservation="",
        comment=comment,
        restarts=0,
    )
    return structs.replace(base, **fields)


@dataclass
class FakeSlurm:
    """The jobs of one user. With `refuses` every change is refused; with `silent` nothing answers; with `forgets`
    sbatch takes the job and its answer is lost."""

    known: dict[int, SlurmJob] = field(default_factory=dict)
    refuses: str = ""
    silent: bool = False
    forgets: bool = False
    submissions: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    name: str = "fake"

    def submit(self, script: str, options: Sequence[str]) -> int:
        self._answer()
        if self.refuses:
            raise SlurmError(self.refuses)
        self.submissions.append((script, tuple(options)))
        given = dict(option.removeprefix("--").split("=", 1) for option in options if "=" in option)
        number = len(self.known) + 1
        self.known[number] = job(number, given["job-name"], given["comment"], qos=given.get("qos", ""))
        if self.forgets:
            raise SlurmUnreachableError("sbatch: no answer")
        return number

    def tagged_jobs(self, prefix: str) -> tuple[SlurmJob, ...]:
        self._answer()
        return tuple(found for found in self.known.values() if found.comment.startswith(prefix))

    def apply(self, changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
        self._answer()
        if self.refuses:
            return tuple(ChangeFailure(change, self.refuses) for change in changes)
        for change in changes:
            if isinstance(change, ClearDependency):
                self.released.append(change.job_id)
                continue
            assert isinstance(change, CancelJob)
            self.cancelled.append(change.job_id)
            self.set(change.job_id, state="CANCELLED")
        return ()

    def set(self, job_id: int, **fields: Any) -> None:
        self.known[job_id] = structs.replace(self.known[job_id], **fields)

    def active(self) -> list[SlurmJob]:
        return [found for found in self.known.values() if found.state in ("PENDING", "RUNNING")]

    def _answer(self) -> None:
        if self.silent:
            raise SlurmUnreachableError("squeue: no answer from slurmctld")

    def capabilities(self) -> Capabilities:
        raise AssertionError("not asked for")

    def jobs(self) -> tuple[SlurmJob, ...]:
        raise AssertionError("the gateway asks for its own jobs only")

    def nodes(self) -> tuple[SlurmNode, ...]:
        raise AssertionError("not asked for")

    def reservations(self) -> tuple[SlurmReservation, ...]:
        raise AssertionError("not asked for")

    def load(self) -> ControllerLoad:
        raise AssertionError("not asked for")


@dataclass
class FakePlane:
    """The servers of a data plane. `in_flight` is by replica; with `dead` it does not answer."""

    table: dict[str, ServerState] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    counters: dict[str, Traffic] = field(default_factory=dict)
    told: list[tuple[str, int]] = field(default_factory=list)
    dead: bool = False

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

    def set_retry_after(self, service: str, seconds: int) -> None:
        self._answer()
        self.told.append((service, seconds))

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
        chat = {"concurrency": 2, "drain_deadline_s": 60, **service, "replica": replica, "scale": scale}
        data = {
            "name": "g",
            "directory": str(directory / "state"),
            "listen": {"host": "127.0.0.1"},
            "slurm": {"poll_s": 1},
            "services": {"chat": chat},
        }
        self.section = services.parse(yaml.safe_dump(data), directory / "services.yaml")
        self.places = Places(self.section.state_directory)
        self.places.make()
        self.slurm = FakeSlurm()
        self.plane = FakePlane()
        self.ready: set[str] = set()
        self.now_s = NOW_S
        self.arrived = 0
        self.set_load(0)
        self.restart()

    def restart(self) -> None:
        """A new control plane, as after a SIGKILL of the old one."""
        where = (self.places.root, "127.0.0.1")
        self.control = ControlPlane(self.section, self.places, self.plane, self.slurm, *where, AtOnce(), AtOnce())
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
        registration.register(self.places.replica(found.name), told)

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

        lines = self.places.events.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["event"] for line in lines]
