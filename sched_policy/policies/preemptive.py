"""Policies that preempt by rank, as published."""

from __future__ import annotations

from sched_policy.options import PolicyOptions
from sched_policy.order.las import LeastAttainedService
from sched_policy.order.shortest import Srsf, Srtf
from sched_policy.order.themis import FinishTimeFair
from sched_policy.policies.parts import preemptive
from sched_policy.policy import Policy


def srtf(options: PolicyOptions) -> Policy:
    """Shortest remaining time first."""
    return preemptive("srtf", "shortest remaining time first, preemptive", Srtf(), options)


def srsf(options: PolicyOptions) -> Policy:
    """Shortest remaining service first."""
    return preemptive("srsf", "shortest remaining service (time x GPUs) first, preemptive", Srsf(), options)


def tiresias(options: PolicyOptions) -> Policy:
    """Two-dimensional least attained service."""
    order = LeastAttainedService(options.las_limits_gpu_s, options.starvation)
    return preemptive("tiresias", "least attained service in few queues (2D-LAS), preemptive", order, options)


def themis(options: PolicyOptions) -> Policy:
    """Finish-time fairness."""
    return preemptive("themis", "finish-time fairness (Themis), preemptive", FinishTimeFair(), options)
