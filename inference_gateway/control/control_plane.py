"""The control plane: in a tick, observe everything, decide, and bring Slurm and the data plane in line.

A tick never waits for Slurm or for a replica; only the data plane's socket is used synchronously, with its own timeout.
The intentions of a tick are saved before they are carried out, so that a successor does not repeat them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from explsched import log
from explsched.errors import SlurmUnreachableError
from inference_gateway.control import state
from inference_gateway.control.data_plane_sync import DataPlaneSync, Orders, WithoutBatches
from inference_gateway.control.moves import ClassifiedReplicas
from inference_gateway.control.observations import Readiness, ReplicaObserver
from inference_gateway.control.planes import LeavingPlanes, OtherPlane, PlaneReport
from inference_gateway.control.replica import Phase, Replica
from inference_gateway.control.replica_metrics import ReplicaMetrics
from inference_gateway.control.replica_registry import ReplicaRegistry, adopted
from inference_gateway.control.report import Report, report, router_endpoints
from inference_gateway.control.service import ServiceControl
from inference_gateway.control.slurm_sync import SlurmSync
from inference_gateway.control.state import EventLog, Memory, Outage, Override, ServiceMemory
from inference_gateway.control.usage import ReadingRates, UsageSums
from inference_gateway.dataplane.settings import ApiKey
from inference_gateway.errors import GatewayError
from inference_gateway.gateway_paths import GatewayPaths
from inference_gateway.model import BatchLoad, DataPlane, ServerState, Traffic
from inference_gateway.replicas import submission
from inference_gateway.replicas.identity import Authority, gateway_context
from inference_gateway.sections import GatewaySection
from slurm_plugin.client.protocol import SlurmClient

_LOG = logging.getLogger("explsched.gateway")

KEPT_DIRECTORIES = 100
"""Number of directories of ended replicas that are kept, with their logs."""


class ControlPlane:
    """All services of one gateway.

    `run_directory` is the data plane's, `gateway_host` the host by which replicas reach the gateway. `slurm` is an
    executor with one thread, `probes` one with several. `adopt` has to succeed before the first `tick`.
    """

    def __init__(
        self,
        section: GatewaySection,
        paths: GatewayPaths,
        data_plane: DataPlane,
        client: SlurmClient,
        run_directory: Path,
        gateway_host: str,
        slurm: Executor,
        probes: Executor,
        keys: Sequence[ApiKey] = (),
    ) -> None:
        self._section = section
        self._paths = paths
        self._run_directory = str(run_directory)
        self._gateway_host = gateway_host
        self._events = EventLog(paths.events)
        self._slurm = SlurmSync(client, section.name, section.slurm.poll_s, slurm)
        self._slurm_outage = Outage("Slurm", self._events)
        self._concurrency = {name: service.concurrency for name, service in section.services.items()}
        self._plane = DataPlaneSync(data_plane, self._concurrency, self._events)
        self._other = None if section.job.second is None else OtherPlane(paths)
        self._leaving = LeavingPlanes(paths)
        self._authority = Authority.of(paths.identity)
        context = gateway_context(paths.identity)
        self._observer = ReplicaObserver(section.services, paths, self._slurm, Readiness(probes, context))
        self._metrics = ReplicaMetrics(section.services, probes, context, self._events)
        self._services: dict[str, ServiceControl] = {}
        self._registry = ReplicaRegistry(self._services, (), self._events)
        self._remembered: Memory | None = None
        self._overrides: dict[str, Override] = {}
        self._usage = UsageSums(paths, keys)
        self._reading = ReadingRates(paths)
        self._endpoints: dict[str, dict[str, tuple[str, int, int | None]]] = {}
        self._without_batches = WithoutBatches()
        self._idle = frozenset(name for name, service in section.services.items() if service.batches == "idle")

    def adopt(self, now_s: float) -> None:
        """Adopt the existing replicas. Raises `SlurmError` or `GatewayError`; the caller then tries again.

        So it does while the saved state cannot be read: without it replicas that drain would serve again.
        """
        listing = self._slurm.list_jobs(now_s)
        servers = self._plane.servers()
        try:
            memory = self._saved(now_s)
        except OSError as error:
            raise GatewayError(f"{self._paths.memory}: cannot be read: {error.strerror}") from error
        self._slurm.listing = listing
        found = adopted(listing.jobs, memory.replicas, servers, now_s)
        for name, service in self._section.services.items():
            self._services[name] = ServiceControl(name, service, memory.services.get(name, ServiceMemory()), now_s)
        self._registry = ReplicaRegistry(self._services, found, self._events)
        self._overrides = state.read(self._paths.overrides, dict[str, Override]) or {}
        for name, override in self._overrides.items():
            if name in self._services:
                self._services[name].set_minimum(override.minimum)
        self._events.note("control plane started", replicas=len(found), adopted=sorted(self._registry.names()))

    def _saved(self, now_s: float) -> Memory:
        """The saved state. Raises `OSError`, unless the gateway closes: then all replicas are to drain."""
        closing = self._paths.closing.exists()
        try:
            return state.loaded_or_moved(self._paths.memory, Memory, now_s, state.LASTING) or Memory()
        except OSError as error:
            if not closing:
                raise
            log.event(_LOG, logging.ERROR, "saved state cannot be read, closing without it", why=str(error))
            return Memory()

    def tick(self, now_s: float, called: frozenset[str] = frozenset()) -> Report:
        """One pass of the loop, once a second; returns the report for `gateway status`.

        Between two seconds it decides only for the services that have `called`: a rule counts its calls as seconds.
        """
        closing = self._paths.closing.exists()
        self._read_overrides()
        self._take_submissions(now_s)
        servers, own_traffic = self._plane.read()
        known = self._registry.names()
        unknown = {name: job for name, job in self._slurm.listing.jobs.items() if name not in known}
        self._registry.join(adopted(unknown, (), servers or (), now_s))
        in_all, traffic = self._in_all_planes(servers or (), own_traffic, now_s)
        for replica, seen in self._observer.gather(self._registry.all(), in_all, plane_answers=servers is not None):
            self._registry.step(replica, seen, now_s)
        self._metrics.update(self._registry.all(), now_s)
        new = self._decide(called or self._services, traffic, in_all, now_s, closing=closing)
        self._remember()
        orders = self._orders(now_s, closing=closing)
        if servers is not None:
            self._plane.carry_out(orders, servers)
        if self._other is not None:
            state.show(self._paths.orders, orders)
            own = PlaneReport(self._run_directory, now_s, now_s, tuple(servers or ()), tuple(own_traffic.values()))
            state.show(self._paths.plane, own)
        for replica in new:
            self._submit(replica, now_s)
        if new:
            self._prune()
        self._slurm.cancel(self._registry.ended_at(now_s))
        for message in self._slurm.refusals():
            self._events.note("cancellation refused", reason=message)
        self._observer.ask(self._registry.all())
        about = (self._section.name, self._run_directory, self._services, self._registry.all(), in_all)
        shown = report(*about, now_s, self._metrics.loads, self._metrics.faults, closing=closing)
        state.show(self._paths.status, shown)
        self._show_endpoints()
        return shown

    def _in_all_planes(
        self, own: Sequence[ServerState], traffic: Mapping[str, Traffic], now_s: float
    ) -> tuple[Sequence[ServerState], Mapping[str, Traffic]]:
        """The servers and the traffic of our HAProxy (empty while it does not answer) with those of the others.

        The traffic is what services are scaled for: without the requests of batches that may start no replicas.
        """
        servers, replicas = own, self._registry.all()
        if self._other is not None:  # it serves also while our own HAProxy does not
            self._other.read(now_s)
            traffic = self._other.with_traffic(traffic)
            servers = self._other.with_servers(servers, replicas)
            self._plane.limit(self._other.share(self._concurrency, now_s))
        self._leaving.read(now_s)
        traffic = self._leaving.with_traffic(traffic)
        servers = self._leaving.with_servers(servers, replicas)
        if self._idle:
            load = state.read(self._paths.batch_load, BatchLoad) or BatchLoad("")
            traffic = self._without_batches.of(traffic, load, self._idle)
        return servers, traffic

    def _orders(self, now_s: float, *, closing: bool) -> Orders:
        """What every HAProxy of this gateway is to do now."""
        replicas = self._registry.all()
        known = {name: service.forecast(closing=closing) for name, service in self._services.items()}
        forecasts = {name: starts for name, starts in known.items() if starts is not None}
        self._usage.update(replicas, now_s)
        reading = dict(self._reading.update(replicas, now_s))
        return Orders(now_s, replicas, forecasts, self._usage.held_back(now_s), reading)

    def end(self, now_s: float) -> None:
        """Count what replicas have reported last: after `gateway down` nobody does."""
        self._usage.update_now(self._registry.all(), now_s)

    def _show_endpoints(self) -> None:
        """Write the serving replicas of each service for other routers, where they have changed."""
        for name, replicas in self._registry.by_service().items():
            # Not compared as YAML: to write that of a thousand services took most of a tick.
            found = {one.name: (one.host, one.port, one.job_id) for one in replicas if one.phase is Phase.SERVING}
            path = self._paths.router_endpoints(name)
            if self._endpoints.get(name) != found and state.write_text(path, router_endpoints(replicas)):
                self._endpoints[name] = found

    def _take_submissions(self, now_s: float) -> None:
        for ended in self._slurm.advance(now_s):
            if ended.error is None:
                self._registry.submitted(ended.key, ended.result)
            elif not isinstance(ended.error, SlurmUnreachableError):
                self._registry.refused(ended.key, str(ended.error), now_s)
            # Without an answer the outcome is unknown; the next listing of jobs shows it.
        self._slurm_outage.note(str(self._slurm.fault or ""))

    def _decide(
        self,
        names: Iterable[str],
        traffic: Mapping[str, Traffic],
        servers: Sequence[ServerState],
        now_s: float,
        *,
        closing: bool,
    ) -> list[Replica]:
        """Let the rules of these services decide; returns the replicas to submit."""
        in_flight = {server.name: server.in_flight for server in servers}
        of = self._registry.by_service()
        new: list[Replica] = []
        for name in names:
            service = self._services[name]
            found = service.classify(of[name], now_s)
            try:
                service.expect(found.coming, self._slurm.listing.jobs, self._slurm.line, now_s)
                wanted = (0, "the gateway is closing") if closing else self._wanted(service, found, traffic, now_s)
            except Exception:
                # A defect of one service's rule must not hold up the others.
                _LOG.exception("service %s: no decision, its replicas stay as they are", name)
                continue
            if wanted is not None:
                moves = service.moves(found, wanted[0], in_flight, now_s)
                new += self._registry.move(service, found, moves, wanted[1], now_s)
        return new

    def _wanted(
        self, service: ServiceControl, found: ClassifiedReplicas, traffic: Mapping[str, Traffic], now_s: float
    ) -> tuple[int, str] | None:
        """How many replicas the service's rule wants, and why; None while its traffic is unknown."""
        if service.name not in traffic:
            return None
        before = service.decision
        decision = service.decide(found, traffic[service.name], now_s, self._metrics.loads)
        wanted, why = decision.replicas, decision.reason
        if before is None or before.replicas != wanted:
            self._events.note("wanted", service.name, replicas=wanted, present=found.present, reason=why)
        return wanted, why

    def _submit(self, replica: Replica, now_s: float) -> None:
        service = self._section.services[replica.service]
        tag = submission.Tag(self._section.name, replica.service, replica.generation)
        script = submission.script(service, replica.name, self._paths, self._gateway_host)
        try:
            submission.prepare(replica.name, self._paths, script, self._authority)
        except OSError as error:
            why = f"{error.filename or self._paths.replica(replica.name)}: {error.strerror}"
            self._registry.refused(replica.name, why, now_s, by_slurm=False)
            return
        choices = [
            submission.options(service, tag, replica.name, self._paths, qos)
            for qos in submission.qos(service.replica, burst=replica.burst)
        ]
        self._slurm.submit(replica.name, script, choices)

    def _prune(self) -> None:
        """Remove the oldest directories of ended replicas, and what killed gateway jobs have left."""
        try:
            self._leaving.prune()
            self._paths.prune(self._registry.names(), KEPT_DIRECTORIES)
        except OSError as error:
            self._events.note("old files not removed", reason=f"{error.filename}: {error.strerror}")

    def _remember(self) -> None:
        services = {name: service.memory() for name, service in self._services.items()}
        memory = Memory(self._registry.all(), services)
        if memory != self._remembered and state.save(self._paths.memory, memory):
            self._remembered = memory

    def _read_overrides(self) -> None:
        """Apply what `gateway scale` has set since the last tick."""
        found = state.read(self._paths.overrides, dict[str, Override]) or {}
        for name, override in found.items():
            if name in self._services and override != self._overrides.get(name):
                self._services[name].set_minimum(override.minimum)
                self._services[name].try_again()
                self._events.note("minimum set", name, replicas=override.minimum, reason="by command")
        self._overrides = found
