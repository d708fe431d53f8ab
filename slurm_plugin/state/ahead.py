"""Which waiting jobs come before others in Slurm's queue, as a plan wants it: for `explain`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sched_policy.plan import Plan
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.standing import may_start
from slurm_plugin.steering.release import releases
from slurm_plugin.steering.slurm_order import on_places, wanted_order


class Ahead(Struct, frozen=True):
    """What is before jobs in the queue.

    Attributes:
        firsts: the jobs that may start before which no other such job waits, for a node of their partitions.
        keeps: the first job without a planned start that waits before a job that should start now, for a node on which
            that one should, by the id of that one: Slurm's backfill plans its start, even if the policy reserves
            nothing.

    """

    firsts: frozenset[int]
    keeps: Mapping[int, int]

    @classmethod
    def of(cls, plan: Plan, seen: Observation) -> Ahead:
        """By the order that the plan wants."""
        jobs = {job.job_id: job for job in seen.snapshot.jobs}
        starts = {start.job_id: start for start in plan.starts}
        planned = starts.keys() | {reservation.job_id for reservation in plan.reservations}
        firsts: set[int] = set()
        keeps: dict[int, int] = {}
        nodes: dict[str, frozenset[str]] = {}  # by partition, of those in which a job waits before
        blocked: set[str] = set()  # partitions in which one without a planned start does
        keepers: dict[str, int] = {}  # the first of those, by node
        ranked = wanted_order(plan, seen.snapshot, releases(plan, seen))
        for job_id in on_places(ranked, seen.snapshot):
            record = seen.jobs[job_id]
            if job_id in plan.rests or not (jobs[job_id].eligible or may_start(record, seen.snapshot.now_s)):
                continue
            if record.partition not in nodes:
                own = _nodes(seen, record.partition)
                if all(own.isdisjoint(others) for others in nodes.values()):
                    firsts.add(job_id)
                nodes[record.partition] = own
            if job_id in starts:
                for share in starts[job_id].placement:
                    if share.node in keepers:
                        keeps.setdefault(job_id, keepers[share.node])
            elif job_id not in planned and record.partition not in blocked:
                blocked.add(record.partition)
                keepers = dict.fromkeys(nodes[record.partition], job_id) | keepers
        return cls(frozenset(firsts), keeps)


def _nodes(seen: Observation, partition: str) -> frozenset[str]:
    """Those of a partition, or of a list of some."""
    names = frozenset(partition.split(","))
    return frozenset(node.name for node in seen.nodes.values() if not names.isdisjoint(node.partitions))
