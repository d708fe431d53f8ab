"""The cluster as the policy sees it, the plan for it, and which jobs share GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from sched_policy import catalog
from sched_policy.model import Job
from sched_policy.plan import Plan, Reservation, Score, Start
from sched_policy.utility import Utility, estimate
from slurm_plugin.client.records import ClusterRecords
from slurm_plugin.config import Config
from slurm_plugin.observation.group_annotation import GroupAnnotation, is_pinned
from slurm_plugin.observation.memory import Remembered
from slurm_plugin.observation.observe import Observation, observe
from slurm_plugin.observation.queue_positions import FILE as POSITIONS
from slurm_plugin.observation.queue_positions import QueuePositions
from slurm_plugin.observation.site_factors import OwnFactors
from slurm_plugin.observation.spool import WholeProgressSpool
from slurm_plugin.observation.sweep_record import ended_before, read
from slurm_plugin.state.ahead import Ahead
from slurm_plugin.steering.decide import planned
from slurm_plugin.steering.grouping import LiveGroup, device_name, live_groups

Gpu = tuple[str, int]
"""(node, index)."""


class GpuHolders(Struct, frozen=True):
    """The jobs on each GPU, as far as Slurm shows them, and the planned group of each job that has one."""

    seen: Observation
    holders: Mapping[Gpu, tuple[int, ...]]
    groups: Mapping[int, LiveGroup]

    @classmethod
    def of(cls, seen: Observation) -> GpuHolders:
        """The holders in this observation."""
        holders: defaultdict[Gpu, tuple[int, ...]] = defaultdict(tuple)
        for job in seen.jobs.values():
            for gpu in _gpus(seen, job.job_id):
                holders[gpu] += (job.job_id,)
        groups = {job_id: group for group in live_groups(seen.jobs.values()) for job_id in group.job_ids}
        return cls(seen, holders, groups)

    def device(self, job_id: int) -> str:
        """The GPUs that the job holds, as in `n1:0`; empty if unknown (`SlurmJob.gpu_indices`)."""
        return device_name(self.seen.jobs[job_id].gpu_indices)

    def beside(self, job_id: int) -> tuple[int, ...]:
        """The other jobs on the job's GPUs."""
        found = {other for gpu in _gpus(self.seen, job_id) for other in self.holders[gpu]}
        return tuple(sorted(found - {job_id}))

    def summary(self, job_id: int) -> str:
        """A phrase for tables; empty for a job that shares no GPU."""
        group = self.groups.get(job_id)
        if group is not None:
            with_whom = _list(other for other in group.job_ids if other != job_id)
            return f"group {group.number}{f' with {with_whom}' if with_whom else ''}: {_state(group)}"
        others = self.beside(job_id)
        return f"shares its GPU with {_list(others)}" if others else ""

    def sentences(self, job: Job) -> Iterator[str]:
        """Sentences for `explain` about the job's GPUs, its group and its pin."""
        record, others, held = self.seen.jobs[job.job_id], self.beside(job.job_id), self.device(job.job_id)
        note, group = GroupAnnotation.of(record.admin_comment), self.groups.get(job.job_id)
        if held:
            yield f"It holds GPU {held}{f', together with {_list(others)}' if others else ''}."
        elif job.may_share and record.shards_per_node:
            yield "It asks for a part of a GPU, so others may run beside it."
        if group is not None:
            named = f"group {group.number} ({_list(group.job_ids)})"
            yield f"It is one of the {group.size} jobs of {named}: {_state(group)}."
        if note.pause_s > self.seen.snapshot.now_s:
            yield "It did not start on its planned node, so it is left to Slurm for some minutes."
        elif record.state == "PENDING" and is_pinned(record):
            yield f"It is pinned to node {note.node}, where it fits now; unpinned if it does not start at once."


def _gpus(seen: Observation, job_id: int) -> Iterator[Gpu]:
    return ((node, index) for node, indices in seen.jobs[job_id].gpu_indices for index in indices)


def _state(group: LiveGroup) -> str:
    """The state of a group in words."""
    if not group.is_complete:
        return "dissolves: one of its jobs has ended"
    if group.verified is False:
        return "apart: Slurm chose different GPUs"
    if group.waiting:
        return "waits for GPUs" if not group.running else f"waits for {_list(group.waiting)}"
    return "verified" if group.verified else "starts"


def _list(job_ids: Iterable[int]) -> str:
    return ", ".join(map(str, job_ids))


class View(Struct, frozen=True):
    """One look at the cluster: the observation, and the policy's plan, scores and estimates for it."""

    config: Config
    seen: Observation
    plan: Plan
    scores: Mapping[int, Score]
    utilities: Mapping[int, Utility]
    starts: Mapping[int, Start]
    reservations: Mapping[int, Reservation]
    sharers: GpuHolders
    ranks: Mapping[int, int]
    ahead: Ahead

    @classmethod
    def of(cls, config: Config, records: ClusterRecords, now_s: float) -> View:
        """The view of records read from Slurm. Raises `PolicyError` if the policy fails."""
        factors = config.order.site_factor_file
        own = OwnFactors.of_visitor(factors)
        others, throttled = own.others(records.jobs), own.throttled(records.jobs)
        positions = QueuePositions.of_visitor(factors.with_name(POSITIONS))
        positions.take_in({job.job_id: job for job in records.jobs})
        base = positions.base_factors(records.jobs, others, now_s, config.order.max_wait_s)
        spool = WholeProgressSpool(config.progress.spool)
        ended = ended_before(read(config.progress.spool), records.jobs, spool, config.order.scope, now_s)
        remembered = Remembered(others_factors=others, base_factors=base, throttled_factors=throttled, trainings=ended)
        seen = observe(records, spool, now_s, config, remembered)
        policy = catalog.build(config.policy, config.policy_options())
        return cls.planned(config, seen, planned(policy, seen))

    @classmethod
    def planned(cls, config: Config, seen: Observation, plan: Plan) -> View:
        """The view of an observation for which a plan has been made."""
        scores = {score.job_id: score for score in plan.scores}
        for job in seen.snapshot.jobs:  # another package's policy may rank only some
            scores.setdefault(job.job_id, Score(job.job_id, 0.0, f"policy {config.policy} does not rank it"))
        return cls(
            config,
            seen,
            plan,
            scores,
            estimate(seen.snapshot, config.utility.quantum_s),
            {start.job_id: start for start in plan.starts},
            {reservation.job_id: reservation for reservation in plan.reservations},
            GpuHolders.of(seen),
            {job_id: rank for rank, job_id in enumerate(scores, start=1)},
            Ahead.of(plan, seen),
        )
