"""Reads what Slurm's commands print. Pure; every function raises `ValueError` on text it does not understand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from slurm_plugin.client.protocol import ControllerLoad, ShardRule, SlurmJob, SlurmNode, SlurmReservation

JOB_FIELDS = (
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "UserID",
    "UserName",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Reason",
    "PriorityLong",
    "SubmitTime",
    "EligibleTime",
    "StartTime",
    "TimeLimit",
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
    "Name",
    "Comment",
)
"""Fields asked of squeue, in this order. Name and comments are free text."""

_NOTHING = frozenset({"", "N/A", "(null)", "None", "Unknown"})
_KIND = {
    kind: re.compile(rf"^(?:gres[:/])?{kind}(?P<type>:[^:,=()]+)??(?:(?P<mark>[:=])(?P<count>\d+))?(?:\(.*\))?$")
    for kind in ("gpu", "shard")
}

_REMEMBERED = lru_cache(maxsize=4096)
"""For texts that thousands of jobs share."""


def split_records(text: str, field_mark: str, record_mark: str) -> list[list[str]]:
    """Fields of each record. The marks are random, so that no user's text can hold them."""
    records = text.split(record_mark)[:-1]
    return [record.lstrip("\n").split(field_mark) for record in records]


def job(fields: Sequence[str]) -> SlurmJob:
    """One squeue record with the fields of `JOB_FIELDS`."""
    if len(fields) != len(JOB_FIELDS):
        raise ValueError(f"{len(fields)} fields, expected {len(JOB_FIELDS)}")
    f = dict(zip(JOB_FIELDS, fields, strict=True))
    state = f["State"].split(",")[0]
    nodes = requested_nodes(f) if state == "PENDING" else int(f["NumNodes"].partition("-")[0])
    tasks = int(f["NumTasks"])
    names = expand_hosts(_text(f["NodeList"]))
    per_node = gpu_count(f["tres-per-node"]) or None
    total = nodes * per_node if per_node else requested_gpus(f, tasks, nodes)
    waiting = count_tasks(f["ArrayTaskID"]) if state == "PENDING" else 1
    in_array = waiting > 1 or _text(f["ArrayTaskID"])
    return SlurmJob(
        job_id=int(f["JobID"]),
        name=f["Name"],
        user=f["UserName"],
        uid=int(f["UserID"]),
        account=_text(f["Account"]),
        partition=f["Partition"],
        qos=_text(f["QOS"]),
        state=state,
        reason=f["Reason"],
        priority=int(f["PriorityLong"]),
        site_factor=None,
        submit_s=time_s(f["SubmitTime"]) or 0.0,
        eligible_s=time_s(f["EligibleTime"]),
        start_s=time_s(f["StartTime"]),
        time_limit_s=duration_s(f["TimeLimit"]),
        nodes=nodes,
        gpus=total,
        gpus_per_node=per_node,
        gpu_nodes=spread(names, total, per_node) if state != "PENDING" else (),
        shards_per_node=shards(f, tasks, nodes),
        node_names=names if state != "PENDING" else (),
        required_nodes=expand_hosts(_text(f["ReqNodes"])),
        admin_comment=_text(f["admin_comment"]),
        reservation=_text(f["Reservation"]),
        comment=_text(f["Comment"]),
        restarts=int(f["RestartCnt"]),
        array_tasks=waiting,
        array_job_id=int(f["ArrayJobID"]) if in_array else None,
        array_task_id=int(f["ArrayTaskID"]) if f["ArrayTaskID"].isdigit() else None,
        tasks=tasks,
        cpus=int(f["NumCPUs"].partition("-")[0]),
        gres_per_node=as_gres(f["tres-per-node"]),
    )


def requested_nodes(f: dict[str, str]) -> int:
    """Nodes that a pending job asks for.

    Of a requeued job squeue shows the nodes of its last run, whatever was changed since; the TRES are up to date.
    """
    match = re.search(r"(?:^|,)node=(\d+)(?:,|$)", f["tres-alloc"])
    return int(match[1]) if match else int(f["NumNodes"].partition("-")[0])


def requested_gpus(f: dict[str, str], tasks: int, nodes: int) -> int:
    """GPUs of a request without a fixed share per node.

    For --gpus-per-socket Slurm does not say how many sockets a job gets: one per node is assumed.
    """
    return (
        gpu_count(f["tres-per-job"]) or gpu_count(f["tres-per-task"]) * tasks or gpu_count(f["tres-per-socket"]) * nodes
    )


def shards(f: dict[str, str], tasks: int, nodes: int) -> int:
    """Shards on each node of a job, which are spread evenly where it asks for them by job or task."""
    spread_out = count(f["tres-per-job"], "shard") or count(f["tres-per-task"], "shard") * tasks
    return count(f["tres-per-node"], "shard") or -(-spread_out // max(nodes, 1))


def gpu_count(tres: str) -> int:
    """GPUs in a list such as `gres:gpu:a100:2,gres:shard:4` or `gres/gpu:a100=2,gres/gpu=2`; 0 if there are none."""
    return count(tres, "gpu")


@_REMEMBERED
def as_gres(tres: str) -> str:
    """The list as the option `--gres` is written."""
    return re.sub(r"(^|,)gres[:/]", r"\1", _text(tres)).replace("=", ":")


@_REMEMBERED
def count(tres: str, kind: Literal["gpu", "shard"]) -> int:
    """How many of a kind are in a list; 0 if there are none.

    Where a site accounts GPUs by type, `gres/gpu=2` is the total and `gres/gpu:a100=2` a part of it.
    """
    found = [match for part in tres.split(",") if (match := _KIND[kind].match(part.strip()))]
    totals = [match for match in found if match["mark"] == "=" and not match["type"]]
    return sum(int(match["count"] or 1) for match in totals or found)


def spread(names: Sequence[str], total: int, per_node: int | None) -> tuple[tuple[str, int], ...]:
    """GPUs per node of an allocation: the fixed share, or the total spread evenly, the first nodes more."""
    if not names or total <= 0:
        return ()
    if per_node:
        return tuple((name, per_node) for name in names)
    base, extra = divmod(total, len(names))
    shares = [(name, base + (i < extra)) for i, name in enumerate(names)]
    return tuple((name, share) for name, share in shares if share)


def count_tasks(text: str) -> int:
    """Tasks of an array in squeue's spelling: `3`, `2-9%2`, `1,4-10:2`; 1 for a job that is no array."""
    if _text(text) == "":
        return 1
    total = 0
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            raise ValueError(f"array tasks {text!r}")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        total += len(range(first, last + 1, step))
    return total


@_REMEMBERED
def expand_hosts(text: str) -> tuple[str, ...]:
    """Host names of a Slurm host list: `n[1-2,05],m3` gives n1, n2, n05, m3."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        choices = [_range(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        hosts.extend("".join(combination) for combination in itertools.product(*choices))
    return tuple(hosts)


def _range(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            numbers.append(first)
            continue
        numbers.extend(str(n).zfill(len(first)) for n in range(int(first), int(last) + 1))
    return numbers


def time_s(text: str) -> float | None:
    """A point in time printed with SLURM_TIME_FORMAT=%s; None where Slurm has none."""
    return None if _text(text) == "" else float(int(text))


@_REMEMBERED
def duration_s(text: str) -> float | None:
    """[days-]hours:minutes:seconds or minutes:seconds; None for UNLIMITED."""
    if text in ("UNLIMITED", "INVALID", "NOT_SET", "Partition_Limit") or _text(text) == "":
        return None
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if len(parts) > 3:
        raise ValueError(f"duration {text!r}")
    seconds = 0
    for part in parts:
        seconds = 60 * seconds + part
    return float(86400 * int(days) + seconds) if dash else float(seconds)


def site_factors(text: str) -> dict[int, int]:
    """Job id -> site factor, from `sprio -o "%i|%S"`. A job in several partitions has several equal lines."""
    factors = {}
    for line in text.split("\n"):
        job_id, bar, factor = line.strip().partition("|")
        if bar:
            factors[int(job_id)] = int(factor)
    return factors


def node(line: str) -> SlurmNode:
    """One line of `scontrol show node -o`."""
    gres = re.sub(r"\([^)]*\)", "", _key(line, "Gres"))
    return SlurmNode(
        name=_key(line, "NodeName"),
        state=_key(line, "State"),
        gpus=gpu_count(gres),
        shards=count(gres, "shard"),
        partitions=frozenset(_key(line, "Partitions", missing="").split(",")) - {""},
    )


def reservation(line: str) -> SlurmReservation:
    """One line of `scontrol show reservation -o`."""
    start, end = time_s(_key(line, "StartTime")), time_s(_key(line, "EndTime"))
    if start is None or end is None:
        raise ValueError(f"reservation without times: {line!r}")
    users = _text(_key(line, "Users", missing=""))
    return SlurmReservation(
        name=_key(line, "ReservationName"),
        start_s=start,
        end_s=end,
        nodes=expand_hosts(_text(_key(line, "Nodes", missing=""))),
        users=tuple(users.split(",")) if users else (),
        flags=frozenset(_key(line, "Flags", missing="").split(",")) - {""},
    )


def shard_rule(text: str) -> ShardRule:
    """How shards find their GPU, from `scontrol show config`."""
    match = re.search(r"^SelectTypeParameters\s*=\s*(\S*)$", text, re.MULTILINE)
    least_loaded = match is not None and "LL_SHARED_GRES" in match[1].upper().split(",")
    return ShardRule.LEAST_LOADED if least_loaded else ShardRule.FIRST_FIT


def load(text: str) -> ControllerLoad:
    """The first page of sdiag."""
    main, _, backfill = text.partition("Backfilling stats")

    def number(page: str, label: str) -> int:
        match = re.search(rf"{label}:\s*(\d+)", page)
        return int(match[1]) if match else 0

    if "Server thread count" not in main:
        raise ValueError("sdiag names no server thread count")
    return ControllerLoad(
        server_threads=number(main, "Server thread count"),
        agent_queue=number(main, "Agent queue size"),
        last_cycle_s=number(main, "Last cycle") / 1e6,
        backfill_last_cycle_s=number(backfill, "Last cycle") / 1e6,
        jobs_pending=number(main, "Jobs pending"),
    )


def _key(line: str, key: str, missing: str | None = None) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    if match is None:
        if missing is None:
            raise ValueError(f"no {key}= in {line!r}")
        return missing
    return match[1]


def _text(value: str) -> str:
    """The value, or nothing where Slurm prints one of its words for nothing."""
    return "" if value in _NOTHING else value
