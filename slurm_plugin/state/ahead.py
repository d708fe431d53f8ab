"""Which waiting jobs come before others in Slurm's queue, as a plan wants it: for `explain`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from sched_policy.plan import Plan
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.standing import may_start
from slurm_plugin.steering.beneficiaries import may_take_gpus
from slurm_plugin.steering.release import releases
from slurm_plugin.steering.slurm_order import Turns, on_places, wanted_order


class Ahead(Struct, frozen=True):
    """What is before jobs in the queue.

    Attributes:
        firsts: the jobs that may start before which no other such job waits, for a node of their partitions.
        rivals: of these, by id, another partition's job that Slurm may consider before it for such a node.
        keeps: the first job without a planned start that waits before a job that should start now, for a node on which
            that one should, by the id of that one: Slurm's backfill plans its start, even if the policy reserves
            nothing.

    """

    firsts: frozenset[int]
    rivals: Mapping[int, int]
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
        queue = on_places(wanted_order(plan, seen.snapshot, releases(plan, seen)), seen.snapshot)
        for job_id in queue:
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
        rivals = {job_id: _rival(job_id, queue, plan, seen) for job_id in firsts - planned}
        return cls(frozenset(firsts), {own: other for own, other in rivals.items() if other is not None}, keeps)


def _rival(job_id: int, queue: Sequence[int], plan: Plan, seen: Observation) -> int | None:
    """The first such job of another partition; `queue` are pending jobs as the plan orders them."""
    own, place = seen.jobs[job_id], {other: at for at, other in enumerate(queue)}
    turns, nodes = Turns(place, seen.cluster), _nodes(seen, own.partition)
    others = (other for other in seen.jobs.values() if other.partition != own.partition)
    able = (other for other in others if other.job_id not in plan.rests and may_take_gpus(other, seen.snapshot.now_s))
    first = sorted(
        (other for other in able if turns.may_be_first(other, own)), key=lambda other: place.get(other.job_id, -1)
    )
    return next((other.job_id for other in first if not nodes.isdisjoint(_nodes(seen, other.partition))), None)


def _nodes(seen: Observation, partition: str) -> frozenset[str]:
    """Those of a partition, or of a list of some."""
    names = frozenset(partition.split(","))
    return frozenset(node.name for node in seen.nodes.values() if not names.isdisjoint(node.partitions))
