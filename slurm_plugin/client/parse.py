"""Reads what sprio, `scontrol show`, sdiag and sacctmgr print: priorities, nodes, reservations, topology, load, GPUs.

Pure but for `readable`; the others raise `ValueError` on text that they do not understand. For jobs see `squeue`.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Struct

from explsched.log import event
from sched_policy.model import Switch
from slurm_plugin.client.notation import (
    LATEST_S,
    MOST_HOSTS,
    count,
    duration_s,
    expand_hosts,
    gpu_count,
    gpu_types,
    number,
    other_gres,
    signed,
    text_of,
    time_s,
    whole,
    without_sockets,
)
from slurm_plugin.client.records import (
    LEAST_PRIORITY,
    ControllerLoad,
    ShardRule,
    SlurmNode,
    SlurmReservation,
    Topology,
)

_LOG = logging.getLogger("explsched.slurm")
_Record = TypeVar("_Record")

PRIORITY_FORMAT = "%i|%Y|%S|%A|%B|%F|%J|%P|%Q|%T|%N"
"""sprio's format: job, priority, site factor; then age, association, fair share, size, partition, QOS, TRES, nice."""


_NEVER_SET = -2_147_483_648
"""What sprio shows for a site factor of 0 in Slurm's own numbers, which begin there."""


class Priority(Struct, frozen=True, gc=False):
    """A job's site factor, and its priorities without it (`natives`), one for each of its partitions.

    `fair_share` and `age` are these weighted parts of the priority. Where an operator has set the priority itself, site
    factors have no effect: then `site_factor` and `fair_share` are None, and there are no natives.
    """

    site_factor: int | None
    natives: tuple[int, ...]
    fair_share: int | None = 0
    age: int = 0


class AgeRule(Struct, frozen=True):
    """How Slurm's priority grows with a job's age: by `points` within `max_age_s`, computed every `period_s`."""

    points: float
    max_age_s: float
    period_s: float

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> AgeRule | None:
        """From `scontrol show config`; None if age does not count, or its settings are missing or unreadable."""
        try:
            times_s = [duration_s(settings.get(f"Priority{name}", "")) for name in ("MaxAge", "CalcPeriod")]
            points = float(whole(settings.get("PriorityWeightAge", "0")))
        except ValueError:
            return None
        max_age_s, period_s = (time_s or 0.0 for time_s in times_s)
        return cls(points, max_age_s, period_s) if points and max_age_s and period_s else None

    def lag(self, age: int, accrue_s: float, now_s: float) -> int:
        """How much higher the age part would be if Slurm computed it now; `age` is the part that it computed last.

        0 if the difference is more than `_LATE_PERIODS` can explain: then the part does not follow this rule.
        """
        due = self.points * min(1.0, max(0.0, now_s - accrue_s) / self.max_age_s)
        lag = round(due) - age
        return lag if 0 <= lag <= self.points * _LATE_PERIODS * self.period_s / self.max_age_s else 0


def by_one_clock(lags: Mapping[int, int]) -> dict[int, int]:
    """The lags without rounding: those at most 1 below the largest become equal to it.

    Slurm computes most jobs together, so their true lags are equal; they differ by the rounding of the parts. If the
    largest is 1, it may be rounding itself, and there are no lags.
    """
    most = max(lags.values(), default=0)
    return {job_id: most if most - lag <= 1 else lag for job_id, lag in lags.items()} if most > 1 else {}


_LATE_PERIODS = 3
"""A busy slurmctld computes all priorities at most this many periods late."""


def priorities(text: str) -> dict[int, Priority]:
    """Priority by job id, from sprio with `PRIORITY_FORMAT`. A job in several partitions has several lines.

    Slurm raises sums below 1 to 1; in that case the parts are added up here, which is exact but for their rounding.
    Of a priority that an operator has set sprio shows no parts, or with several partitions parts that were never set.
    """
    found: dict[int, Priority] = {}
    for line in text.split("\n"):
        fields = line.strip().split("|")
        if len(fields) != len(PRIORITY_FORMAT.split("|")):
            continue
        try:
            job_id, shown, site = (signed(field) for field in fields[:3])
            *parts, tres, nice = fields[3:]
            native = shown - site
            age, fair_share = signed(parts[0]), signed(parts[2])
            if shown <= LEAST_PRIORITY:
                of_tres = sum(signed(part) for part in re.findall(r"=(-?\d+)", tres))
                native = sum(map(signed, parts)) + of_tres - signed(nice)
            has_parts = bool(site or tres or signed(nice) or any(map(signed, parts)))
        except ValueError:
            continue  # a job without a known priority is not moved
        if site == _NEVER_SET or (shown > len(parts) and not has_parts):  # parts below 1 are shown as 0
            found[job_id] = Priority(None, (), None)
            continue
        before = found[job_id].natives if job_id in found else ()
        found[job_id] = Priority(site, (*before, native), fair_share, age)
    return found


def node(line: str) -> SlurmNode:
    """One line of `scontrol show node -o`. The first of equal keys counts, because free text comes last."""
    values = {key: value for key, equals, value in map(_pair, reversed(line.split())) if equals}
    missing = [key for key in ("NodeName", "State") if not values.get(key)]
    if missing or "Gres" not in values:
        raise ValueError(f"no {(*missing, 'Gres')[0]}= in {line!r}")
    gres = without_sockets(values["Gres"])
    return SlurmNode(
        name=values["NodeName"],
        state=values["State"],
        gpus=gpu_count(gres),
        shards=count(gres, "shard"),
        partitions=_words(values.get("Partitions", "")),
        cpus=number(values.get("CPUEfctv", "")) or number(values.get("CPUTot", "")),
        cpus_taken=number(values.get("CPUAlloc", "")),
        memory_mib=number(values.get("RealMemory", "")),
        memory_taken_mib=number(values.get("AllocMem", "")),
        features=_words(text_of(values.get("ActiveFeatures", ""))),
        gpu_types=gpu_types(gres),
        other_gres=other_gres(gres),
        other_gres_taken=other_gres(values.get("GresUsed", "")),
        tmp_mib=number(values["TmpDisk"]) if "TmpDisk" in values else None,
        gpus_taken=gpu_count(values.get("AllocTRES", "")),
    )


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - {""}


def _pair(word: str) -> tuple[str, str, str]:
    return word.partition("=")


def reservation(line: str) -> SlurmReservation:
    """One line of `scontrol show reservation -o`."""
    start, end = time_s(_key(line, "StartTime")), time_s(_key(line, "EndTime"))
    if start is None or end is None:
        raise ValueError(f"reservation without times: {line!r}")
    users = text_of(_key(line, "Users", missing=""))
    only_cpus = re.fullmatch(r"cpu=(\d+)", _key(line, "TRES", missing=""))
    return SlurmReservation(
        name=_key(line, "ReservationName"),
        start_s=start,
        end_s=end,
        nodes=expand_hosts(text_of(_key(line, "Nodes", missing=""))),
        users=tuple(users.split(",")) if users else (),
        flags=frozenset(_key(line, "Flags", missing="").split(",")) - {""},
        cpus=whole(only_cpus[1]) if only_cpus else 0,
    )


_SWITCH = re.compile(r"SwitchName=\S+ Level=(\d{1,2}) (?:LinkSpeed=\d+ )?Nodes=(\S+)(?: Switches=\S+)?")
_BLOCK = re.compile(r"(?:BlockName|AggregatedBlock)=\S+ BlockIndex=\d+ Nodes=(\S+) BlockSize=(\d+)")


def topology(text: str) -> dict[str, tuple[Switch, ...]]:
    """The switches or blocks above each node, from `scontrol show topology`.

    A node without a switch of some level has there the switch of the level below. All blocks together count as one
    more switch, so that gangs larger than a block can be placed.
    """
    above: defaultdict[str, dict[int, Switch]] = defaultdict(dict)
    has_blocks = False
    for line in map(str.strip, text.splitlines()):
        name = line.partition(" ")[0].partition("=")[2]
        if match := _SWITCH.fullmatch(line):
            nodes, level, holds = match[2], int(match[1]), 0
        elif match := _BLOCK.fullmatch(line):
            nodes, level, has_blocks = match[1], whole(match[2], MOST_HOSTS), True
            holds = level
        elif line:
            raise ValueError(f"topology {line[:80]!r}")
        else:
            continue
        for node in expand_hosts(text_of(nodes)):
            if level in above[node]:
                raise ValueError(f"{node} below {above[node][level].name} and {name}, both of level {level}")
            above[node][level] = Switch(name, holds)
    levels = sorted({level for known in above.values() for level in known})
    all_blocks = (Switch("all blocks"),) if has_blocks else ()
    return {node: (*_padded(known, levels), *all_blocks) for node, known in above.items()}


def network(shown: str, partitions: str, *, is_respected: bool) -> Topology:
    """From `scontrol show topology` and `scontrol show partition`; `is_respected`: slurm.conf has a TopologyPlugin."""
    # From 25.05 on topology.yaml may have several topologies, and slurm.conf need not name a plugin.
    if own := re.search(r"^PartitionName=(\S+) .*?\bTopology=(\S+)", partitions, re.MULTILINE):
        return Topology(fault=f"partition {own[1]} has a topology of its own ({own[2]})")
    try:
        switches = topology(shown)
    except ValueError as error:
        return Topology(fault=str(error))
    if is_respected and not switches:
        return Topology(fault="scontrol show topology shows no switch and no block")
    return Topology(switches)


def memory_by_cpu(settings: Mapping[str, str], partitions: str) -> dict[str, int]:
    """The default of --mem-per-cpu in MiB, 0 for none, by partition; that of all other partitions by ""."""
    found = {"": number(settings.get("DefMemPerCPU", ""))}
    for name, kind, amount in re.findall(
        r"^PartitionName=(\S+) .*?\bDefMemPer(CPU|Node)=(\S+)", partitions, re.MULTILINE
    ):
        if (kind, amount) != ("Node", "UNLIMITED"):  # how a partition without a default of its own is shown
            found[name] = number(amount) if kind == "CPU" else 0
    return found


def tiers(partitions: str) -> dict[str, int]:
    """Each partition's PriorityTier, from `scontrol show partition`."""
    shown = re.findall(r"^PartitionName=(\S+) .*?\bPriorityTier=(\d+)", partitions, re.MULTILINE)
    return {name: int(tier) for name, tier in shown}


def limits_cpus(associations: str) -> bool:
    """Whether any association or QOS limits CPUs or their time (N: no limit), from `scontrol show assoc_mgr`."""
    return re.search(r"\bcpu=\d", associations) is not None


def _padded(known: Mapping[int, Switch], levels: Sequence[int]) -> Iterator[Switch]:
    last = known[min(known)]
    for level in levels:
        last = known.get(level, last)
        yield last


def shard_rule(settings: Mapping[str, str]) -> ShardRule:
    """How shards find their GPU, from `scontrol show config`."""
    least_loaded = "LL_SHARED_GRES" in settings.get("SelectTypeParameters", "").upper().split(",")
    return ShardRule.LEAST_LOADED if least_loaded else ShardRule.FIRST_FIT


def load(text: str) -> ControllerLoad:
    """The first page of sdiag."""
    main, _, backfill = text.partition("Backfilling stats")

    def number(page: str, label: str) -> int:
        match = re.search(rf"{label}:\s*(\d+)", page)
        return whole(match[1], LATEST_S) if match else 0

    began = re.search(r"Last cycle when:.*\((\d+)\)", backfill)
    told = re.search(r"^sdiag output at .*\((\d+)\)", main, re.MULTILINE)
    if "Server thread count" not in main:
        raise ValueError("sdiag names no server thread count")
    return ControllerLoad(
        server_threads=number(main, "Server thread count"),
        last_cycle_s=number(main, "Last cycle") / 1e6,
        backfill_last_cycle_s=number(backfill, "Last cycle") / 1e6,
        jobs_pending=number(main, "Jobs pending"),
        backfills="middle of backfilling" in backfill.partition("\n")[0],
        backfill_began_s=float(whole(began[1], LATEST_S)) if began else 0.0,
        time_s=float(whole(told[1], LATEST_S)) if told else 0.0,
    )


def gpu_history(events: str, since_s: float, until_s: float) -> Iterator[tuple[float, float, int]]:
    """When a cluster had how many GPUs, from slurmdbd's events of it. Raises `ValueError`.

    Each event has what the cluster consisted of until the next. Those with a state say that slurmctld was away
    meanwhile, beside another event.
    """
    for line in filter(None, events.splitlines()):
        start, end, state, tres = line.split("|")
        if state == "0" and (gpus := gpu_count(tres)):
            yield max(float(start), since_s), min(float(end) if end.isdecimal() else until_s, until_s), gpus


def _key(line: str, key: str, missing: str | None = None) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    if match is None:
        if missing is None:
            raise ValueError(f"no {key}= in {line!r}")
        return missing
    return match[1]


def readable(source: str, parser: Callable[..., _Record], texts: Sequence[object]) -> tuple[_Record, ...]:
    """Parse each text; those that cannot be read are logged and left out, so that one cannot hide the others."""
    records = []
    for text in texts:
        try:
            records.append(parser(text))
        except ValueError as error:
            shown = text[0] if isinstance(text, list) and text else text
            event(_LOG, logging.WARNING, "record left out", source=source, record=str(shown)[:200], why=str(error))
    return tuple(records)
