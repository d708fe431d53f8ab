"""Policies in order of arrival or of Slurm's own priority; they preempt nobody."""

from __future__ import annotations

from msgspec.structs import replace

from sched_policy.backfill import AS_SLURM
from sched_policy.options import PolicyOptions
from sched_policy.order.arrival import Fifo, Multifactor
from sched_policy.place.scored import Balanced, Simple
from sched_policy.policies.parts import depth, reserving, resizing
from sched_policy.policy import Policy


def slurm(options: PolicyOptions) -> Policy:
    """Slurm's own order and backfill."""
    own_depth = options.reservation_depth
    backfill = AS_SLURM if own_depth is None else replace(AS_SLURM, reservation_depth=own_depth)
    summary = "Slurm's own: multifactor priority, conservative backfill"
    return Policy("slurm", summary, Multifactor(), backfill=backfill, needs=reserving(backfill))


def fifo(options: PolicyOptions) -> Policy:
    """First in, first out."""
    summary = "order of submission, EASY backfill"
    backfill = depth(options, 1)
    return Policy("fifo", summary, Fifo(), backfill=backfill, resize=resizing(options), needs=reserving(backfill))


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
