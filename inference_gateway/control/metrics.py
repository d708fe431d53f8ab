"""What Prometheus reads of the control plane: replica jobs and what the rules want."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from inference_gateway.control.replica import Phase
from inference_gateway.control.report import Report


class ControlPlaneCollector(Collector):
    """One report of the control plane."""

    def __init__(self, shown: Report) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        """The families, each with one sample a service, or one a service and phase."""
        jobs = GaugeMetricFamily(
            "inference_gateway_replica_jobs", "Replicas by where they stand", labels=["service", "phase"]
        )
        wanted = GaugeMetricFamily("inference_gateway_replicas_wanted", "What the rule wants", labels=["service"])
        start = GaugeMetricFamily(
            "inference_gateway_replica_start_seconds", "Median time from submission to serving", labels=["service"]
        )
        given_up = GaugeMetricFamily(
            "inference_gateway_given_up", "1 if failed starts have ended all attempts", labels=["service"]
        )
        for service in self._shown.services:
            phases = Counter(replica.phase for replica in service.replicas)
            for phase in Phase:
                jobs.add_metric([service.name, phase], phases[phase])
            if service.wanted is not None:
                wanted.add_metric([service.name], service.wanted)
            start.add_metric([service.name], service.start_s)
            given_up.add_metric([service.name], float(service.given_up))
        yield from (jobs, wanted, start, given_up)
