"""Parts that rows of several families use."""

from __future__ import annotations

from sched_policy.backfill import Backfill
from sched_policy.elastic import Resizing, WalltimeRequeue
from sched_policy.options import PolicyOptions
from sched_policy.order.base import Order
from sched_policy.policy import Policy
from sched_policy.preempt.displace import Displace


def depth(options: PolicyOptions, own: int) -> Backfill:
    """Backfill with the reservation depth that the site has set, else the policy's own."""
    return Backfill(own if options.reservation_depth is None else options.reservation_depth)


def resizing(options: PolicyOptions) -> Resizing:
    """When elastic jobs change their size."""
    requeue = WalltimeRequeue(options.resize_lead_s, options.quantum_s)
    return Resizing(options.resize_restart_s, options.resize_gain, options.quantum_s, options.most_preemptions, requeue)


def preemptive(name: str, summary: str, order: Order, options: PolicyOptions) -> Policy:
    """Rank decides alone, as published: who is better displaces who is worse once that one had its quantum."""
    displace = Displace(margin=1.0, least_share=0.0, quantum_s=options.quantum_s, most_at_once=options.most_preemptions)
    return Policy(name, summary, order, backfill=depth(options, 0), preempt=displace, resize=resizing(options))
