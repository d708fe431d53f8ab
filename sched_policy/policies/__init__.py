"""The rows of the catalogue. Here those whose jobs hold their GPUs alone: by arrival, or by rank and preemptive.

The other families are imported when one of their policies is asked for.
"""

from __future__ import annotations

from sched_policy.backfill import Backfill
from sched_policy.catalog import PolicyOptions
from sched_policy.displace import Displace
from sched_policy.elastic import Resizing, WalltimeRequeue
from sched_policy.order import Fifo, LeastAttainedService, Order, Srsf, Srtf
from sched_policy.place import Balanced, Simple
from sched_policy.policy import JobData, Need, Policy

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


def fifo(options: PolicyOptions) -> Policy:
    """First in, first out."""
    summary = "order of submission, EASY backfill"
    backfill = depth(options, 1)
    return Policy("fifo", summary, Fifo(), backfill=backfill, resize=resizing(options), needs=reserving(backfill))


def simple(options: PolicyOptions) -> Policy:
    """Idle nodes only."""
    return Policy(
        "simple",
        "order of submission, greedy; one job per node, the idle node with the least to spare",
        Fifo(),
        place=Simple(),
        backfill=depth(options, 0),
        resize=resizing(options),
    )


def balanced(options: PolicyOptions) -> Policy:
    """Spread over the nodes."""
    return Policy(
        "balanced",
        "order of submission, greedy; the node with the fewest jobs and the most free GPUs",
        Fifo(),
        place=Balanced(),
        backfill=depth(options, 0),
        resize=resizing(options),
    )
