"""The reconcile loop: once a second look at everything, decide, and bring Slurm and the data plane in line.

A tick never waits for Slurm or for a replica; only the data plane's socket is asked directly, with its own time-out.
What a tick wants is written to the state file before it is done, so that whoever takes over does not do it again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace

from inference_gateway.control import adoption, plane, state
from inference_gateway.control.journal import Journal
from inference_gateway.control.plane import Add, Drain, PlaneChange
from inference_gateway.control.readiness import Question, Readiness
from inference_gateway.control.replica import LIVE, Limits, Phase, Replica, Witnesses, step
from inference_gateway.control.report import report
from inference_gateway.control.service import ServiceControl
from inference_gateway.control.slurm_desk import SlurmDesk
from inference_gateway.control.state import Memory, Override, ServiceMemory
from inference_gateway.errors import GatewayError
from inference_gateway.model import DataPlane, ServerState, Traffic
from inference_gateway.replicas import registration, submission
from inference_gateway.replicas.places import Places
from inference_gateway.services import GatewaySection
from slurm_plugin.client.protocol import SlurmClient, SlurmUnreachableError

_FORGOTTEN = Limits(start_limit_s=1.0, drain_deadline_s=1.0, down_limit_s=1.0)
"""For replicas of a service that the configuration no longer has."""

KEPT_DIRECTORIES = 100


class ControlPlane:
    """All services of one gateway.

    `gateway_host` is where replicas reach the gateway's node. `slurm` is an executor with one thread, `probes` one with
    several. `adopt` has to succeed before the first `tick`.
    """

    def __init__(
        self,
        section: GatewaySection,
        places: Places,
        data_plane: DataPlane,
        client: SlurmClient,
        gateway_host: str,
        slurm: Executor,
        probes: Executor,
    ) -> None:
        self._section = section
        self._places = places
        self._plane = data_plane
        self._gateway_host = gateway_host
        self._desk = SlurmDesk(client, section.name, section.slurm.poll_s, slurm)
        self._readiness = Readiness(probes)
        self._journal = Journal(places.events)
        self._services: dict[str, ServiceControl] = {}
        self._replicas: dict[str, Replica] = {}
        self._concurrency = {name: service.concurrency for name, service in section.services.items()}
        self._keys = {name: places.service_key(name) for name in section.services}
        self._remembered: Memory | None = None
        self._overrides: dict[str, Override] = {}
        self._plane_fault = ""
        self._slurm_fault = ""

    def adopt(self, now_s: float) -> None:
        """Find the replicas that are there. Raises `SlurmError` or `GatewayError`; to be tried again then."""
        listing = self._desk.look()
        servers = self._plane.servers()
        memory = state.read(self._places.memory, Memory) or Memory()
        self._desk.listing = listing
        found = adoption.adopted(listing.jobs, memory.replicas, servers, now_s)
        self._replicas = {replica.name: replica for replica in found}
        for name, service in self._section.services.items():
            self._services[name] = ServiceControl(name, service, memory.services.get(name, ServiceMemory()), now_s)
        self._read_overrides()
        self._journal.note("control plane started", replicas=len(found), adopted=sorted(self._replicas))

    def tick(self, now_s: float) -> None:
        """One second's work."""
        closing = self._places.closing.exists()
        self._read_overrides()
        self._take_submissions(now_s)
        servers, traffic = self._look_at_plane()
        self._step_all(servers, now_s)
        submissions = self._decide(traffic, servers or (), now_s, closing=closing)
        cancelled = [replica for replica in self._replicas.values() if replica.phase is Phase.ENDING]
        fresh = [replica.job_id for replica in cancelled if replica.since_s == now_s and replica.job_id is not None]
        self._remember()
        if servers is not None:
            self._change_plane(servers)
        for replica in submissions:
            self._submit(replica)
        self._desk.cancel(fresh)
        for words in self._desk.refusals():
            self._journal.note("cancellation refused", reason=words)
        self._ask_starting()
        state.save(self._places.status, self._report(servers or (), now_s, closing=closing))

    @property
    def empty(self) -> bool:
        """Whether no replica is left."""
        return not self._replicas

    def _take_submissions(self, now_s: float) -> None:
        for ended in self._desk.advance(now_s):
            replica = self._replicas.get(ended.key)
            if replica is None or isinstance(ended.error, SlurmUnreachableError):
                continue  # without an answer nobody knows: the jobs will tell
            if ended.error is not None:
                del self._replicas[ended.key]
                service = self._services[replica.service]
                service.attempts = service.attempts.refused(replica.asked_s, now_s)
                why = str(ended.error)
                self._journal.note("submission refused", replica.service, replica=replica.name, reason=why)
            else:
                self._replicas[ended.key] = replace(replica, job_id=ended.result)
                self._journal.note("submitted", replica.service, replica=replica.name, job=ended.result)
        fault = str(self._desk.fault or "")
        if fault != self._slurm_fault:
            self._slurm_fault = fault
            self._journal.note("Slurm does not answer" if fault else "Slurm answers again", reason=fault or None)

    def _look_at_plane(self) -> tuple[Sequence[ServerState] | None, Mapping[str, Traffic]]:
        """The data plane's servers and counters; None and nothing while it does not answer."""
        try:
            found = self._plane.servers(), {traffic.service: traffic for traffic in self._plane.traffic()}
        except GatewayError as error:
            self._note_plane(str(error))
            return None, {}
        self._note_plane("")
        return found

    def _note_plane(self, fault: str) -> None:
        if fault != self._plane_fault:
            self._plane_fault = fault
            self._journal.note("data plane does not answer" if fault else "data plane answers again", reason=fault)

    def _step_all(self, servers: Sequence[ServerState] | None, now_s: float) -> None:
        by_name = {server.name: server for server in servers or ()}
        answered = self._readiness.answered()
        for name, replica in tuple(self._replicas.items()):
            service = self._services.get(replica.service)
            if service is None and replica.phase in LIVE:
                replica = replica.to(Phase.ENDING, now_s, "its service is gone")
                self._journal.note(
                    "cancelled", replica.service, replica=name, job=replica.job_id, reason=replica.reason
                )
            seen = self._witnesses(replica, by_name.get(name), answered, plane_answers=servers is not None)
            done = step(replica, seen, service.limits if service else _FORGOTTEN, now_s)
            if done.replica is None:
                del self._replicas[name]
            else:
                self._replicas[name] = done.replica
            if service and done.failed:
                service.attempts = service.attempts.failed(replica.asked_s, now_s)
            if service and done.served_after_s is not None:
                service.served(done.served_after_s)
            if done.event:
                job = done.replica.job_id if done.replica else replica.job_id
                took_s = None if done.served_after_s is None else round(done.served_after_s, 1)
                fields = {"replica": name, "job": job, "reason": done.reason or None, "after_s": took_s}
                self._journal.note(done.event, replica.service, **fields)
                if service and done.failed and service.given_up:
                    why = f"{service.attempts.failures} starts failed in a row; `gateway scale` tries again"
                    self._journal.note("given up", replica.service, reason=why)

    def _witnesses(
        self, replica: Replica, server: ServerState | None, answered: frozenset[tuple[str, int]], *, plane_answers: bool
    ) -> Witnesses:
        directory = self._places.replica(replica.name)
        told = None
        if replica.phase in (Phase.PENDING, Phase.STARTING) and not replica.port:
            told = registration.registered(directory)
            if told and replica.phase is Phase.PENDING and told.restarts == replica.restarts:
                self._desk.hurry()  # it runs before we have seen that
        return Witnesses(
            job=self._desk.listing.jobs.get(replica.name),
            listed_s=self._desk.listing.began_s,
            registration=told,
            leaving=replica.phase is Phase.SERVING and registration.leaving(directory),
            answered=(replica.name, replica.restarts) in answered,
            server_up=None if server is None else server.state != "down",
            in_flight=None if server is None else server.in_flight,
            plane_answers=plane_answers,
        )

    def _decide(
        self, traffic: Mapping[str, Traffic], servers: Sequence[ServerState], now_s: float, *, closing: bool
    ) -> list[Replica]:
        """Let every service's rule decide; returns the replicas to submit."""
        in_flight = {server.name: server.in_flight for server in servers}
        of: dict[str, list[Replica]] = {name: [] for name in self._services}
        for replica in self._replicas.values():
            if replica.service in of:
                of[replica.service].append(replica)
        new: list[Replica] = []
        for name, service in self._services.items():
            found = service.census(of[name], now_s)
            if closing:
                wanted, why = 0, "the gateway is closing"
            elif name in traffic:
                before = service.decision
                decision = service.decide(found, traffic[name], now_s)
                wanted, why = decision.replicas, decision.reason
                if before is None or before.replicas != wanted:
                    self._journal.note("wanted", name, replicas=wanted, present=found.present, reason=why)
            else:
                continue  # nobody knows what it needs
            moves = service.moves(found, wanted, in_flight, now_s)
            baseline = sum(not replica.burst for replica in (*found.serving, *found.coming))
            for i in range(moves.start):
                burst = baseline + i >= max(1, service.minimum)
                replica = Replica(
                    name, submission.new_name(name), service.generation, Phase.SUBMITTING, now_s, now_s, burst=burst
                )
                self._replicas[replica.name] = replica
                new.append(replica)
                self._journal.note("start", name, replica=replica.name, reason=why, burst=burst or None)
            for replica, reason in moves.cancel:
                self._replicas[replica.name] = replica.to(Phase.ENDING, now_s, reason)
                self._journal.note(
                    "cancelled", name, replica=replica.name, job=replica.job_id, reason=f"{reason}: {why}"
                )
            for replica, reason in moves.drain:
                self._replicas[replica.name] = replica.to(Phase.DRAINING, now_s, reason)
                self._journal.note(
                    "draining", name, replica=replica.name, job=replica.job_id, reason=f"{reason}: {why}"
                )
        return new

    def _change_plane(self, servers: Sequence[ServerState]) -> None:
        changes = plane.changes(self._replicas.values(), servers, self._concurrency)
        for change in changes:
            try:
                self._make(change)
            except GatewayError as error:
                self._journal.note("data plane refused", change.service, change=str(change), reason=str(error))

    def _make(self, change: PlaneChange) -> None:
        if isinstance(change, Add):
            self._plane.add(change.service, change.endpoint)
        elif isinstance(change, Drain):
            self._plane.drain(change.service, change.name)
        else:
            self._plane.remove(change.service, change.name)  # False: in the next tick again

    def _submit(self, replica: Replica) -> None:
        service = self._section.services[replica.service]
        tag = submission.Tag(self._section.name, replica.service, replica.generation)
        script = submission.script(service, replica.service, replica.name, self._places, self._gateway_host)
        try:
            submission.prepare(replica.name, self._places, script)
            self._places.prune(frozenset(self._replicas), KEPT_DIRECTORIES + len(self._replicas))
        except OSError as error:
            del self._replicas[replica.name]
            control = self._services[replica.service]
            control.attempts = control.attempts.refused(replica.asked_s, replica.asked_s)
            why = f"{error.filename}: {error.strerror}"
            self._journal.note("submission refused", replica.service, replica=replica.name, reason=why)
            return
        options = submission.options(service, tag, replica.name, self._places, burst=replica.burst)
        self._desk.submit(replica.name, script, options)

    def _ask_starting(self) -> None:
        for replica in self._replicas.values():
            service = self._section.services.get(replica.service)
            if service and replica.phase is Phase.STARTING and replica.port:
                key = self._keys[replica.service]
                where = (replica.host, replica.port, service.health.path)
                self._readiness.ask(Question(replica.name, replica.restarts, *where, key))

    def _remember(self) -> None:
        memory = Memory(
            tuple(self._replicas.values()), {name: service.memory() for name, service in self._services.items()}
        )
        if memory != self._remembered and state.save(self._places.memory, memory):
            self._remembered = memory

    def _read_overrides(self) -> None:
        found = state.read(self._places.overrides, dict[str, Override]) or {}
        for name, service in self._services.items():
            if found.get(name) != self._overrides.get(name):
                service.overridden(found.get(name))
                shown = found[name].minimum if name in found else None
                self._journal.note("minimum set", name, replicas=shown, reason="by command")
        self._overrides = found

    def _report(self, servers: Sequence[ServerState], now_s: float, *, closing: bool) -> object:
        return report(
            self._section.name, self._services, tuple(self._replicas.values()), servers, now_s, closing=closing
        )


def now() -> float:
    """Seconds since the epoch: the clock of everything that is remembered over a restart."""
    return time.time()
