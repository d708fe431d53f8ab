"""Reads slurmctld's log: when it started each job and when the job was done, to the millisecond. Pure.

Slurm's records are in whole seconds, as long as a job of the replay lasts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

# The same words since Slurm 22.05. By the main scheduler, by backfill, and the end of the batch script.
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
    """The runs of each job, in order; times are seconds since `zero_s`, a Unix time."""
    found: defaultdict[int, list[Run]] = defaultdict(list)
    for line in _LINE.finditer(text):
        time_s = datetime.fromisoformat(line["time"]).timestamp() - zero_s
        if line["done"]:
            last = found[int(line["done"])].pop()
            found[int(line["done"])].append(Run(last.start_s, time_s, last.is_backfilled, last.nodes))
        else:
            job_id = int(line["main"] or line["backfill"])
            found[job_id].append(Run(time_s, None, line["backfill"] is not None, line["on"] or line["there"]))
    return found


def reactions_s(found: Iterable[Run], longest_s: float) -> list[float]:
    """How long after the last job on its nodes was done the main scheduler started the next one there.

    Of those that it started within `longest_s`: others came later, or the node was kept free for somebody.
    """
    by_node: defaultdict[str, list[Run]] = defaultdict(list)
    for run in sorted(found, key=lambda run: run.start_s):
        by_node[run.nodes].append(run)
    gaps: list[float] = []
    for on_node in by_node.values():
        for i, run in enumerate(on_node):
            ends = [
                earlier.end_s for earlier in on_node[:i] if earlier.end_s is not None and earlier.end_s <= run.start_s
            ]
            if ends and not run.is_backfilled and run.start_s - max(ends) <= longest_s:
                gaps.append(run.start_s - max(ends))
    return gaps
