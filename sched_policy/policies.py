"""The policies of the catalogue; baselines are in `simulation.baselines` and `simulation.pairs`.

Modules for grouping are imported only for the policies that need them, because that takes half a second.
"""

from __future__ import annotations

from collections.abc import Mapping

from explsched import entry_points
from sched_policy.backfill import Backfill
from sched_policy.catalog import STRATEGIES, PolicyOptions
from sched_policy.displace import Displace
from sched_policy.elastic import Resizing, WalltimeRequeue
from sched_policy.order import Fifo, Gittins, Order, Srsf
from sched_policy.policy import JobData, Need, Policy
from sched_policy.sweep.choice import Sweeps
from sched_policy.utility import ByUtility

SHORTEST_FIRST = Need(JobData.RUN_TIMES, "jobs of unknown length come last, in order of submission")
"""For orders by remaining run time."""
GROUPED = Need(JobData.STAGE_TIMES, "jobs without them run alone")
"""For groups that interleave stages."""
NO_REPORT: Mapping[str, Order] = {"srsf": Srsf(), "fifo": Fifo()}
"""Orders for jobs that report nothing."""


def depth(options: PolicyOptions, own: int) -> Backfill:
    """Backfill with the site's reservation depth, else the policy's own."""
    return Backfill(own if options.reservation_depth is None else options.reservation_depth)


def reserving(backfill: Backfill) -> tuple[Need, ...]:
    """The data that backfill needs for reservations."""
    without = "no start can be reserved behind jobs of unknown length, so later jobs may pass blocked ones"
    return (Need(JobData.RUN_TIMES, without),) if backfill.reservation_depth > 0 else ()


def resizing(options: PolicyOptions) -> Resizing:
    """When elastic jobs change their size."""
    requeue = WalltimeRequeue(options.resize_lead_s, options.quantum_s)
    return Resizing(options.resize_restart_s, options.resize_gain, options.quantum_s, options.most_preemptions, requeue)


def preemptive(name: str, summary: str, order: Order, options: PolicyOptions, needs: tuple[Need, ...] = ()) -> Policy:
    """Preemption by rank alone, as published: a better job displaces a worse one that has run for its quantum."""
    displace = Displace(margin=1.0, least_share=0.0, quantum_s=options.quantum_s, most_at_once=options.most_preemptions)
    return Policy(
        name, summary, order, backfill=depth(options, 0), preempt=displace, resize=resizing(options), needs=needs
    )


def srsf(options: PolicyOptions) -> Policy:
    """Shortest remaining service first."""
    summary = "shortest remaining service (time x GPUs) first, preemptive"
    return preemptive("srsf", summary, Srsf(), options, (SHORTEST_FIRST,))


def fifo(options: PolicyOptions) -> Policy:
    """First in, first out."""
    summary = "order of submission, EASY backfill"
    backfill = depth(options, 1)
    return Policy("fifo", summary, Fifo(), backfill=backfill, resize=resizing(options), needs=reserving(backfill))


def explsched(options: PolicyOptions) -> Policy:
    """The policy for the site's objective."""
    policy: Policy = entry_points.own(entry_points.OBJECTIVES)[options.objective].load()(options)
    return policy


def best(options: PolicyOptions) -> Policy:
    """Each sweep's best model first; the other jobs by expected improvement per GPU-second."""
    order = ByUtility(options.quantum_s, NO_REPORT[options.no_report_order])
    backfill = depth(options, 1)
    untried = f"jobs that report nothing are ordered as by {options.no_report_order}"
    return Policy(
        "explsched",
        "each sweep's best model first; pauses and stops jobs that opted in",
        order,
        backfill=backfill,
        preempt=Displace(options.preempt_margin, quantum_s=options.quantum_s, most_at_once=options.most_preemptions),
        resize=resizing(options),
        sweeps=Sweeps(STRATEGIES.build(options.sweep_strategy)),
        needs=(Need(JobData.LEARNING_CURVES, untried), *reserving(backfill)),
    )


def explsched_share(options: PolicyOptions) -> Policy:
    """Packing, sharing and order in one: the groups with the most valuable progress."""
    from sched_policy.group.muri import ByWorth, Interleave

    summary = "groups of up to 4 jobs whose progress is worth most, by known or learnt remaining service"
    learnt = Need(JobData.RUN_TIMES, "their length is judged by jobs of the same size submitted just before and after")
    sharing = Interleave(ByWorth(), options.quantum_s)
    return Policy("explsched-share", summary, Gittins(options.quantum_s), sharing=sharing, needs=(learnt, GROUPED))
