"""From what happened to the figures that are held against the bars. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.hostile_site.arm import Arm
from benchmarks.hostile_site.site import CYCLE_S, SHARES, USERS
from explsched.preemption_record import PREFIX, read
from slurm_plugin.client.records import SlurmJob

_CYCLES = 2
_ROUNDING_S = 2.0
"""Slurm's times are whole seconds, those of two events."""

_WELL = frozenset({"COMPLETED", "RUNNING", "PENDING", "COMPLETING"})
_GPUS = re.compile(r"gres/gpu=(\d+)")


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, by slurmdbd. `end_s` is None while it lasts."""

    job_id: int
    user: str
    account: str
    state: str
    start_s: float
    end_s: float | None
    gpus: int

    def gpu_s(self, from_s: float, to_s: float) -> float:
        """GPU-seconds in a stretch of time."""
        end_s = to_s if self.end_s is None else self.end_s
        return self.gpus * max(0.0, min(end_s, to_s) - max(self.start_s, from_s))


def runs(accounting: str) -> list[Run]:
    """The runs that sacct tells of; jobs that never started have none."""
    found = []
    for line in accounting.splitlines():
        raw, _job, user, account, state, start, end, tres, _submit = line.split("|")
        if not start.isdecimal():
            continue
        gpus = _GPUS.search(tres)
        ended = float(end) if end.isdecimal() else None
        found.append(Run(int(raw), user, account, state.split()[0], float(start), ended, int(gpus[1]) if gpus else 0))
    return found


def gpu_s_of_users(arm: Arm) -> dict[str, float]:
    """GPU-seconds of each user while the load lasted."""
    total = {user.name: 0.0 for user in USERS}
    for run in runs(arm.accounting):
        if run.user in total:
            total[run.user] += run.gpu_s(arm.from_s, arm.to_s)
    return total


def lying(arm: Arm) -> dict[str, float]:
    """GPU-time of the lying user of each pair over that of the honest one, and of all over all."""
    used_s = gpu_s_of_users(arm)
    liars = [user for user in USERS if user.lie]
    twin = {user.pair: user for user in USERS if not user.lie}
    ratios = {str(user.lie): used_s[user.name] / max(1.0, used_s[twin[user.pair].name]) for user in liars}
    honest_s = sum(used_s[user.name] for user in twin.values())
    return {"all": sum(used_s[user.name] for user in liars) / max(1.0, honest_s), **ratios}


def shares(arm: Arm) -> dict[str, float]:
    """Percent of the GPU-time of all accounts."""
    used_s = gpu_s_of_users(arm)
    of_account = {name: sum(used_s[user.name] for user in USERS if user.account == name) for name in SHARES}
    total_s = max(1.0, sum(of_account.values()))
    return {name: 100 * value / total_s for name, value in of_account.items()}


@dataclass(frozen=True, slots=True)
class Evictions:
    """Jobs that were requeued for another, and those of them whose beneficiary did not start soon after."""

    all: int
    in_vain: tuple[str, ...]


def evictions(arm: Arm) -> Evictions:
    """A beneficiary is served when it starts within two cycles of when the last of those that made room is gone."""
    ran: defaultdict[int, list[Run]] = defaultdict(list)
    for run in runs(arm.accounting):
        ran[run.job_id].append(run)
    victims: defaultdict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    count = 0
    for job_id, (comment, restarts) in _admin_comments(arm.records).items():
        record = read(comment, 0.0, restarts)
        count += record.count
        for one in record.latest:
            if one.beneficiary is not None:
                # Those that make room for a job in the same minute do so together.
                victims[one.beneficiary, round(one.time_s / 60)].append((job_id, one.time_s))
    vain = []
    for (beneficiary, _minute), evicted in victims.items():
        freed_s = max(_end_s(ran[job_id], time_s) for job_id, time_s in evicted)
        first_s = min(time_s for _, time_s in evicted)
        latest_s = freed_s + _CYCLES * CYCLE_S + _ROUNDING_S
        if freed_s < arm.to_s and not any(first_s - _ROUNDING_S <= run.start_s <= latest_s for run in ran[beneficiary]):
            later = [run.start_s - freed_s for run in ran[beneficiary] if run.start_s > latest_s]
            when = f"{min(later):.0f} s later" if later else "never"
            vain.append(f"{[job_id for job_id, _ in evicted]} for {beneficiary}, which started {when}")
    return Evictions(count, tuple(vain))


def _end_s(runs_of_job: Sequence[Run], time_s: float) -> float:
    """When the run ended that was asked at `time_s` to make room."""
    ends = [run.end_s for run in runs_of_job if run.end_s is not None and run.end_s >= time_s - _ROUNDING_S]
    return min(ends, default=time_s)


def _admin_comments(records: str) -> dict[int, tuple[str, int]]:
    """Our word in each job's AdminComment, and how often the job was requeued."""
    found = {}
    for line in records.splitlines():
        if PREFIX in line:
            fields = _fields(line)
            found[int(fields["JobId"])] = (fields["AdminComment"], int(fields["Restarts"]))
    return found


def _fields(line: str) -> dict[str, str]:
    return {key: value for key, _, value in (word.partition("=") for word in line.split())}


_LAUNCH_FAILED = "launch_failed_requeued_held"
"""Slurm's own reason for a job that it holds, with the daemon or without."""


@dataclass(frozen=True, slots=True)
class Harmed:
    """Jobs to which something happened that nobody had agreed to, in words.

    `lost_by_slurm` ended badly, were forgotten when slurmctld was killed, or are held because their launch failed on a
    node whose slurmd was killed, without any change of ours to them.
    """

    lost: tuple[str, ...]
    lost_by_slurm: tuple[str, ...]
    held: tuple[str, ...]
    requeued: tuple[str, ...]


def harmed(arm: Arm) -> Harmed:
    """Every acknowledged job has completed, waits or runs, or its owner ended it; only consenting ones ran twice."""
    records = {int(fields["JobId"]): fields for line in arm.records.splitlines() if (fields := _fields(line))}
    interrupted = {int(job) for job in re.findall(r"(?:SignalJob|RequeueJob|CancelJob) job=(\d+)", arm.daemon_log)}
    requeued_by_us = {int(job) for job in re.findall(r"RequeueJob job=(\d+)", arm.daemon_log)}
    lost: list[str] = []
    lost_by_slurm: list[str] = []
    held: list[str] = []
    requeued: list[str] = []
    for job in arm.submitted:
        record = records.get(job.job_id, {})
        who = f"{job.job_id} of {job.user.name}"
        if record.get("JobName", job.name) != job.name:
            lost_by_slurm.append(f"{who}: forgotten, the number was given again")
            continue
        state = record.get("JobState", "GONE")
        if state not in _WELL and job.job_id not in arm.cancelled:
            words = f"{who}: {state} {record.get('Reason', '')}"
            (lost if job.job_id in interrupted else lost_by_slurm).append(words)
        if state == "PENDING" and record.get("Priority") == "0":
            reason = record.get("Reason", "")
            is_slurms = reason == _LAUNCH_FAILED and job.job_id not in interrupted
            (lost_by_slurm if is_slurms else held).append(f"{who}: held, {reason}")
        if not job.spec.consents and job.job_id in requeued_by_us:
            requeued.append(who)
    return Harmed(tuple(lost), tuple(lost_by_slurm), tuple(held), tuple(requeued))


def out_of_order(arm: Arm) -> tuple[str, ...]:
    """Places of the queue at rest that belong to another user than Slurm's own priorities give them to, in words.

    What started jobs have had of the places of jobs that wait is missing from those, as the daemon has noted.
    Priorities count by one clock: a job that was just written is ahead by its fresh age until Slurm computes them all.
    """
    waiting = [job for job in arm.at_rest if job.state == "PENDING" and job.natives]
    alone = sorted(waiting, key=lambda job: (-_place(job, arm), job.submit_s, job.job_id))
    ours = sorted(waiting, key=lambda job: (-job.priority - job.age_lag, job.submit_s, job.job_id))
    return tuple(
        f"place {place}: {_standing(found, arm)}; by Slurm {_standing(wanted, arm)}"
        for place, (found, wanted) in enumerate(zip(ours, alone, strict=True))
        if _kind(found) != _kind(wanted)
    )


def _place(job: SlurmJob, arm: Arm) -> int:
    return (job.native_priority or 0) + arm.used_up.get(job.job_id, 0)


def _kind(job: SlurmJob) -> str:
    return f"{job.user} {job.partition} {job.qos} nice {job.nice}"


def _standing(job: SlurmJob, arm: Arm) -> str:
    place = f"Slurm's own {job.native_priority}, used up {-arm.used_up.get(job.job_id, 0)}"
    return f"{job.job_id} ({_kind(job)}) with {job.priority}, {place}"


def steered(arm: Arm) -> int:
    """Jobs of the queue at rest that stand at another place than Slurm alone would give them."""
    return sum(job.site_factor not in (None, 0) for job in arm.at_rest if job.state == "PENDING")


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of an arm. Lists are what happened, in words."""

    jobs: int
    runs: Mapping[str, int]
    gpu_s_of_users: Mapping[str, int]
    evictions: int
    evictions_in_vain: tuple[str, ...]
    lying_over_honest: Mapping[str, float]
    shares_percent: Mapping[str, float]
    at_rest: int
    at_rest_moved: int
    at_rest_out_of_order: tuple[str, ...]
    lost: tuple[str, ...]
    lost_by_slurm: tuple[str, ...]
    held: tuple[str, ...]
    requeued_without_consent: tuple[str, ...]
    chaos: tuple[str, ...]


def of(arm: Arm) -> Figures:
    """All figures of an arm."""
    evicted, hurt = evictions(arm), harmed(arm)
    return Figures(
        len(arm.submitted),
        dict(Counter(run.state for run in runs(arm.accounting))),
        {name: round(value) for name, value in gpu_s_of_users(arm).items()},
        evicted.all,
        evicted.in_vain,
        {name: round(ratio, 3) for name, ratio in lying(arm).items()},
        {name: round(share, 1) for name, share in shares(arm).items()},
        sum(job.state == "PENDING" for job in arm.at_rest),
        steered(arm),
        out_of_order(arm),
        hurt.lost,
        hurt.lost_by_slurm,
        hurt.held,
        hurt.requeued,
        arm.chaos,
    )


@dataclass(frozen=True, slots=True)
class Bars:
    """The figures of an arm with the daemon that have a bar: counts that must be 0, and whether all are.

    Shares of accounts and what lying brings have theirs in virtual time (`virtual`): Slurm gives nearly all GPUs to the
    account that is owed most when it computes priorities, each minute at the soonest, so that a few minutes are a few
    throws of dice. Two runs of Slurm alone gave an account 16 and 47 percent.
    """

    evictions_in_vain: int
    at_rest_out_of_order: int
    lost: int
    held: int
    requeued_without_consent: int
    met: bool


def bars(ours: Figures) -> Bars:
    """The figures of an arm against the bars."""
    lost = len(ours.lost), len(ours.held), len(ours.requeued_without_consent)
    counts = (len(ours.evictions_in_vain), len(ours.at_rest_out_of_order), *lost)
    return Bars(*counts, not any(counts))
