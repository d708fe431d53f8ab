"""Reads what sprio, `scontrol show` and sdiag print of priorities, nodes, reservations and the controller.

Pure; every function raises `ValueError` on text it does not understand. For jobs see `squeue`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import Struct

from slurm_plugin.client.records import LEAST_PRIORITY, ControllerLoad, ShardRule, SlurmNode, SlurmReservation
from slurm_plugin.client.spelling import (
    count,
    duration_s,
    expand_hosts,
    gpu_count,
    gpu_types,
    number,
    signed,
    text_of,
    time_s,
    whole,
)

PRIORITY_FORMAT = "%i|%Y|%S|%A|%B|%F|%J|%P|%Q|%T|%N"
"""Asked of sprio: job, priority, site factor; then age, association, fair share, size, partition, QOS, TRES, nice."""


class Priority(Struct, frozen=True, gc=False):
    """A job's site factor, and its priority without it: one for each of its partitions.

    `fair_share` is the part of the priority that its association has for being served less than it is due, `age` the
    part for its waiting, both weighted.
    """

    site_factor: int
    natives: tuple[int, ...]
    fair_share: int = 0
    age: int = 0


class AgeRule(Struct, frozen=True):
    """What a job's waiting counts in its priority: `points` after `max_age_s`, computed each `period_s`."""

    points: float
    max_age_s: float
    period_s: float

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> AgeRule | None:
        """From `scontrol show config`; None where age counts nothing, or it does not say what."""
        try:
            times_s = [duration_s(settings.get(f"Priority{name}", "")) for name in ("MaxAge", "CalcPeriod")]
            points = float(whole(settings.get("PriorityWeightAge", "0")))
        except ValueError:
            return None
        max_age_s, period_s = (time_s or 0.0 for time_s in times_s)
        return cls(points, max_age_s, period_s) if points and max_age_s and period_s else None

    def lag(self, age: int, accrue_s: float, now_s: float) -> int:
        """How much more than `age` the waiting counts by now.

        0 where that is more than Slurm may be behind: then ages are not what is assumed here.
        """
        due = self.points * min(1.0, max(0.0, now_s - accrue_s) / self.max_age_s)
        lag = round(due) - age
        return lag if 0 <= lag <= self.points * _LATE_PERIODS * self.period_s / self.max_age_s else 0


def by_one_clock(lags: Mapping[int, int]) -> dict[int, int]:
    """Lags of jobs that Slurm has computed together are one number: what they differ by is the rounding of their parts.

    Of one point nobody can tell whether it is a lag at all.
    """
    most = max(lags.values(), default=0)
    return {job_id: most if most - lag <= 1 else lag for job_id, lag in lags.items()} if most > 1 else {}


_LATE_PERIODS = 3
"""So many periods after it is due a busy slurmctld has computed all priorities anew."""


def priorities(text: str) -> dict[int, Priority]:
    """Job id -> priority, from sprio with `PRIORITY_FORMAT`. A job in several partitions has several lines.

    Slurm cuts priorities off at 1, after adding up; the parts tell what lies below, as far as their rounding allows.
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
        except ValueError:
            continue  # of this job no priority is known, and it is left where it stands
        before = found[job_id].natives if job_id in found else ()
        found[job_id] = Priority(site, (*before, native), fair_share, age)
    return found


def node(line: str) -> SlurmNode:
    """One line of `scontrol show node -o`. Of a key that stands twice the first counts: free text comes last."""
    values = {key: value for key, equals, value in map(_pair, reversed(line.split())) if equals}
    missing = [key for key in ("NodeName", "State") if not values.get(key)]
    if missing or "Gres" not in values:
        raise ValueError(f"no {(*missing, 'Gres')[0]}= in {line!r}")
    gres = _without_sockets(values["Gres"])
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
    )


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split(",")) - {""}


@lru_cache(maxsize=4096)
def _without_sockets(gres: str) -> str:
    """`gpu:a100:4(S:0-1)` -> `gpu:a100:4`."""
    return re.sub(r"\([^)]*\)", "", gres)


def _pair(word: str) -> tuple[str, str, str]:
    return word.partition("=")


def reservation(line: str) -> SlurmReservation:
    """One line of `scontrol show reservation -o`."""
    start, end = time_s(_key(line, "StartTime")), time_s(_key(line, "EndTime"))
    if start is None or end is None:
        raise ValueError(f"reservation without times: {line!r}")
    users = text_of(_key(line, "Users", missing=""))
    return SlurmReservation(
        name=_key(line, "ReservationName"),
        start_s=start,
        end_s=end,
        nodes=expand_hosts(text_of(_key(line, "Nodes", missing=""))),
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
        backfills="middle of backfilling" in backfill.partition("\n")[0],
    )


def _key(line: str, key: str, missing: str | None = None) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    if match is None:
        if missing is None:
            raise ValueError(f"no {key}= in {line!r}")
        return missing
    return match[1]
