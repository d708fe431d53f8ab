"""What Prometheus reads of the data plane: requests, replicas, waiting lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_gateway.model import ServerState, Traffic

_STATES = ("up", "down", "draining", "maintenance")


class DataPlaneCollector(Collector):
    """One moment of the data plane.

    `cold_starts` counts how often a service's first request had to wait, `lost` the lines that the access log lacks, by
    where they were lost.
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
        """The families, most with one sample a service."""
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
            "inference_gateway_cold_starts", "Times that requests began to wait without a replica", labels=["service"]
        )
        for service, count in self._cold_starts:
            cold.add_metric([service], count)
        lost = CounterMetricFamily(
            "inference_gateway_access_log_lost_lines", "Requests that the access log lacks", labels=["where"]
        )
        for where, count in self._lost:
            lost.add_metric([where], count)
        yield from (requests, errors, in_flight, queued, replicas, cold, lost)


def exposition(collector: Collector) -> str:
    """Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode()
