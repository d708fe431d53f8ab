"""What GPUs were used for in a period, from rows of sacct and the audit file. Pure.

GPU-hours and energy of a run count as far as they lie in the period. Lost is the work that preemptions in the period
cost, from the jobs' AdminComments; failed are runs that Slurm says failed, also by a node's fault; what is left is
useful, also of jobs that reached their time limit: many have saved by then, and sacct does not tell. Saved is what jobs
that were stopped early would have used until their time limit: an upper bound.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from explsched import preemption_record
from slurm_plugin import job_options
from slurm_plugin.audit_file import AuditEntry
from slurm_plugin.client.notation import count, gpu_count

COMMENTS = ("AdminComment", "Comment")
FIELDS = (
    *("JobIDRaw", "User", "Account", "Partition", "State", "Submit", "Eligible", "Start", "End", "ElapsedRaw"),
    *("TimelimitRaw", "AllocTRES", "ReqTRES", "ConsumedEnergyRaw"),
    *COMMENTS,
)
"""sacct's fields. Those that are free text stand last."""

_FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "DEADLINE"})
_J_PER_KWH = 3_600_000.0
_S_PER_H = 3600.0
TOTAL = "all"


class AccountedRun(Struct, frozen=True):
    """One run of a job, as sacct tells it. Times are seconds since the epoch, None where there is none yet.

    `gpus` of a job on shards are the parts of GPUs that these are.
    """

    job_id: int
    user: str
    account: str
    partition: str
    sweep: str
    state: str
    eligible_s: float
    start_s: float | None
    end_s: float | None
    gpus: float
    time_limit_s: float | None
    energy_j: float
    preemptions: tuple[preemption_record.Interruption, ...]

    def gpu_h(self, since_s: float, until_s: float) -> float:
        """GPU-hours that it held in a period."""
        if self.start_s is None:
            return 0.0
        end_s = until_s if self.end_s is None else min(self.end_s, until_s)
        return self.gpus * max(0.0, end_s - max(self.start_s, since_s)) / _S_PER_H

    def energy_in_j(self, since_s: float, until_s: float) -> float:
        """What it used in a period, as if it had used the same all the time: Slurm tells no more than the sum."""
        whole_gpu_h = self.gpu_h(0.0, until_s if self.end_s is None else self.end_s)
        return self.energy_j * self.gpu_h(since_s, until_s) / whole_gpu_h if whole_gpu_h else 0.0


class UsageLine(Struct, frozen=True):
    """One line of the report; GPU-hours, hours, kWh. Waiting times are None where no job started in the period."""

    name: str
    jobs: int
    used_gpu_h: float
    useful_gpu_h: float
    lost_gpu_h: float
    failed_gpu_h: float
    saved_gpu_h: float
    preemptions: int
    wait_median_h: float | None
    wait_p90_h: float | None
    energy_kwh: float | None


BY: Mapping[str, Callable[[AccountedRun], str]] = {
    "user": lambda run: run.user,
    "account": lambda run: run.account,
    "partition": lambda run: run.partition,
    "sweep": lambda run: f"{run.user}/{run.sweep}" if run.sweep else "",
}
"""Names of the lines. Sweeps of several users may have one name."""


def run_of(fields: Sequence[str], shards_per_gpu: int = 0) -> AccountedRun:
    """One row of sacct, with the fields of `FIELDS`; shards are no GPUs for 0 `shards_per_gpu`. Raises `ValueError`."""
    if len(fields) != len(FIELDS):
        raise ValueError(f"{len(fields)} fields, expected {len(FIELDS)}")
    told = dict(zip(FIELDS, fields, strict=True))
    submit_s = float(told["Submit"])
    limit = told["TimelimitRaw"]
    return AccountedRun(
        int(told["JobIDRaw"]),
        told["User"],
        told["Account"],
        told["Partition"],
        _sweep(told["Comment"]),
        told["State"].partition(" ")[0],
        max(submit_s, _time(told["Eligible"]) or submit_s),
        _time(told["Start"]),
        _time(told["End"]),
        _gpus(told["AllocTRES"], shards_per_gpu) or _gpus(told["ReqTRES"], shards_per_gpu),
        60.0 * int(limit) if limit.isdecimal() else None,
        float(told["ConsumedEnergyRaw"]) if told["ConsumedEnergyRaw"].isdecimal() else 0.0,
        _preemptions(told["AdminComment"], submit_s),
    )


def _gpus(tres: str, shards_per_gpu: int) -> float:
    return gpu_count(tres) or (count(tres, "shard") / shards_per_gpu if shards_per_gpu else 0.0)


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() and text != "0" else None


def _sweep(comment: str) -> str:
    try:
        options = job_options.parse(comment)
    except job_options.JobOptionError:
        return ""
    return (options.exploration.sweep or "") if options and options.exploration else ""


def _preemptions(admin_comment: str, submit_s: float) -> tuple[preemption_record.Interruption, ...]:
    try:
        return preemption_record.read(admin_comment, submit_s, 1_000_000).latest
    except preemption_record.RecordError:
        return ()


def usage(
    runs: Iterable[AccountedRun], audited: Iterable[AuditEntry], by: str, since_s: float, until_s: float
) -> tuple[UsageLine, ...]:
    """A line for each name, most GPU-hours first, and one for all of them. Runs without GPUs are left out."""
    stops = (entry for entry in audited if entry.rule == "stop" and not entry.refused)
    stopped = {stop.job for stop in stops if since_s <= stop.time_s <= until_s}
    held = (run for run in runs if run.gpus)
    everything = [run for some in _by_job(held, until_s).values() for run in _apportioned(some)]
    last = {run.job_id: run for run in everything if run.job_id in stopped}
    grouped: defaultdict[str, list[AccountedRun]] = defaultdict(list)
    for run in everything:
        grouped[BY[by](run)].append(run)
    lines = [_line(name, some, last, since_s, until_s) for name, some in grouped.items()]
    lines.sort(key=lambda line: (-line.used_gpu_h, line.name))
    return (*lines, _line(TOTAL, everything, last, since_s, until_s))


def _by_job(runs: Iterable[AccountedRun], until_s: float) -> Mapping[int, list[AccountedRun]]:
    """The runs of each job in order of time."""
    by_job: defaultdict[int, list[AccountedRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.start_s or until_s):
        by_job[run.job_id].append(run)
    return by_job


def _apportioned(runs: Sequence[AccountedRun]) -> Iterator[AccountedRun]:
    """The runs of a job, each with the preemptions since its start: they may be in different lines.

    Slurm copies the AdminComment to the later runs of a job: the last one has all of it.
    """
    begins_s = [run.start_s or inf for run in runs]
    found = [max(0, bisect_right(begins_s, one.time_s) - 1) for one in runs[-1].preemptions]
    for place, run in enumerate(runs):
        own = tuple(one for one, its in zip(runs[-1].preemptions, found, strict=True) if its == place)
        yield replace(run, preemptions=own)


def _line(
    name: str, runs: Sequence[AccountedRun], stopped: Mapping[int, AccountedRun], since_s: float, until_s: float
) -> UsageLine:
    """`stopped` has the last run of each job that was stopped early."""
    by_job = _by_job(runs, until_s)
    used = sum(run.gpu_h(since_s, until_s) for run in runs)
    failed = sum(run.gpu_h(since_s, until_s) for run in runs if run.state in _FAILED)
    preempted = [one for run in runs for one in run.preemptions if since_s <= one.time_s <= until_s]
    lost = min(used - failed, sum(one.lost_gpu_s for one in preempted) / _S_PER_H)
    waits = [
        max(0.0, first.start_s - first.eligible_s) / _S_PER_H
        for first, *_ in by_job.values()
        if first.start_s is not None and since_s <= first.start_s <= until_s
    ]
    energy_j = sum(run.energy_in_j(since_s, until_s) for run in runs)
    return UsageLine(
        name or "-",
        len(by_job),
        used,
        used - failed - lost,
        lost,
        failed,
        sum(_saved(run) for run in runs if stopped.get(run.job_id) is run),
        len(preempted),
        statistics.median(waits) if waits else None,
        statistics.quantiles(waits, n=10, method="inclusive")[-1] if len(waits) > 1 else (waits[0] if waits else None),
        energy_j / _J_PER_KWH if energy_j else None,
    )


def _saved(last: AccountedRun) -> float:
    """GPU-hours between a job's early end and its time limit. One that was stopped while it waited saves all of it."""
    if last.time_limit_s is None:
        return 0.0
    ran_s = (last.end_s or 0.0) - last.start_s if last.start_s is not None and last.end_s is not None else 0.0
    return last.gpus * max(0.0, last.time_limit_s - ran_s) / _S_PER_H
