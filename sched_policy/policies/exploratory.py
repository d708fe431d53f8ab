"""Policies for exploratory trainings, ours and those it is compared with."""

from __future__ import annotations

from collections.abc import Mapping

from sched_policy.admission import PayoffAdmission
from sched_policy.options import PolicyOptions
from sched_policy.order.arrival import Fifo
from sched_policy.order.base import Order
from sched_policy.order.las import Fair
from sched_policy.order.shortest import Srsf
from sched_policy.order.slaq import Slaq
from sched_policy.order.utility import ByUtility
from sched_policy.policies.parts import depth, preemptive, reserving, resizing
from sched_policy.policy import JobData, Need, Policy
from sched_policy.preempt.displace import Displace
from sched_policy.stopping import EarlyStop

_SILENT: Mapping[str, Order] = {"srsf": Srsf(), "fifo": Fifo()}


def explsched(options: PolicyOptions) -> Policy:
    """Expected improvement per GPU-second."""
    backfill = depth(options, 1)
    untried = "jobs that opted in and report nothing keep their order of submission, others are ordered as by"
    return Policy(
        "explsched",
        "expected improvement per GPU-second first; preempts and stops jobs that opted in",
        ByUtility(options.quantum_s, _SILENT[options.silent_order]),
        backfill=backfill,
        admission=PayoffAdmission(),
        preempt=Displace(
            margin=options.preempt_margin, quantum_s=options.quantum_s, most_at_once=options.most_preemptions
        ),
        resize=resizing(options),
        stop=EarlyStop(options.stop_threshold, options.stop_leader_threshold, options.stop_least_share),
        needs=(Need(JobData.LEARNING_CURVES, f"{untried} {options.silent_order}"), *reserving(backfill)),
    )


def fair(options: PolicyOptions) -> Policy:
    """Equal shares of time."""
    summary = "equal GPU time for all jobs, a slice at a time, preemptive"
    return preemptive("fair", summary, Fair(options.quantum_s), options)


def slaq(options: PolicyOptions) -> Policy:
    """Predicted loss reduction."""
    summary = "largest predicted normalised loss reduction per GPU-second first, preemptive"
    need = Need(JobData.LEARNING_CURVES, "jobs that report nothing keep their order of submission")
    return preemptive("slaq", summary, Slaq(options.quantum_s), options, (need,))
