"""What a job asks for (GPUs or shards, and other properties of its nodes), and where that is free. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from sched_policy.model import NARROWED, GpuRequest, Job, NodeGpus
from slurm_plugin.client.gpu_memory import gpu_memory_mib
from slurm_plugin.client.records import Amounts, SlurmJob, SlurmNode, Topology
from slurm_plugin.observation.group_annotation import is_pinned
from slurm_plugin.observation.standing import leased_job


def most_shards_per_gpu(nodes: Iterable[SlurmNode]) -> int:
    """Shards per GPU: the most that any node has, 0 if none has shards."""
    return max((node.shards // node.gpus for node in nodes if node.gpus), default=0)


def asks_for_a_part(record: SlurmJob, shards_per_gpu: int) -> bool:
    """Whether the job asks for a part of a GPU only."""
    return record.gpus == 0 and 0 < record.shards_per_node < shards_per_gpu


def part_of_each(record: SlurmJob, shards_per_gpu: int) -> float:
    """What the job asks for of each of its GPUs; 1 for whole ones."""
    return record.shards_per_node / shards_per_gpu if asks_for_a_part(record, shards_per_gpu) else 1.0


def gpu_request(record: SlurmJob, shards_per_gpu: int) -> GpuRequest:
    """The GPUs that the job asks for; one of which it needs only a part counts as one."""
    gpus = _gpus_of_shards(record, shards_per_gpu)
    memory_mib = least_gpu_memory_mib(record.features)
    if gpus:
        return GpuRequest(record.nodes * gpus, record.nodes, gpus, memory_mib, record.most_switches)
    return GpuRequest(record.gpus, record.nodes, record.gpus_per_node, memory_mib, record.most_switches)


def gpus_asked_for(record: SlurmJob, shards_per_gpu: int) -> float:
    """The GPUs that the job asks for; those of a job on shards are the parts of GPUs that its shards are."""
    return gpu_request(record, shards_per_gpu).total * part_of_each(record, shards_per_gpu)


def gpus_had(record: SlurmJob, shards_per_gpu: int) -> float:
    """The same of a job that is over; with --exclusive all of its nodes, in a record `with_whole_nodes`."""
    whole = sum(gpus for _, gpus in record.gpu_nodes) if record.exclusive == "NODE" else 0
    return whole or gpus_asked_for(record, shards_per_gpu)


def least_gpu_memory_mib(constraint: str) -> int:
    """MiB of memory that each GPU of a job must have by the features in its constraint; 0 if these name none."""
    return max((min(map(gpu_memory_mib, part.split("|"))) for part in constraint.split("&")), default=0)


def gpu_allocation(record: SlurmJob, shards_per_gpu: int) -> tuple[NodeGpus, ...]:
    """The GPUs that the job holds, with their indices if Slurm shows them."""
    if record.gpu_indices:
        return tuple(NodeGpus(node, len(indices), indices) for node, indices in record.gpu_indices)
    gpus = _gpus_of_shards(record, shards_per_gpu)
    if gpus:
        return tuple(NodeGpus(node, gpus) for node in record.node_names)
    return tuple(NodeGpus(node, share) for node, share in record.gpu_nodes)


def _gpus_of_shards(record: SlurmJob, shards_per_gpu: int) -> int:
    """GPUs on each node of a job that asks for shards and nothing else; 0 for others."""
    if record.gpus or not shards_per_gpu:
        return 0
    return -(-record.shards_per_node // shards_per_gpu)


_SIMPLE = re.compile(r"[A-Za-z0-9_.-]+(&[A-Za-z0-9_.-]+)*")
"""Features of which a node must have all. Counts, brackets, and `&` together with `|` are not modelled."""

_ANY_OF = re.compile(r"[A-Za-z0-9_.-]+(\|[A-Za-z0-9_.-]+)+")
"""Features of which a node must have one."""

SCRONTAB = "it is a scrontab job, which Slurm lets nobody change"
NO_NODE = "no node of its partition has all that it asks for"
MIXED_TYPES = "the nodes that have all that it asks for have GPUs of other types, too"


class Needs(Struct, frozen=True):
    """What each node of a job must have at least: Slurm shows little of what waiting jobs ask for."""

    cpus: int
    memory_mib: int
    features: frozenset[str]
    gpu_type: str
    any_of: frozenset[str] = frozenset()
    other_gres: Amounts = ()
    tmp_mib: int = 0
    excluded: frozenset[str] = frozenset()

    @classmethod
    def of(cls, record: SlurmJob) -> Needs:
        """The needs of a job that is modelled."""
        cpus = max(record.cpus, record.cpus_per_gpu * record.gpus)
        nodes = max(record.nodes, 1)
        any_of = frozenset(record.features.split("|")) if "|" in record.features else frozenset()
        features = frozenset() if any_of else frozenset(record.features.split("&")) - {""}
        return cls(
            -(-cpus // nodes),
            record.memory_mib // nodes,
            features,
            record.gpu_type,
            any_of,
            record.other_gres,
            record.tmp_mib,
            frozenset(record.excluded_nodes),
        )

    def are_met_by(self, node: SlurmNode) -> bool:
        """Whether the node would be sufficient if it were empty; what Slurm does not show counts as enough."""
        enough = (not node.cpus or node.cpus >= self.cpus) and (
            not node.memory_mib or node.memory_mib >= self.memory_mib
        )
        of_type = not self.gpu_type or node.gpu_types == {self.gpu_type}
        one_of = not self.any_of or not self.any_of.isdisjoint(node.features)
        has_disk = node.tmp_mib is None or node.tmp_mib >= self.tmp_mib
        may_be_used = has_disk and node.name not in self.excluded and not _missing(self.other_gres, node.other_gres)
        return enough and of_type and one_of and may_be_used and self.features <= node.features

    def lacks_now(self, node: SlurmNode) -> str:
        """What a node is short of at this moment, such as `CPUs` or `memory`; empty for nothing."""
        if node.cpus and node.cpus - node.cpus_taken < self.cpus:
            return "CPUs"
        if node.memory_mib and node.memory_mib - node.memory_taken_mib < self.memory_mib:
            return "memory"
        return _missing(self.other_gres, _free_gres(node).items()) if self.other_gres else ""

    def words(self) -> str:
        """All of them in words, equal for equal needs; without commas, which separate partitions."""
        said = [*sorted(self.features), "|".join(sorted(self.any_of)), self.gpu_type]
        said += [f"{self.cpus} CPUs", f"{self.memory_mib} MiB"]
        said += [f"{name}:{amount}" for name, amount in self.other_gres]
        said += [f"{self.tmp_mib} MiB of disk"] if self.tmp_mib else []
        said += [f"without {' '.join(sorted(self.excluded))}"] if self.excluded else []
        return " ".join(filter(None, said))


class Asked(Struct, frozen=True):
    """What a waiting job asks for; of an array what one task asks for. Our own pins and leases are not among it."""

    partition: str
    nodes: int
    gpus: int
    gpus_per_node: int | None
    shards_per_node: int
    most_switches: int
    needs: Needs
    required_nodes: tuple[str, ...]
    reservation: str
    unmodelled: tuple[str, str, str, bool]

    @classmethod
    def of(cls, record: SlurmJob) -> Asked:
        """By Slurm's record of it."""
        unmodelled = record.exclusive, record.licenses, record.scattered_gres, record.contiguous
        counts = record.nodes, record.gpus, record.gpus_per_node, record.shards_per_node, record.most_switches
        required_nodes = () if is_pinned(record) else record.required_nodes
        reservation = record.reservation if leased_job(record.reservation) is None else ""
        return cls(record.partition, *counts, Needs.of(record), required_nodes, reservation, unmodelled)

    def is_within(self, other: Asked) -> bool:
        """Whether it is the same, or the same with fewer GPUs, and no more CPUs and memory on each node."""
        mine, most = self.gpus_per_node, other.gpus_per_node
        has_no_more = self.needs.cpus <= other.needs.cpus and self.needs.memory_mib <= other.needs.memory_mib
        is_no_larger = self.nodes <= other.nodes and self.gpus <= other.gpus
        fits = mine == most if mine is None or most is None else mine <= most
        needs = replace(self.needs, cpus=other.needs.cpus, memory_mib=other.needs.memory_mib)
        alike = replace(self, nodes=other.nodes, gpus=other.gpus, gpus_per_node=most, needs=needs)
        return fits and is_no_larger and has_no_more and alike == other


def _missing(asked: Amounts, there: Iterable[tuple[str, int]]) -> str:
    """The first generic resource of which there is less than asked for; empty if there is none."""
    amounts = dict(there) if asked else {}
    return next((name for name, amount in asked if amounts.get(name, 0) < amount), "")


def _free_gres(node: SlurmNode) -> dict[str, int]:
    taken = dict(node.other_gres_taken)
    return {name: amount - taken.get(name, 0) for name, amount in node.other_gres}


class NodeSet(Struct, frozen=True):
    """The nodes that a job can run on, and a name for the set that serves as a partition's name in the plan."""

    name: str
    nodes: frozenset[str]


def unmodelled(record: SlurmJob, topology: Topology, shards_per_gpu: int) -> str:
    """Why a waiting job is left to Slurm, by what it asks for; empty if all of it is modelled.

    The shards of a job on a node are of one GPU, unless Slurm's SelectTypeParameters say MULTIPLE_SHARING_GRES_PJ.
    """
    if record.is_scrontab:
        return SCRONTAB
    if record.het_job_id is not None:
        return "it is a component of a heterogeneous job"
    if record.exclusive:
        return "it shares its nodes with no other job (--exclusive, or a setting of Slurm)"
    if record.licenses:
        return f"it needs licences ({record.licenses})"
    if record.reservation and leased_job(record.reservation) is None:
        return f"it is in reservation {record.reservation}"
    if record.required_nodes and not is_pinned(record):
        return f"it requires certain nodes ({','.join(record.required_nodes)})"
    if record.features and not (_SIMPLE.fullmatch(record.features) or _ANY_OF.fullmatch(record.features)):
        return f"its constraint is not a plain list of features ({record.features})"
    if record.most_switches and not topology.counts_switches:
        return f"it limits the number of switches to {record.most_switches} (--switches)"
    if record.contiguous:
        return "it asks for nodes side by side (--contiguous)"
    if record.scattered_gres:
        return f"it asks for generic resources that are not counted by node ({record.scattered_gres})"
    if record.shards_per_node > shards_per_gpu > 0:
        return f"it asks for more shards than one GPU has ({record.shards_per_node}, of {shards_per_gpu})"
    if "," in record.gpu_type:
        return f"it asks for GPUs of several types ({record.gpu_type})"
    return ""


class Requirements:
    """The node sets of waiting jobs: of those with equal sets in a partition one; the partition if all its nodes do.

    Nodes that differ in their names and in what is taken are looked at once: a cluster has few kinds, and there may be
    thousands of different needs.
    """

    def __init__(self, nodes: Iterable[SlurmNode]) -> None:
        self._kinds: defaultdict[SlurmNode, list[str]] = defaultdict(list)
        for node in nodes:
            self._kinds[_kind(node)].append(node.name)
        self.shards_per_gpu = most_shards_per_gpu(self._kinds)
        self._known: dict[tuple[str, Needs], NodeSet] = {}
        self._sets: dict[tuple[str, frozenset[SlurmNode], frozenset[str]], NodeSet] = {}

    def node_set(self, record: SlurmJob) -> NodeSet:
        """The nodes for a modelled job; an empty set if no node of its partitions has what it asks for."""
        needs = Needs.of(record)
        key = record.partition, needs
        if key not in self._known:
            members = [kind for kind in self._kinds if not kind.partitions.isdisjoint(record.partitions)]
            kinds = frozenset(kind for kind in members if needs.are_met_by(kind))
            alike = record.partition, kinds, needs.excluded
            if alike not in self._sets:
                fitting = frozenset(name for kind in kinds for name in self._kinds[kind]) - needs.excluded
                whole = len(fitting) == sum(len(self._kinds[kind]) for kind in members)
                name = record.partition if whole else f"{record.partition}{NARROWED}{needs.words()}]"
                self._sets[alike] = NodeSet(name, fitting)
            self._known[key] = self._sets[alike]
        return self._known[key]

    def why_none(self, record: SlurmJob) -> str:
        """Why the set is empty: Slurm may well start the job on a node that has its type of GPU and another one."""
        needs = Needs.of(record)
        of_any_type = replace(needs, gpu_type="")
        with_type = (kind for kind in self._kinds if needs.gpu_type in kind.gpu_types and of_any_type.are_met_by(kind))
        ours = (kind for kind in with_type if not kind.partitions.isdisjoint(record.partitions))
        is_there = any(not needs.excluded.issuperset(self._kinds[kind]) for kind in ours)
        return MIXED_TYPES if is_there else NO_NODE

    def names_by_node(self) -> Mapping[str, frozenset[str]]:
        """For each node the names of the sets that it is in, except whole partitions."""
        names: defaultdict[str, set[str]] = defaultdict(set)
        for (partition, *_), found in self._sets.items():
            for node in found.nodes if found.name != partition else ():
                names[node].add(found.name)
        return {node: frozenset(sets) for node, sets in names.items()}


def _kind(node: SlurmNode) -> SlurmNode:
    """What decides whether an empty node would do for a job, but for nodes that it excludes."""
    taken = {"cpus_taken": 0, "memory_taken_mib": 0, "other_gres_taken": (), "gpus_taken": 0}
    return replace(node, name="", state="", **taken)


class FreeResources(Struct):
    """What is free on a node; mutable, to try allocations."""

    gpus: int
    cpus: float
    memory_mib: float
    other_gres: dict[str, int]


def free_once_gone(
    nodes: Mapping[str, SlurmNode], running: Iterable[Job], records: Mapping[int, SlurmJob], gone: AbstractSet[int]
) -> dict[SlurmNode, FreeResources]:
    """What is free on each node once the jobs `gone` have left it; `records` are Slurm's, by job id."""
    free = {name: _without_gpu_jobs(node) for name, node in nodes.items()}
    for job in running:
        if job.job_id not in gone:
            for share in job.allocation:
                if share.node in free:
                    free[share.node].gpus -= share.gpus
    for job_id in gone & records.keys():
        record = records[job_id]
        for name in record.node_names:
            if name in free:
                free[name].cpus += record.cpus / len(record.node_names)
                free[name].memory_mib += record.memory_mib / len(record.node_names)
                for gres, amount in record.other_gres:
                    free[name].other_gres[gres] = free[name].other_gres.get(gres, 0) + amount
    return {nodes[name]: there for name, there in free.items()}


def _without_gpu_jobs(node: SlurmNode) -> FreeResources:
    """The node with all its GPUs free; CPUs and memory that Slurm does not show count as unlimited."""
    cpus = node.cpus - node.cpus_taken if node.cpus else float("inf")
    memory_mib = node.memory_mib - node.memory_taken_mib if node.memory_mib else float("inf")
    return FreeResources(node.gpus, cpus, memory_mib, _free_gres(node))


def fits(record: SlurmJob, free: Mapping[SlurmNode, FreeResources]) -> bool:
    """Whether the job could start on what is free."""
    needs = Needs.of(record)
    gpus = [there.gpus for node, there in free.items() if there.gpus > 0 and _is_suitable(record, needs, node, there)]
    if record.gpus_per_node is not None:
        return sum(one >= record.gpus_per_node for one in gpus) >= record.nodes
    return sum(gpus) >= record.gpus


def allocate(records: Iterable[SlurmJob], free: Mapping[SlurmNode, FreeResources]) -> None:
    """Take what the jobs would get, in their order. After the first that does not fit, equal ones are not tried."""
    blocked: set[Asked] = set()
    for record in records:
        asked = Asked.of(record)
        for _task in range(record.array_tasks - record.throttled_tasks):
            if asked in blocked or not fits(record, free):
                blocked.add(asked)
                break
            _allocate_one(record, free)


def _allocate_one(record: SlurmJob, free: Mapping[SlurmNode, FreeResources]) -> None:
    """Take what a job that fits gets: the first nodes that have what it needs."""
    needs = Needs.of(record)
    missing_gpus, missing_nodes = record.gpus, record.nodes
    for node, there in free.items():
        if missing_gpus <= 0 or not _is_suitable(record, needs, node, there):
            continue
        share = record.gpus_per_node
        if share is None:
            share = min(missing_gpus, max(0, there.gpus))
        elif there.gpus < share or missing_nodes == 0:
            continue
        missing_gpus -= share
        missing_nodes -= 1
        there.gpus -= share
        there.cpus -= needs.cpus
        there.memory_mib -= needs.memory_mib
        for name, amount in needs.other_gres:
            there.other_gres[name] -= amount


def _is_suitable(record: SlurmJob, needs: Needs, node: SlurmNode, there: FreeResources) -> bool:
    """Whether the job may run on the node and all that it needs is free there; GPUs are not checked."""
    may_run = not node.partitions.isdisjoint(record.partitions) and node.schedulable and needs.are_met_by(node)
    is_free = there.cpus >= needs.cpus and there.memory_mib >= needs.memory_mib
    return may_run and is_free and not _missing(needs.other_gres, there.other_gres.items())
