"""Reads slurmctld's log: when it started each job and when the job was done, to the millisecond. Pure.

Slurm's records are in whole seconds, as long as a job of the replay lasts.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

# The same words since Slurm 22.05, but 26.05 is silent about backfill. By the main scheduler, by backfill, and the
# end of the batch script.
_LINE = re.compile(
    r"^\[(?P<time>[^]]+)\] (?:"
    r"sched: Allocate JobId=(?P<main>\d+) NodeList=(?P<on>\S+) .*"
    r"|sched/backfill: _start_job: Started JobId=(?P<backfill>\d+) in \S+ on (?P<there>\S+)"
    r"|_job_complete: JobId=(?P<done>\d+) done)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job: when slurmctld started it, which scheduler did, when it was done (None: cut short), and where."""

    start_s: float
    end_s: float | None
    is_backfilled: bool
    nodes: str


def runs(text: str, zero_s: float) -> Mapping[int, Sequence[Run]]:
    """The runs of each job, in order; times are seconds since `zero_s`, a Unix time.

    A run whose start is not told is one by backfill, with NaN as its start.
    """
    found: defaultdict[int, list[Run]] = defaultdict(list)
    for line in _LINE.finditer(text):
        time_s = datetime.fromisoformat(line["time"]).timestamp() - zero_s
        if line["done"]:
            known = found[int(line["done"])]
            is_told = known and known[-1].end_s is None
            last = known.pop() if is_told else Run(math.nan, None, is_backfilled=True, nodes="")
            known.append(replace(last, end_s=time_s))
        else:
            job_id = int(line["main"] or line["backfill"])
            found[job_id].append(Run(time_s, None, line["backfill"] is not None, line["on"] or line["there"]))
    return found


def main_offset_s(found: Sequence[Run], interval_s: float) -> float | None:
    """How much later than backfill the main scheduler looks at the queue, if both do so every `interval_s`.

    Both sleep that long between two looks, so the time between them hardly changes. It is the circular mean over what
    the main scheduler has started, against the nearest start by backfill. None where one of them started nothing.
    """
    backfilled = sorted(run.start_s for run in found if run.is_backfilled)
    angles = [
        2 * math.pi * (run.start_s - min(backfilled, key=lambda start_s: abs(start_s - run.start_s))) / interval_s
        for run in found
        if backfilled and not run.is_backfilled
    ]
    if not angles:
        return None
    mean = math.atan2(sum(map(math.sin, angles)), sum(map(math.cos, angles)))
    return mean % (2 * math.pi) / (2 * math.pi) * interval_s
