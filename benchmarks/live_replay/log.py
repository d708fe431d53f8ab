"""Reads the logs of an arm, which have milliseconds: each job's runs, and when who looked at the queue. Pure.

Slurm's records are in whole seconds, as long as a job of the replay lasts.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from simulation.cluster.settings import PassTimes

# The same words since Slurm 22.05, but 26.05 is silent about backfill. By the main scheduler, by backfill, and the
# end of the batch script.
_LINE = re.compile(
    r"^\[(?P<time>[^]]+)\] (?:"
    r"sched: Allocate JobId=(?P<main>\d+) NodeList=(?P<on>\S+) .*"
    r"|sched/backfill: _start_job: Started JobId=(?P<backfill>\d+) in \S+ on (?P<there>\S+)"
    r"|_job_complete: JobId=(?P<done>\d+) done)$",
    re.MULTILINE,
)
# A look by backfill and one by the main scheduler; the daemon's line is written once the new order is in force.
_BACKFILL = re.compile(r"^\[([^]]+)\] (?:debug:  )?sched/backfill: _attempt_backfill: beginning$", re.MULTILINE)
_MAIN = re.compile(r"^\[([^]]+)\] debug:  sched: Running job scheduler\b", re.MULTILINE)
_PASS = re.compile(r"^(\S+ \S+) INFO explsched\.controller pass ", re.MULTILINE)
_SUBMITTED = re.compile(r"^\[([^]]+)\] _slurm_rpc_submit_batch_job: JobId=(\d+) ", re.MULTILINE)


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
        time_s = _seconds(line["time"]) - zero_s
        if line["done"]:
            known = found[int(line["done"])]
            is_told = known and known[-1].end_s is None
            last = known.pop() if is_told else Run(math.nan, None, is_backfilled=True, nodes="")
            known.append(replace(last, end_s=time_s))
        else:
            job_id = int(line["main"] or line["backfill"])
            found[job_id].append(Run(time_s, None, line["backfill"] is not None, line["on"] or line["there"]))
    return found


def submissions(text: str, zero_s: float) -> Mapping[int, float]:
    """When slurmctld took each job into its queue, in seconds since `zero_s`, a Unix time."""
    return {int(job_id): _seconds(time) - zero_s for time, job_id in _SUBMITTED.findall(text)}


def pass_times(slurmctld: str, daemon: str, zero_s: float) -> PassTimes:
    """When Slurm's two schedulers and the daemon looked at the queue, in seconds since `zero_s`, a Unix time.

    slurmctld tells it at the level `debug`. `daemon` is empty for Slurm alone, whose order is that of each backfill.
    """
    backfill_s = _times(_BACKFILL, slurmctld, zero_s)
    policy_s = _times(_PASS, daemon, zero_s) if daemon else backfill_s
    return PassTimes(policy_s, backfill_s, _times(_MAIN, slurmctld, zero_s))


def _times(line: re.Pattern[str], text: str, zero_s: float) -> tuple[float, ...]:
    return tuple(sorted({_seconds(time) - zero_s for time in line.findall(text)}))


def _seconds(time: str) -> float:
    """A log's time as a Unix time; the daemon writes a comma before the milliseconds."""
    return datetime.fromisoformat(time.replace(",", ".")).timestamp()
