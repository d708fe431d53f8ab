"""Parts that rows of several families use."""

from __future__ import annotations

from sched_policy.backfill import Backfill
from sched_policy.elastic import Resizing, WalltimeRequeue
from sched_policy.options import PolicyOptions
from sched_policy.order.base import Order
from sched_policy.policy import JobData, Need, Policy
from sched_policy.preempt.displace import Displace

SHORTEST_FIRST = Need(JobData.RUN_TIMES, "jobs of unknown length come last, in order of submission")
"""Of orders by remaining run time."""


def depth(options: PolicyOptions, own: int) -> Backfill:
    """Backfill with the reservation depth that the site has set, else the policy's own."""
    return Backfill(own if options.reservation_depth is None else options.reservation_depth)


def reserving(backfill: Backfill) -> tuple[Need, ...]:
    """What backfill needs to reserve starts for blocked jobs."""
    without = "no start can be reserved behind jobs of unknown length, so later jobs may pass blocked ones"
    return (Need(JobData.RUN_TIMES, without),) if backfill.reservation_depth > 0 else ()


def resizing(options: PolicyOptions) -> Resizing:
    """When elastic jobs change their size."""
    requeue = WalltimeRequeue(options.resize_lead_s, options.quantum_s)
    return Resizing(options.resize_restart_s, options.resize_gain, options.quantum_s, options.most_preemptions, requeue)


def preemptive(name: str, summary: str, order: Order, options: PolicyOptions, needs: tuple[Need, ...] = ()) -> Policy:
    """Rank decides alone, as published: who is better displaces who is worse once that one had its quantum."""
    displace = Displace(margin=1.0, least_share=0.0, quantum_s=options.quantum_s, most_at_once=options.most_preemptions)
    return Policy(
        name, summary, order, backfill=depth(options, 0), preempt=displace, resize=resizing(options), needs=needs
    )
