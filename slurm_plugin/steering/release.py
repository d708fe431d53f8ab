"""Which waiting jobs may be pinned to their planned node now: those that share a GPU, and those that are placed. Pure.

Slurm chooses GPUs by its own rule (`free_shards`, `choice`), one job after the other. So jobs that share are released
in an order in which each gets its planned GPU: beside its group, or an unused one for the first. A job that Slurm would
place elsewhere is not pinned: Slurm starts it anywhere, alone or beside others, and the next plan continues from there.
Jobs with whole GPUs on one node, for which the policy chooses the node (`Plan.placed`), are pinned to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from sched_policy.plan import Plan, Start
from slurm_plugin.client.records import ShardRule, SlurmJob, SlurmNode
from slurm_plugin.observation.group_annotation import GroupAnnotation, may_be_annotated
from slurm_plugin.observation.observe import Observation
from slurm_plugin.observation.standing import waits_for_begin


def free_shards(node: SlurmNode, there: Iterable[SlurmJob]) -> list[int] | None:
    """Free shards of each GPU of a node, given the jobs that hold GPUs there; a GPU that is held whole has none.

    None if it is not known which GPU a job holds.
    """
    size = node.shards // node.gpus if node.gpus else 0
    free = [size] * node.gpus
    for job in there:
        indices = dict(job.gpu_indices).get(node.name, ())
        if not indices or max(indices) >= node.gpus:
            return None
        alone = len(indices) == 1 and job.gpus == 0
        for index in indices:  # Slurm does not show how shards on several GPUs are distributed
            free[index] = max(0, free[index] - job.shards_per_node) if alone else 0
    return free


def choice(free: Sequence[int], shards: int, rule: ShardRule) -> int | None:
    """The GPU that a job with this number of shards gets; None if no GPU has as many left."""
    fitting = [index for index, left in enumerate(free) if left >= shards]
    if rule is ShardRule.LEAST_LOADED:
        fitting.sort(key=lambda index: -free[index])
    return fitting[0] if fitting else None


class Sharers(Struct, frozen=True):
    """The jobs of one GPU: those that run there, and those that are to start there, in this order."""

    node: str
    running: tuple[int, ...]
    starting: tuple[int, ...]

    @property
    def job_ids(self) -> tuple[int, ...]:
        """All of them."""
        return (*self.running, *self.starting)


class Releases(Struct, frozen=True):
    """What can be done now: jobs in the order in which Slurm should start them, and those that share GPUs.

    `placed` are the nodes of jobs that have their GPUs to themselves.
    """

    order: tuple[int, ...] = ()
    sharers: tuple[Sharers, ...] = ()
    placed: Mapping[int, str] = field(default_factory=dict)


class _Unit(Struct):
    """Jobs that a plan starts on the same GPU of a node; `gpu` is None while any unused one will do."""

    waiting: list[int]
    gpu: int | None


def releases(plan: Plan, seen: Observation) -> Releases:
    """The starts of a plan that Slurm would carry out as planned."""
    by_node: defaultdict[str, list[Start]] = defaultdict(list)
    jobs = {job.job_id: job for job in seen.snapshot.jobs}
    for start in plan.starts:
        record = seen.jobs[start.job_id]
        if jobs[start.job_id].may_share and may_be_pinned(record, seen.snapshot.now_s) and _one_gpu(start):
            by_node[start.placement[0].node].append(start)
    placed = _placed(plan, seen)
    if not by_node:
        return Releases(placed=placed)
    there: defaultdict[str, list[SlurmJob]] = defaultdict(list)
    for job in seen.snapshot.running:
        for share in job.allocation:
            there[share.node].append(seen.jobs[job.job_id])
    order: list[int] = []
    sharers: list[Sharers] = []
    for node, starts in by_node.items():
        free = free_shards(seen.nodes[node], there[node])
        if free is not None:
            holders = _by_gpu(node, there[node])
            shards = {start.job_id: seen.jobs[start.job_id].shards_per_node for start in starts}
            started = foreseen(starts, holders, free, shards, seen.cluster.shard_rule)
            order += started
            sharers += _sharers(node, started, holders)
    return Releases(tuple(order), tuple(sharers), placed)


def _placed(plan: Plan, seen: Observation) -> Mapping[int, str]:
    """Left to Slurm are jobs on several nodes, which would get all of a list, and jobs with a lease.

    So are those planned on a node that is powered down: policies prefer empty nodes, and would boot one after the other
    while the job has room on others. Slurm boots one if it has none.
    """
    return {
        start.job_id: start.placement[0].node
        for start in plan.starts
        if start.job_id in plan.placed and len(start.placement) == 1 and not start.placement[0].indices
        if may_be_pinned(record := seen.jobs[start.job_id], seen.snapshot.now_s) and not record.reservation
        if not seen.nodes[start.placement[0].node].is_powered_down
    }


def may_be_pinned(record: SlurmJob, now_s: float) -> bool:
    """Whether a waiting job may be pinned: no array, no nodes chosen by others, and not left to Slurm for now.

    Excludes jobs that Slurm would not start now because of their begin time.
    """
    note = GroupAnnotation.of(record.admin_comment)
    if record.state != "PENDING" or record.array_tasks > 1 or note.pause_s > now_s or waits_for_begin(record, now_s):
        return False
    return may_be_annotated(record.admin_comment) and record.required_nodes in ((), (note.node,))


def _one_gpu(start: Start) -> bool:
    """Jobs of several GPUs or nodes are not pinned: Slurm's choice for them cannot be predicted."""
    return len(start.placement) == 1 and len(start.placement[0].indices) == 1


def _by_gpu(node: str, there: Iterable[SlurmJob]) -> Mapping[int, tuple[int, ...]]:
    holders: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
    for job in there:
        for index in dict(job.gpu_indices).get(node, ()):
            holders[index] += (job.job_id,)
    return dict(holders)


def foreseen(
    starts: Sequence[Start],
    holders: Mapping[int, tuple[int, ...]],
    free: Sequence[int],
    shards: Mapping[int, int],
    rule: ShardRule,
) -> Mapping[int, int]:
    """The starts on a node by which each job gets the GPU it should, in the order in which Slurm should try them.

    Args:
        starts: starts of jobs on one GPU of the node each.
        holders: jobs on each of its GPUs that is in use.
        free: free shards of each of its GPUs.
        shards: how many each of the jobs asks for.
        rule: how Slurm chooses GPUs.

    Returns:
        the GPU of each job.

    """
    units, unused = _units(starts, holders), set(range(len(free))) - set(holders)
    left = list(free)
    started: dict[int, int] = {}
    at = 0
    while at < len(units):
        unit = units[at]
        wanted = shards[unit.waiting[0]] if unit.waiting else 0
        gpu = choice(left, wanted, rule) if unit.waiting else None
        if gpu is None or (gpu not in unused if unit.gpu is None else gpu != unit.gpu):
            at += 1
            continue
        unused.discard(gpu)
        unit.gpu = gpu
        left[gpu] -= wanted
        started[unit.waiting.pop(0)] = gpu
        at = 0
    return started


def _units(starts: Sequence[Start], holders: Mapping[int, tuple[int, ...]]) -> list[_Unit]:
    """In the plan's order; jobs of the same planned GPU together."""
    waiting: dict[int, list[int]] = {}
    for start in starts:
        waiting.setdefault(start.placement[0].indices[0], []).append(start.job_id)
    return [_Unit(job_ids, gpu if gpu in holders else None) for gpu, job_ids in waiting.items()]


def _sharers(node: str, started: Mapping[int, int], holders: Mapping[int, tuple[int, ...]]) -> Iterable[Sharers]:
    by_gpu: dict[int, list[int]] = {}
    for job_id, gpu in started.items():
        by_gpu.setdefault(gpu, []).append(job_id)
    return [Sharers(node, holders.get(gpu, ()), tuple(starting)) for gpu, starting in by_gpu.items()]
