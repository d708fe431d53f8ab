"""What the cluster looks like to the policy, and the plan the daemon would make of it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sched_policy import catalog
from sched_policy.plan import Plan, Reservation, Score, Start
from sched_policy.utility import Utility, estimate
from sched_policy.validate import checked_plan
from slurm_plugin.cli.sharers import Sharers
from slurm_plugin.client.records import ClusterRecords
from slurm_plugin.config import Config
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.own_factors import OwnFactors
from slurm_plugin.observation.progress import ProgressSpool
from slurm_plugin.steering.room import without_vain_preemptions


class View(Struct, frozen=True):
    """One look: what Slurm and the jobs tell, and what the policy makes of it."""

    config: Config
    seen: Observation
    plan: Plan
    scores: Mapping[int, Score]
    utilities: Mapping[int, Utility]
    starts: Mapping[int, Start]
    promises: Mapping[int, Reservation]
    sharers: Sharers

    @classmethod
    def of(cls, config: Config, records: ClusterRecords, now_s: float) -> View:
        """The view of what Slurm has told. Raises `PolicyError` if the policy fails."""
        own_factors = OwnFactors.of_visitor(config.order.record)
        seen = observe(
            records,
            ProgressSpool(config.progress.spool),
            now_s,
            config.slurm.partitions,
            Remembered(others_factors=own_factors.others(records.jobs)),
            config.preemption_budget(),
            config.order,
        )
        policy = catalog.build(config.policy, config.policy_options())
        plan = without_vain_preemptions(checked_plan(policy, seen.snapshot), seen)
        return cls(
            config,
            seen,
            plan,
            {score.job_id: score for score in plan.scores},
            estimate(seen.snapshot, config.utility.quantum_s),
            {start.job_id: start for start in plan.starts},
            {promise.job_id: promise for promise in plan.reservations},
            Sharers.of(seen),
        )
