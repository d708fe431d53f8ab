"""HAProxy's current state and statistics, read only, and counters over them that never decrease."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_gateway.dataplane import runtime
from inference_gateway.dataplane.configuration import BACKEND_PREFIX
from inference_gateway.dataplane.endpoints import ActivatorState, EndpointFiles
from inference_gateway.dataplane.files import Files
from inference_gateway.dataplane.runtime import BackendRow, RuntimeApi
from inference_gateway.errors import DataPlaneError, NotRunningError
from inference_gateway.model import ServerState, Traffic


@dataclass(frozen=True, slots=True)
class _ProxyCounters:
    arrivals: int = 0
    responses_5xx: int = 0
    responses_4xx: int = 0


@dataclass(slots=True)
class TrafficCounters:
    """Sums the statistics of all workers, present and past, by process id.

    A new worker counts from zero; the last counts of one that has ended remain in the sums.
    """

    _ended: dict[str, _ProxyCounters] = field(default_factory=dict)
    _last: dict[int, tuple[BackendRow, ...]] = field(default_factory=dict)

    def update(self, alive: Mapping[int, Sequence[BackendRow]]) -> None:
        """Take the statistics of all present workers."""
        for pid in self._last.keys() - alive.keys():
            for row in self._last.pop(pid):
                self._ended[row.service] = _plus(self._ended.get(row.service, _ProxyCounters()), row)
        self._last.update({pid: tuple(rows) for pid, rows in alive.items()})

    def traffic(self, services: Iterable[str], holding: Mapping[str, int]) -> list[Traffic]:
        """One entry per service. `holding` is the requests waiting in the activator, which HAProxy counts as served."""
        counters = dict(self._ended)
        present = dict.fromkeys(counters, 0)
        queued = dict.fromkeys(counters, 0)
        for rows in self._last.values():
            for row in rows:
                counters[row.service] = _plus(counters.get(row.service, _ProxyCounters()), row)
                present[row.service] = present.get(row.service, 0) + row.present
                queued[row.service] = queued.get(row.service, 0) + row.queued
        found = []
        for service in services:
            count = counters.get(service, _ProxyCounters())
            waiting = queued.get(service, 0) + holding.get(service, 0)
            served = max(0, present.get(service, 0) - waiting)
            found.append(Traffic(service, count.arrivals, count.responses_5xx, served, waiting, count.responses_4xx))
        return found


def _plus(count: _ProxyCounters, row: BackendRow) -> _ProxyCounters:
    return _ProxyCounters(
        count.arrivals + row.arrivals, count.responses_5xx + row.responses_5xx, count.responses_4xx + row.responses_4xx
    )


@dataclass(slots=True)
class HaproxyStatistics:
    """Counters and states of all workers of one HAProxy. `held` is the activator's state. Raises `DataPlaneError`.

    Thread-safe: what was read before others is counted before it, or a worker that ends meanwhile counts twice.
    """

    files: Files
    _counters: TrafficCounters = field(default_factory=TrafficCounters)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def traffic(self, services: Iterable[str], held: Mapping[str, ActivatorState]) -> list[Traffic]:
        """One entry per service, for one `show stat` of the backends. Requests held by Lua count as queued."""
        with self._counting:
            waiting = {pid: runtime.held(text) for pid, text in self._ask_all("show held").items()}
            found = {
                pid: [replace(row, queued=row.queued + waiting.get(pid, {}).get(row.service, 0)) for row in rows]
                for pid, text in self._ask_all("show stat -1 2 -1").items()
                if (rows := runtime.backends(text))
            }
            self._counters.update(found)
            return self._counters.traffic(services, {service: state.waiting for service, state in held.items()})

    def states(self, service: str | None = None) -> list[runtime.StateRow]:
        """The replicas of a service, or of all."""
        return runtime.server_states(RuntimeApi(self.files.stats_socket).ask(f"show servers state{_of(service)}"))

    def in_flight(self, held: Mapping[str, ActivatorState], service: str | None = None) -> Counter[tuple[str, str]]:
        """The requests at each (service, replica), from all workers and from the activator."""
        found: Counter[tuple[str, str]] = Counter()
        for text in self._ask_all(f"show servers conn{_of(service)}").values():
            found.update(runtime.in_flight(text))
        for name, state in held.items():
            found.update({(name, replica): count for replica, count in state.relaying.items()})
        return found

    def servers(self, held: Mapping[str, ActivatorState]) -> list[ServerState]:
        """All replicas, and removed ones that requests from before a reload still use.

        Where these are is not known (no host, port 0) if the list of their service does not tell, or cannot be read.
        """
        using = self.in_flight(held)
        rows = self.states()
        found = [
            ServerState(row.service, row.name, row.host, row.port, row.state, using[row.service, row.name], row.passed)
            for row in rows
        ]
        left = using.keys() - {(row.service, row.name) for row in rows}
        listed = self._addresses({service for service, _ in left})
        for service, name in sorted(left):
            count, address = using[service, name], listed.get((service, name))
            if count or address:
                found.append(ServerState(service, name, *(address or ("", 0)), "draining", count))
        return found

    def _addresses(self, services: Iterable[str]) -> dict[tuple[str, str], tuple[str, int]]:
        """Where the listed replicas of these services are, without lists that cannot be read: changes replace them."""
        book = EndpointFiles(self.files.endpoints)
        found: dict[tuple[str, str], tuple[str, int]] = {}
        for service in services:
            with suppress(DataPlaneError):
                found.update({(service, one.name): (one.host, one.port) for one in book.read(service)})
        return found

    def dropped_logs(self) -> int:
        """Lines of the access log that the current HAProxy worker had to drop."""
        return runtime.dropped_logs(RuntimeApi(self.files.stats_socket).ask("show info"))

    def workers(self) -> runtime.Workers:
        """The worker processes."""
        return runtime.workers(RuntimeApi(self.files.master_socket).ask("show proc"))

    def _ask_all(self, command: str) -> dict[int, str]:
        """Every worker's answer by process id, without old workers that have just ended.

        Through the master: a worker that is told to end, whether by a reload or for good, closes its stats socket.
        """
        workers = self.workers()
        found: dict[int, str] = {}
        for pid in (workers.current, *workers.leaving):
            text = RuntimeApi(self.files.master_socket).ask(f"@!{pid} {command}")
            if text and not text.startswith("Can't find"):
                found[pid] = text
        if workers.current not in found:
            raise NotRunningError(f"{self.files.master_socket}: HAProxy's worker has just ended")
        return found


def _of(service: str | None) -> str:
    return "" if service is None else f" {BACKEND_PREFIX}{service}"


_STATES = ("up", "down", "draining", "maintenance")


class DataPlaneCollector(Collector):
    """Prometheus metrics of the data plane, at one moment.

    `cold_starts` counts how often a service's first request had to wait; `lost` counts lines missing from the access
    log, by where they were lost.
    """

    def __init__(
        self,
        traffic: Sequence[Traffic],
        servers: Iterable[ServerState],
        cold_starts: Iterable[tuple[str, int]],
        lost: Iterable[tuple[str, int]],
    ) -> None:
        self._traffic = traffic
        self._replicas = Counter((server.service, server.state) for server in servers)
        self._cold_starts = tuple(cold_starts)
        self._lost = tuple(lost)

    def collect(self) -> Iterator[Metric]:
        """The metric families, most with one sample per service."""
        requests = CounterMetricFamily(
            "inference_gateway_requests", "Requests that hit a replica or should have", labels=["service"]
        )
        errors = CounterMetricFamily("inference_gateway_responses_5xx", "Answers of status 5xx", labels=["service"])
        in_flight = GaugeMetricFamily(
            "inference_gateway_requests_in_flight", "Requests at a replica", labels=["service"]
        )
        queued = GaugeMetricFamily(
            "inference_gateway_requests_queued", "Requests that wait for a replica", labels=["service"]
        )
        for entry in self._traffic:
            requests.add_metric([entry.service], entry.arrivals)
            errors.add_metric([entry.service], entry.responses_5xx)
            in_flight.add_metric([entry.service], entry.in_flight)
            queued.add_metric([entry.service], entry.queued)
        replicas = GaugeMetricFamily(
            "inference_gateway_replicas", "Replicas the data plane knows", labels=["service", "state"]
        )
        for entry in self._traffic:
            for state in _STATES:
                replicas.add_metric([entry.service, state], self._replicas[entry.service, state])
        cold = CounterMetricFamily(
            "inference_gateway_cold_starts", "Times that requests arrived without a ready replica", labels=["service"]
        )
        for service, count in self._cold_starts:
            cold.add_metric([service], count)
        lost = CounterMetricFamily(
            "inference_gateway_access_log_lost_lines", "Lines lost from the access log", labels=["where"]
        )
        for where, count in self._lost:
            lost.add_metric([where], count)
        yield from (requests, errors, in_flight, queued, replicas, cold, lost)


def exposition(collector: Collector) -> str:
    """Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode()
