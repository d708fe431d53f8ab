"""Policies in order of arrival or of Slurm's own priority; they preempt nobody."""

from __future__ import annotations

from sched_policy.backfill import ALL, Backfill
from sched_policy.options import PolicyOptions
from sched_policy.order.fifo import Fifo
from sched_policy.order.multifactor import Multifactor
from sched_policy.place.balanced import Balanced
from sched_policy.place.simple import Simple
from sched_policy.policy import Policy
from sched_policy.rows.parts import depth, resizing


def slurm(options: PolicyOptions) -> Policy:
    """Slurm's own order and backfill."""
    backfill = Backfill(
        ALL if options.reservation_depth is None else options.reservation_depth, queue_depth=500, window_s=86_400.0
    )  # bf_max_job_test and bf_window as Slurm has them by default
    return Policy("slurm", "Slurm's own: multifactor priority, conservative backfill", Multifactor(), backfill=backfill)


def fifo(options: PolicyOptions) -> Policy:
    """First in, first out."""
    summary = "order of submission, EASY backfill"
    return Policy("fifo", summary, Fifo(), backfill=depth(options, 1), resize=resizing(options))


def simple(options: PolicyOptions) -> Policy:
    """The Go scheduler's simple placement."""
    return Policy(
        "simple",
        "order of submission, greedy; one job per node, the idle node with the least to spare",
        Fifo(),
        place=Simple(),
        backfill=depth(options, 0),
        resize=resizing(options),
    )


def balanced(options: PolicyOptions) -> Policy:
    """The Go scheduler's balanced placement."""
    return Policy(
        "balanced",
        "order of submission, greedy; the node with the fewest jobs and the most free GPUs",
        Fifo(),
        place=Balanced(),
        backfill=depth(options, 0),
        resize=resizing(options),
    )
