"""Whether CPUs and memory would be free, too, where a plan frees GPUs. Pure.

Plans count GPUs. Nobody is interrupted for a job that would not start all the same, as where CPU-only jobs hold the
cores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from sched_policy.model import Job
from sched_policy.plan import Plan
from slurm_plugin.client.records import SlurmJob, SlurmNode
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.requirements import Needs


class _Room(Struct):
    """What is free on a node."""

    gpus: int
    cpus: float
    memory_mib: float


def without_vain_preemptions(plan: Plan, seen: Observation) -> Plan:
    """The plan without preemptions after which their beneficiary would lack CPUs or memory."""
    if not any(preemption.beneficiary for preemption in plan.preemptions):
        return plan
    victims: defaultdict[int, set[int]] = defaultdict(set)
    for preemption in plan.preemptions:
        if preemption.beneficiary is not None:
            victims[preemption.beneficiary].add(preemption.job_id)
    yielding = {job.job_id for job in seen.snapshot.running if job.yielding}
    vain = {
        job_id for job_id, going in victims.items() if not _has_room(seen.jobs[job_id], _room(seen, going | yielding))
    }
    kept = tuple(preemption for preemption in plan.preemptions if preemption.beneficiary not in vain)
    return replace(plan, preemptions=kept) if vain else plan


def _room(seen: Observation, going: Iterable[int]) -> dict[SlurmNode, _Room]:
    """What is free on each node once some jobs have gone."""
    gone = frozenset(going)
    room = {name: _empty(node) for name, node in seen.nodes.items()}
    for job in seen.snapshot.running:
        if job.job_id not in gone:
            _take_gpus(job, room)
    for job_id in gone & seen.jobs.keys():
        record = seen.jobs[job_id]
        for name in record.node_names:
            if name in room:
                room[name].cpus += record.cpus / len(record.node_names)
                room[name].memory_mib += record.memory_mib / len(record.node_names)
    return {seen.nodes[name]: there for name, there in room.items()}


def _empty(node: SlurmNode) -> _Room:
    """A node whose GPUs are all free; what Slurm does not tell is there without end."""
    cpus = node.cpus - node.cpus_taken if node.cpus else float("inf")
    memory_mib = node.memory_mib - node.memory_taken_mib if node.memory_mib else float("inf")
    return _Room(node.gpus, cpus, memory_mib)


def _take_gpus(job: Job, room: dict[str, _Room]) -> None:
    for share in job.allocation:
        if share.node in room:
            room[share.node].gpus -= share.gpus


def _has_room(record: SlurmJob, room: dict[SlurmNode, _Room]) -> bool:
    needs = Needs.of(record)
    gpus = [
        there.gpus
        for node, there in room.items()
        if not node.partitions.isdisjoint(record.partitions) and node.schedulable and needs.are_met_by(node)
        if there.cpus >= needs.cpus and there.memory_mib >= needs.memory_mib
    ]
    if record.gpus_per_node is not None:
        return sum(free >= record.gpus_per_node for free in gpus) >= record.nodes
    return sum(max(0, free) for free in gpus) >= record.gpus
