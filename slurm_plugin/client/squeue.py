"""Reads jobs from the output of squeue.

Pure; every function raises `ValueError` on text it does not understand.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from slurm_plugin.client.capabilities import EXCLUSIVE_FIELD, SlurmVersion
from slurm_plugin.client.notation import (
    as_gres,
    count,
    count_tasks,
    duration_s,
    expand_hosts,
    fresh_duration_s,
    gpu_count,
    gpu_types,
    memory_mib,
    number,
    other_gres,
    signed,
    task_limit,
    text_of,
    time_s,
    whole,
)
from slurm_plugin.client.records import QueuedJob, SlurmJob
from slurm_plugin.client.wait_reason import MAY_BE_ROOM, wait_reason

CHANGING_FIELDS = ("Reason", "PriorityLong", "StartTime", "TimeUsed")
"""Fields that Slurm itself changes all the time: the first three of a waiting job, the last of a running one."""

JOB_FIELDS = (
    *CHANGING_FIELDS,
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "UserID",
    "UserName",
    "Account",
    "Partition",
    "QOS",
    "State",
    "SubmitTime",
    "EligibleTime",
    "TimeLimit",
    "MinTime",
    "Deadline",
    "NumNodes",
    "NumTasks",
    "NumCPUs",
    "tres-alloc",
    "NodeList",
    "tres-per-node",
    "tres-per-job",
    "tres-per-task",
    "tres-per-socket",
    "Reservation",
    "ReqNodes",
    "admin_comment",
    "RestartCnt",
    "Requeue",
    "BatchFlag",
    "HetJobID",
    "Nice",
    "Feature",
    "Licenses",
    "OverSubscribe",
    "cpus-per-tres",
    "ReqSwitch",
    "AccrueTime",
    "PreemptTime",
    "Contiguous",
    "MinTmpDisk",
    "MinMemory",
    "mem-per-tres",
    "Name",
    "Comment",
)
"""squeue's fields in this order, by their names up to 25.11. Name and comments are free text."""

_NOBODY = 65534
"""The uid of the user who has that name."""

_OVERSUBSCRIBE = {"NO": "NODE", "OK": "", "YES": ""}


_PENDING_TOO = frozenset({"EXPEDITING", "SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
"""How Slurm shows requeued jobs that wait with --requeue=expedite (25.11 and newer; they start before all others), and
jobs that were held as they were requeued or as their reservation was deleted; the last two also once they are released.
Of held ones the reason tells it, too."""


def field_names(version: SlurmVersion) -> tuple[str, ...]:
    """The names of the fields in this release's squeue.

    Up to 25.11 OverSubscribe is NO with --exclusive; in 26.05 it is NO for every job, and Exclusive is a field.
    """
    newer = {"OverSubscribe": "Exclusive"} if EXCLUSIVE_FIELD.is_in(version) else {}
    return tuple(newer.get(name, name) for name in JOB_FIELDS)


_SCATTERED = ("tres-per-job", "tres-per-task", "tres-per-socket")
_GPU_FIELDS = ("tres-per-node", *_SCATTERED)


def records(text: str, record_mark: str) -> list[str]:
    """Split the output of squeue into records. The mark is random, so that no user's text can contain it."""
    return [record.lstrip("\n") for record in text.split(record_mark)[:-1]]


_MOST_NODES, _MOST_GPUS = 1_000_000, 10_000_000
"""More than any cluster has; sums over jobs still fit 64-bit integers."""

QUEUE_FORMAT = "%A|%P|%Q|%t|%r|%S|%D|%l"
QUEUE_STATES = "PENDING,RUNNING,SPECIAL_EXIT,REQUEUE_HOLD,RESV_DEL_HOLD"
"""squeue takes PENDING without those of `_PENDING_TOO`; of these, EXPEDITING is known to newer releases alone."""


def queued(line: str) -> QueuedJob:
    """One line of squeue in `QUEUE_FORMAT`, which contains no free text. Raises `ValueError`."""
    job_id, partitions, priority, state, reason, start, nodes, limit = line.split("|")
    runs = state == "R"
    return QueuedJob(
        whole(job_id),
        tuple(partitions.split(",")),
        whole(priority),
        ready=not runs and wait_reason(reason) in MAY_BE_ROOM,
        start_s=time_s(start) if runs else None,
        nodes=whole(nodes.partition("-")[0], _MOST_NODES),
        limit_s=duration_s(limit),
    )


def job(fields: Sequence[str], names: Sequence[str] = JOB_FIELDS, asked_s: float = 0.0) -> SlurmJob:
    """One squeue record with the fields of `JOB_FIELDS`, by the names of `field_names`.

    `asked_s` is when squeue was started, by this host's clock, to which squeue itself counts the run time.
    """
    if len(fields) != len(names):
        raise ValueError(f"{len(fields)} fields, expected {len(names)}")
    f = dict(zip(names, fields, strict=True))
    state = "PENDING" if f["State"] in _PENDING_TOO else f["State"].split(",")[0]
    nodes = requested_nodes(f) if state == "PENDING" else whole(f["NumNodes"].partition("-")[0], _MOST_NODES)
    tasks = whole(f["NumTasks"])
    names = expand_hosts(text_of(f["NodeList"]))
    per_node = gpu_count(f["tres-per-node"]) or None
    total = nodes * per_node if per_node else requested_gpus(f, tasks, nodes)
    if total > _MOST_GPUS:
        raise ValueError(f"{total} GPUs")
    uid = whole(f["UserID"])
    waiting = count_tasks(f["ArrayTaskID"]) if state == "PENDING" else 1
    in_array = waiting > 1 or text_of(f["ArrayTaskID"])
    task = f["ArrayTaskID"].partition("%")[0]  # the last one that waits is `7%2` where others have been cancelled
    return SlurmJob(
        job_id=whole(f["JobID"]),
        name=f["Name"],
        user=user_name(f["UserName"], uid),
        uid=uid,
        account=text_of(f["Account"]),
        partition=f["Partition"],
        qos=text_of(f["QOS"]),
        state=state,
        reason=f["Reason"],
        priority=whole(f["PriorityLong"]),
        site_factor=None,
        submit_s=time_s(f["SubmitTime"]) or 0.0,
        eligible_s=time_s(f["EligibleTime"]),
        start_s=time_s(f["StartTime"]),
        time_limit_s=duration_s(f["TimeLimit"]),
        least_limit_s=duration_s(f["MinTime"]) or 0.0,
        deadline_s=time_s(f["Deadline"]),
        nodes=nodes,
        gpus=total,
        gpus_per_node=per_node,
        gpu_nodes=spread(names, total, per_node) if state != "PENDING" else (),
        shards_per_node=shards(f, tasks, nodes),
        node_names=names if state != "PENDING" else (),
        required_nodes=expand_hosts(text_of(f["ReqNodes"])),
        admin_comment=text_of(f["admin_comment"]),
        reservation=text_of(f["Reservation"]),
        comment=text_of(f["Comment"]),
        restarts=whole(f["RestartCnt"]),
        requeues=f["Requeue"] != "0" and f["BatchFlag"] != "0",
        array_tasks=waiting,
        array_limit=task_limit(f["ArrayTaskID"]) if state == "PENDING" else None,
        array_job_id=whole(f["ArrayJobID"]) if in_array else None,
        array_task_id=whole(task) if task.isdigit() else None,
        tasks=tasks,
        cpus=whole(f["NumCPUs"].partition("-")[0]),
        gres_per_node=as_gres(f["tres-per-node"]),
        het_job_id=whole(f["HetJobID"]) or None if f["HetJobID"].isdigit() else None,
        nice=signed(text_of(f["Nice"]) or "0"),
        features=text_of(f["Feature"]),
        licenses=text_of(f["Licenses"]),
        exclusive=exclusive(f),
        cpus_per_gpu=gpu_count(f["cpus-per-tres"]),
        memory_mib=memory_mib(f["tres-alloc"]),
        most_switches=number(f["ReqSwitch"]),
        accrue_s=time_s(f["AccrueTime"]),
        preempted=time_s(f["PreemptTime"]) is not None,
        gpu_type=",".join(sorted(gpu_types(*(f[name] for name in _GPU_FIELDS)))),
        suspended_s=suspended_s(state, time_s(f["StartTime"]), f["TimeUsed"], asked_s),
        other_gres=other_gres(as_gres(f["tres-per-node"])),
        scattered_gres=scattered_gres(f),
        scattered_gpus=any(gpu_count(f[name]) for name in _SCATTERED),
        tmp_mib=memory_mib(f"mem={text_of(f['MinTmpDisk'])}"),
        contiguous=text_of(f["Contiguous"]) not in ("", "0"),
        least_memory_mib=0 if text_of(f["mem-per-tres"]) else memory_mib(f"mem={text_of(f['MinMemory'])}"),
    )


def suspended_s(state: str, start_s: float | None, used: str, asked_s: float) -> float:
    """How long a job has not run since its start: Slurm leaves that out of the run time that it shows (`used`).

    squeue counts that up to a moment after `asked_s`, so this is a little too low, and 0 for a job that always ran.
    """
    used_s = None if state == "PENDING" or start_s is None else fresh_duration_s(used)
    if start_s is None or used_s is None:
        return 0.0
    found_s = math.floor(asked_s) - start_s - used_s
    return found_s if found_s >= _LEAST_SUSPENDED_S else 0.0


_LEAST_SUSPENDED_S = 2.0
"""Less may come of times in whole seconds."""


class JobReader:
    """Reads squeue's records pass after pass; unchanged ones are looked up instead of parsed.

    The key is the record's text. The job id comes before all free text, so whatever users write, no job can be taken
    for another.
    """

    def __init__(self) -> None:
        self._field_mark = ""
        self._names: tuple[str, ...] = JOB_FIELDS
        self._asked_s = 0.0
        self._known: dict[str, SlurmJob] = {}
        self._before: dict[str, SlurmJob] = {}

    def begin(self, field_mark: str, names: tuple[str, ...] = JOB_FIELDS, asked_s: float = 0.0) -> None:
        """Begin a reading with this random mark between fields. Records that the last one did not have are forgotten.

        `asked_s` is as in `job`.

        All are forgotten if the fields have changed, because the same text then has another meaning.
        """
        self._before, self._known = (self._known if names == self._names else {}), {}
        self._field_mark, self._names, self._asked_s = field_mark, names, asked_s

    def job(self, record: str) -> SlurmJob:
        """As `job`. Raises `ValueError`."""
        *changing, rest = record.split(self._field_mark, len(CHANGING_FIELDS))
        lasting = rest.replace(self._field_mark, "\x1f")
        found = self._before.get(lasting)
        if found is None or len(changing) != len(CHANGING_FIELDS):
            found = job(record.split(self._field_mark), self._names, self._asked_s)
        else:
            reason, priority, start, used = changing
            start_s = time_s(start)
            now = (reason, whole(priority), start_s, suspended_s(found.state, start_s, used, self._asked_s))
            if now != (found.reason, found.priority, found.start_s, found.suspended_s):
                found = replace(found, reason=now[0], priority=now[1], start_s=now[2], suspended_s=now[3])
        self._known[lasting] = found
        return found


def user_name(name: str, uid: int) -> str:
    """The user's name, or the uid where this host knows no name for it.

    squeue calls all such users nobody: they would count as one, who owns the jobs of all of them.
    """
    return str(uid) if name == "nobody" and uid != _NOBODY else name


def exclusive(f: dict[str, str]) -> str:
    """`SlurmJob.exclusive`: NODE, USER, MCS or TOPO; empty for a job that shares its nodes with any other."""
    if "Exclusive" in f:
        said = text_of(f["Exclusive"])
        return "" if said == "NO" else said
    said = text_of(f["OverSubscribe"])
    return _OVERSUBSCRIBE.get(said, said)


def requested_nodes(f: dict[str, str]) -> int:
    """Nodes that a pending job asks for.

    For a requeued job squeue shows the number of nodes of its last run, even if it was changed since; the TRES are up
    to date.
    """
    match = re.search(r"(?:^|,)node=(\d+)(?:,|$)", f["tres-alloc"])
    return whole(match[1], _MOST_NODES) if match else whole(f["NumNodes"].partition("-")[0], _MOST_NODES)


def requested_gpus(f: dict[str, str], tasks: int, nodes: int) -> int:
    """GPUs of a request without a fixed share per node.

    With --gpus-per-socket Slurm does not show the number of sockets: one per node is assumed.
    """
    return (
        gpu_count(f["tres-per-job"]) or gpu_count(f["tres-per-task"]) * tasks or gpu_count(f["tres-per-socket"]) * nodes
    )


def shards(f: dict[str, str], tasks: int, nodes: int) -> int:
    """Shards on each node of a job; those asked for by job or task are spread evenly, rounded up."""
    spread_out = count(f["tres-per-job"], "shard") or count(f["tres-per-task"], "shard") * tasks
    return count(f["tres-per-node"], "shard") or -(-spread_out // max(nodes, 1))


def scattered_gres(f: dict[str, str]) -> str:
    """Generic resources beside GPUs and shards that are asked for by job, task or socket.

    Newer releases also have CPUs and licences among those of a task.
    """
    parts = itertools.chain.from_iterable(f[name].split(",") for name in _SCATTERED)
    return ",".join(gres for part in parts if part.startswith(("gres:", "gres/")) and other_gres(gres := as_gres(part)))


EXCLUSION_FORMAT = "%A|%x"


def exclusion(line: str) -> tuple[int, tuple[str, ...]]:
    """A job and the nodes that it excludes, from a line of squeue in `EXCLUSION_FORMAT`. Raises `ValueError`."""
    job_id, _, nodes = line.partition("|")
    return whole(job_id), expand_hosts(text_of(nodes))


def spread(names: Sequence[str], total: int, per_node: int | None) -> tuple[tuple[str, int], ...]:
    """(node, GPUs) of an allocation: `per_node` each, or the total spread evenly, with the remainder on the first."""
    if not names or total <= 0:
        return ()
    if per_node:
        return tuple((name, per_node) for name in names)
    base, extra = divmod(total, len(names))
    shares = [(name, base + (i < extra)) for i, name in enumerate(names)]
    return tuple((name, share) for name, share in shares if share)


def with_whole_nodes(job: SlurmJob, sizes: Mapping[str, int]) -> SlurmJob:
    """The job with all GPUs of its nodes if it shares these with no other job: Slurm gives it all, few as it wants.

    `sizes` has the GPUs of each node. Jobs that asked for none are left as they are.
    """
    if job.exclusive != "NODE" or not job.gpu_nodes:
        return job
    return replace(job, gpu_nodes=tuple((name, sizes[name]) for name in job.node_names if sizes.get(name)))


def with_memory_of_cpus(job: SlurmJob, default_mib: Mapping[str, int]) -> SlurmJob:
    """The job with memory for all CPUs that it will get, if it waits, has --cpus-per-gpu, and memory counts by CPU.

    Until it starts, squeue shows the memory of its tasks' CPUs alone. Where there is one CPU for each node, memory by
    CPU and by node look alike; then that of the partition's default (`parse.memory_by_cpu`) counts by CPU.
    """
    each_mib, cpus = job.least_memory_mib, max(job.cpus, job.cpus_per_gpu * job.gpus)
    if job.state != "PENDING" or not job.cpus_per_gpu or job.memory_mib != each_mib * job.cpus:
        return job
    is_by_cpu = job.cpus != job.nodes or each_mib == default_mib.get(job.partitions[0], default_mib.get("", 0))
    return replace(job, memory_mib=each_mib * cpus) if is_by_cpu else job
