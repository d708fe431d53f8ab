"""Which waiting jobs come before others in Slurm's queue, as a plan wants it: for `explain`. Pure."""

from __future__ import annotations

from sched_policy.plan import Plan
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.standing import may_start
from slurm_plugin.steering.slurm_order import on_places


def firsts(plan: Plan, seen: Observation) -> frozenset[int]:
    """The jobs that may start before which no other such job waits, for a node of their partitions."""
    jobs = {job.job_id: job for job in seen.snapshot.jobs}
    found: set[int] = set()
    wanted: set[str] = set()  # by those before
    crowded: set[str] = set()  # partitions in which one of those waits
    for job_id in on_places(plan, seen.snapshot):
        record = seen.jobs[job_id]
        waits = job_id not in plan.rests and (jobs[job_id].eligible or may_start(record, seen.snapshot.now_s))
        if not waits or record.partition in crowded:
            continue
        nodes = _nodes(seen, record.partition)
        if wanted.isdisjoint(nodes):
            found.add(job_id)
        crowded.add(record.partition)
        wanted |= nodes
    return frozenset(found)


def _nodes(seen: Observation, partition: str) -> frozenset[str]:
    """Those of a partition, or of a list of some."""
    names = frozenset(partition.split(","))
    return frozenset(node.name for node in seen.nodes.values() if not names.isdisjoint(node.partitions))
