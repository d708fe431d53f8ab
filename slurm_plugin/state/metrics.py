"""The daemon's metrics in Prometheus' text format, for node_exporter's textfile collector and for `sexplsched web`.

They name no job and no user, so everybody may read them. Sweeps are counted, not named.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from slurm_plugin.state.published import State


class _StateCollector(Collector):
    def __init__(self, state: State, publish_s: float) -> None:
        self._state = state
        self._publish_s = publish_s

    def collect(self) -> Iterator[Metric]:
        """As the registry asks for it."""
        state, totals = self._state, self._state.totals
        counters = {
            "passes": ("Passes that came to their end", totals.passes),
            "failed_passes": ("Passes that were given up", totals.failed_passes),
            "writes": ("Changes handed to Slurm", totals.writes),
            "refusals": ("Changes that Slurm refused", totals.refusals),
            "preemptions": ("Jobs requeued for others", totals.preemptions),
            "stops": ("Jobs ended early", totals.stops),
            "audit_faults": ("Times that the audit file could not be written", totals.audit_faults),
        }
        for name, (meaning, count) in counters.items():
            yield CounterMetricFamily(f"explsched_{name}", f"{meaning}, since the daemon started", count)
        now = state.samples[-1] if state.samples else None
        gauges: dict[str, tuple[str, float]] = {
            "written_timestamp_seconds": ("When the last pass looked at Slurm", state.written_s),
            "interval_seconds": ("Time between two passes", state.interval_s),
            "pass_seconds": ("What the last pass took, its writes included", totals.pass_s),
            "publish_seconds": ("What it took to write this state", self._publish_s),
            "leases": ("Reservations of ours", sum(lease.job is not None for lease in state.leases)),
            "sweeps": ("Sweeps with jobs that wait or run", len({row.sweep for row in state.jobs if row.sweep})),
            "gpus": ("GPUs of the nodes", now.gpus if now else 0),
            "gpus_busy": ("GPUs that jobs hold", now.busy_gpus if now else 0),
            "jobs_running": ("Jobs that hold GPUs", now.running if now else 0),
            "jobs_waiting": ("Jobs that wait for GPUs", now.waiting if now else 0),
            "lost_gpu_seconds": (
                "Work that preemption has cost jobs that still wait or run",
                sum(row.lost_gpu_s for row in state.jobs),
            ),
        }
        for name, (meaning, value) in gauges.items():
            yield GaugeMetricFamily(f"explsched_{name}", meaning, value)
        policy = GaugeMetricFamily("explsched_policy_info", "The policy in force", labels=["policy"])
        policy.add_metric([state.policy], 1)
        yield policy


def exposition(state: State, publish_s: float) -> bytes:
    """The text. `publish_s` is what making and writing the state took."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StateCollector(state, publish_s))
    return generate_latest(registry)
