"""Policies for exploratory trainings, ours and those it is compared with."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from sched_policy.backfill import PayoffAdmission
from sched_policy.catalog import PolicyOptions
from sched_policy.displace import Displace
from sched_policy.improvement import EarlyStop
from sched_policy.order import Fifo, Order, Srsf
from sched_policy.order.by_sweep import BySweep
from sched_policy.order.utility import ByUtility
from sched_policy.policies import depth, reserving, resizing
from sched_policy.policy import JobData, Need, Policy
from sched_policy.sweep import strategies
from sched_policy.sweep.choice import Sweeps

_NO_REPORT: Mapping[str, Order] = {"srsf": Srsf(), "fifo": Fifo()}


def explsched(options: PolicyOptions) -> Policy:
    """Each sweep's best model first, or with the objective `total` the sum of improvements, as published."""
    return _total(options) if options.objective == "total" else _best(options)


def _best(options: PolicyOptions) -> Policy:
    sweeps = Sweeps(strategies.build(options.sweep_strategy))
    total = _total(options)
    return replace(
        total,
        summary="each sweep's best model first; pauses and stops jobs that opted in",
        order=BySweep(sweeps, total.order),
        backfill=depth(options, 1),
        admission=None,
        stop=None,
        sweeps=sweeps,
    )


def _total(options: PolicyOptions) -> Policy:
    """Expected improvement per GPU-second."""
    backfill = depth(options, 1)
    untried = "jobs that report nothing are ordered as by"
    return Policy(
        "explsched",
        "expected improvement per GPU-second first; preempts and stops jobs that opted in",
        ByUtility(options.quantum_s, _NO_REPORT[options.no_report_order]),
        backfill=backfill,
        admission=PayoffAdmission(),
        preempt=Displace(
            margin=options.preempt_margin, quantum_s=options.quantum_s, most_at_once=options.most_preemptions
        ),
        resize=resizing(options),
        stop=EarlyStop(options.stop_threshold, options.stop_leader_threshold, options.stop_least_share),
        needs=(Need(JobData.LEARNING_CURVES, f"{untried} {options.no_report_order}"), *reserving(backfill)),
    )
