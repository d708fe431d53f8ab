"""The daemon's metrics in Prometheus' text format, for node_exporter's textfile collector and `sexplsched web`.

They name no job, user or sweep, so everybody may read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from slurm_plugin.client.records import takes_jobs
from slurm_plugin.state.published import NodeRow, State, Totals, states

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

METRICS_FILE = "sexplschedd.prom"


def counters(totals: Totals) -> Iterator[Metric]:
    """What the daemon has done since it started."""
    from prometheus_client.core import CounterMetricFamily

    found = {
        "passes": ("Completed passes", totals.passes),
        "failed_passes": ("Failed passes", totals.failed_passes),
        "writes": ("Changes sent to Slurm", totals.writes),
        "refusals": ("Changes that Slurm refused", totals.refusals),
        "preemptions": ("Jobs requeued for others", totals.preemptions),
        "stops": ("Jobs ended early", totals.stops),
        "audit_faults": ("Failed writes to the audit file", totals.audit_faults),
    }
    for name, (meaning, count) in found.items():
        yield CounterMetricFamily(f"explsched_{name}", f"{meaning}, since the daemon started", count)


def gauges(state: State, publish_s: float) -> Iterator[Metric]:
    """The cluster as the last pass saw it; `publish_s`: how long publishing that took."""
    from prometheus_client.core import GaugeMetricFamily

    totals = state.totals
    now = state.samples[-1] if state.samples else None
    found: dict[str, tuple[str, float]] = {
        "written_timestamp_seconds": ("Time at which the last pass read Slurm's state", state.written_s),
        "interval_seconds": ("Time between two passes", state.interval_s),
        "pass_seconds": ("Duration of the last pass, writes included", totals.pass_s),
        "publish_seconds": ("Duration of publishing the state", publish_s),
        "leases": ("Reservations made by explsched", sum(lease.job is not None for lease in state.leases)),
        "sweeps": (
            "Sweeps with jobs that wait or run",
            len({(row.sweep, row.user) for row in state.jobs if row.sweep}),
        ),
        "gpus": ("GPUs of the nodes", now.gpus if now else 0),
        "gpus_busy": ("GPUs that jobs hold", now.busy_gpus if now else 0),
        "jobs_running": ("Jobs that hold GPUs", now.running if now else 0),
        "jobs_waiting": ("Jobs that wait for GPUs", now.waiting if now else 0),
        "gpus_waited_for": (
            "GPUs asked for by jobs that wait for nothing but room",
            now.gpus_waited_for if now else 0,
        ),
        "jobs_reporting": (
            "Jobs that hold GPUs and have reported progress",
            now.reporting if now else 0,
        ),
        "lost_gpu_seconds": (
            "Work that preemption has cost jobs that still wait or run",
            sum(row.lost_gpu_s for row in state.jobs),
        ),
    }
    for name, (meaning, value) in found.items():
        yield GaugeMetricFamily(f"explsched_{name}", meaning, value)
    uses = GaugeMetricFamily("explsched_gpus_by_use", "GPUs by use", labels=["use"])
    for use, count in gpu_uses(state.nodes).items():
        uses.add_metric([use], count)
    yield uses
    of_sweeps = states(row for row in state.jobs if row.sweep)
    trainings = GaugeMetricFamily("explsched_trainings", "Jobs of sweeps by state", labels=["state"])
    for name in ("running", "waiting", "paused"):
        trainings.add_metric([name], of_sweeps[name])
    yield trainings
    policy = GaugeMetricFamily("explsched_policy_info", "The policy in force", labels=["policy"])
    policy.add_metric([state.policy], 1)
    yield policy


def gpu_uses(nodes: Iterable[NodeRow]) -> Mapping[str, int]:
    """Number of GPUs held by one job, shared by several, free, and unavailable (free on a node that takes no job)."""
    found = dict.fromkeys(("one job", "shared", "free", "unavailable"), 0)
    for node in nodes:
        unheld = "free" if takes_jobs(node.state) else "unavailable"
        for holders in node.devices:
            use = "shared" if len(holders) > 1 else "one job" if holders else unheld
            found[use] += 1
    return found


def exposition(metrics: Iterable[Metric]) -> bytes:
    """Metrics in Prometheus' text format."""
    # Loaded when something is published: `status` without a daemon makes a state, and is waited for.
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Ours(Collector):
        def collect(self) -> Iterable[Metric]:
            return metrics

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ours())
    return generate_latest(registry)
