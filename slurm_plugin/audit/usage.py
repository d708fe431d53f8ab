"""What GPUs were used for, by user, account, partition or sweep: from sacct's rows and the audit file. Pure.

GPU-hours of a run count as far as they lie in the period. `lost` is the work that preemptions in the period cost, from
the jobs' AdminComments; `failed` are runs that Slurm says failed, also by a node's fault; what is left is `useful`.
`saved` is what jobs that were stopped early would have used until their time limit: an upper bound.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from explsched import preemption_record
from slurm_plugin import job_options
from slurm_plugin.audit.entries import AuditEntry
from slurm_plugin.client.spelling import gpus_of

FIELDS = (
    *("JobIDRaw", "User", "Account", "Partition", "State", "Submit", "Eligible", "Start", "End", "ElapsedRaw"),
    *("TimelimitRaw", "AllocTRES", "ReqTRES", "ConsumedEnergyRaw", "AdminComment", "Comment"),
)
"""sacct's fields. Those that are free text stand last."""

_FAILED = frozenset({"FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "DEADLINE"})
_J_PER_KWH = 3_600_000.0
_S_PER_H = 3600.0
TOTAL = "all"


class Run(Struct, frozen=True):
    """One run of a job, as sacct tells it. Times are seconds since the epoch, None where there is none yet."""

    job_id: int
    user: str
    account: str
    partition: str
    sweep: str
    state: str
    eligible_s: float
    start_s: float | None
    end_s: float | None
    gpus: int
    time_limit_s: float | None
    energy_j: float
    preemptions: tuple[preemption_record.Interruption, ...]

    def gpu_h(self, since_s: float, until_s: float) -> float:
        """GPU-hours that it held in a period."""
        if self.start_s is None:
            return 0.0
        end_s = until_s if self.end_s is None else min(self.end_s, until_s)
        return self.gpus * max(0.0, end_s - max(self.start_s, since_s)) / _S_PER_H


class Usage(Struct, frozen=True):
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


BY: Mapping[str, Callable[[Run], str]] = {
    "user": lambda run: run.user,
    "account": lambda run: run.account,
    "partition": lambda run: run.partition,
    "sweep": lambda run: run.sweep,
}


def run_of(fields: Sequence[str]) -> Run:
    """One row of sacct, with the fields of `FIELDS`. Raises `ValueError`."""
    if len(fields) != len(FIELDS):
        raise ValueError(f"{len(fields)} fields, expected {len(FIELDS)}")
    told = dict(zip(FIELDS, fields, strict=True))
    submit_s = float(told["Submit"])
    limit = told["TimelimitRaw"]
    return Run(
        int(told["JobIDRaw"]),
        told["User"],
        told["Account"],
        told["Partition"],
        _sweep(told["Comment"]),
        told["State"].partition(" ")[0],
        max(submit_s, _time(told["Eligible"]) or submit_s),
        _time(told["Start"]),
        _time(told["End"]),
        gpus_of(told["AllocTRES"]) or gpus_of(told["ReqTRES"]),
        60.0 * int(limit) if limit.isdecimal() else None,
        float(told["ConsumedEnergyRaw"]) if told["ConsumedEnergyRaw"].isdecimal() else 0.0,
        _preemptions(told["AdminComment"], submit_s),
    )


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
    runs: Iterable[Run], audited: Iterable[AuditEntry], by: str, since_s: float, until_s: float
) -> tuple[Usage, ...]:
    """A line for each name, most GPU-hours first, and one for all of them. Runs without GPUs are left out."""
    stopped = {entry.job for entry in audited if entry.rule == "stop" and not entry.refused and entry.job is not None}
    grouped: defaultdict[str, list[Run]] = defaultdict(list)
    everything: list[Run] = []
    for run in runs:
        if run.gpus:
            grouped[BY[by](run)].append(run)
            everything.append(run)
    lines = [_line(name, some, stopped, since_s, until_s) for name, some in grouped.items()]
    lines.sort(key=lambda line: (-line.used_gpu_h, line.name))
    return (*lines, _line(TOTAL, everything, stopped, since_s, until_s))


def _line(name: str, runs: Sequence[Run], stopped: Iterable[int], since_s: float, until_s: float) -> Usage:
    by_job: defaultdict[int, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.start_s or until_s):
        by_job[run.job_id].append(run)
    used = sum(run.gpu_h(since_s, until_s) for run in runs)
    failed = sum(run.gpu_h(since_s, until_s) for run in runs if run.state in _FAILED)
    # Slurm copies the AdminComment to the later runs of a job: the last one has all of it.
    preempted = [one for some in by_job.values() for one in some[-1].preemptions if since_s <= one.time_s <= until_s]
    lost = min(used - failed, sum(one.lost_gpu_s for one in preempted) / _S_PER_H)
    waits = [
        (first.start_s - first.eligible_s) / _S_PER_H
        for first, *_ in by_job.values()
        if first.start_s is not None and since_s <= first.start_s <= until_s
    ]
    energy_j = sum(run.energy_j for run in runs)
    return Usage(
        name or "-",
        len(by_job),
        used,
        used - failed - lost,
        lost,
        failed,
        sum(_saved(by_job[job_id][-1]) for job_id in stopped if job_id in by_job),
        len(preempted),
        statistics.median(waits) if waits else None,
        statistics.quantiles(waits, n=10)[-1] if len(waits) > 1 else (waits[0] if waits else None),
        energy_j / _J_PER_KWH if energy_j else None,
    )


def _saved(last: Run) -> float:
    """GPU-hours between a job's early end and its time limit. One that was stopped while it waited saves all of it."""
    if last.time_limit_s is None:
        return 0.0
    ran_s = (last.end_s or 0.0) - last.start_s if last.start_s is not None and last.end_s is not None else 0.0
    return last.gpus * max(0.0, last.time_limit_s - ran_s) / _S_PER_H
