"""Policies that preempt by rank, as published."""

from __future__ import annotations

from sched_policy.options import PolicyOptions
from sched_policy.order.las import LeastAttainedService
from sched_policy.order.shortest import Srsf, Srtf
from sched_policy.order.themis import FinishTimeFair
from sched_policy.policies.parts import SHORTEST_FIRST, preemptive
from sched_policy.policy import JobData, Need, Policy


def srtf(options: PolicyOptions) -> Policy:
    """Shortest remaining time first."""
    return preemptive("srtf", "shortest remaining time first, preemptive", Srtf(), options, (SHORTEST_FIRST,))


def srsf(options: PolicyOptions) -> Policy:
    """Shortest remaining service first."""
    return preemptive(
        "srsf", "shortest remaining service (time x GPUs) first, preemptive", Srsf(), options, (SHORTEST_FIRST,)
    )


def tiresias(options: PolicyOptions) -> Policy:
    """Two-dimensional least attained service."""
    order = LeastAttainedService(options.las_limits_gpu_s, options.starvation)
    return preemptive("tiresias", "least attained service in few queues (2D-LAS), preemptive", order, options)


def themis(options: PolicyOptions) -> Policy:
    """Finish-time fairness."""
    order = FinishTimeFair()
    need = Need(JobData.RUN_TIMES, f"jobs of unknown length are taken to need {order.unknown_s / 3600:.0f} h more")
    return preemptive("themis", "finish-time fairness (Themis), preemptive", order, options, (need,))
