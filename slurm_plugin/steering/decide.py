"""From an observation to a plan and to the changes that carry it out: a pass of the daemon, and `sexplsched plan`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct

from sched_policy.checked import checked_plan
from sched_policy.plan import Plan
from sched_policy.policy import Policy, SchedulingPolicy
from slurm_plugin.client.changes import Change, SetSiteFactor
from slurm_plugin.observation.observe import Observation
from slurm_plugin.steering.beneficiaries import interruptions, without_vain_preemptions
from slurm_plugin.steering.places import put_first
from slurm_plugin.steering.preemption import PreemptionTracker
from slurm_plugin.steering.reconcile import (
    SteeringLimits,
    beside_order,
    given_back,
    reduced_to_limits,
    reordered,
    within_limits,
)
from slurm_plugin.steering.release import releases
from slurm_plugin.steering.slurm_order import wanted_order


class Kept(Struct, frozen=True):
    """What is known from earlier passes and decides on changes.

    Attributes:
        tracker: the preemptions underway, whose pass has begun; brought up to date by `changes`.
        others_factors: the parts of site factors that others have set; None if nobody has recorded which are ours:
            then none is given back.
        served: the jobs that should start in the next cycles, because others of their owner have been requeued for
            them; asked again once `tracker` is up to date.

    """

    tracker: PreemptionTracker
    others_factors: Mapping[int, int] | None
    served: Callable[[Observation], AbstractSet[int]] = lambda _seen: frozenset()


class Changes(Struct, frozen=True):
    """The changes of one pass: site factors; sizes, leases, delays and groups; steps of preemptions, and stops.

    `ranked` is the `wanted_order` that the site factors are for.
    """

    ranked: Sequence[int]
    order: tuple[SetSiteFactor, ...]
    beside: tuple[Change, ...]
    interruptions: tuple[Change, ...]

    @property
    def all(self) -> tuple[Change, ...]:
        """In the order in which they are sent."""
        return (*self.order, *self.beside, *self.interruptions)


def planned(policy: SchedulingPolicy, seen: Observation, awaited: Collection[int | None] = ()) -> Plan:
    """The policy's plan, as far as Slurm's queue and limits let it come true.

    `awaited` are the jobs for which others have been asked to leave, or have left. Raises `PolicyError` if the policy
    fails or its plan is invalid.
    """
    plan = within_limits(without_vain_preemptions(checked_plan(policy, seen.snapshot), seen, awaited), seen)
    resizes = isinstance(policy, Policy) and policy.resize is not None
    return reduced_to_limits(plan, seen) if resizes else plan


def changes(plan: Plan, seen: Observation, limits: SteeringLimits, kept: Kept) -> Changes:
    """The fewest changes that bring Slurm in line with the plan now. Preemptions take several passes."""
    others, most = kept.others_factors, limits.order.max_per_pass
    back = () if others is None else given_back(seen, others, most)
    released = releases(plan, seen)
    ranked = wanted_order(plan, seen.snapshot, released)
    order = put_first(kept.served(seen), seen, (*reordered(plan, ranked, seen, limits), *back))
    steps = interruptions(kept.tracker, plan, ranked, seen, order)
    order = put_first(kept.served(seen), seen, order)  # they may serve further jobs
    return Changes(ranked, order, beside_order(plan, released, seen, limits.slack_s, order), tuple(steps))
