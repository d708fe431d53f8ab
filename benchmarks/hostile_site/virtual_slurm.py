"""A Slurm in virtual time, as far as the hostile site needs one: priorities, backfill, fair share, requeues.

What the daemon reads and writes is what a real one would: the whole product runs over it but for the parsers. Its
priority is multifactor with fair tree, computed for all waiting jobs at once every `calc_s`, and for one job at its
submission and whenever it is changed: so a job that was written is ahead of the others by its fresher age until then.
GPUs are all that jobs take; each has them on one node. Times are seconds.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sched_policy.backfill import Backfill
from sched_policy.model import GpuRequest, Job, JobState, Node, NodeGpus
from sched_policy.place import Consolidate
from sched_policy.profile import AvailabilityProfile
from sched_policy.snapshot import Snapshot
from slurm_plugin.client.capabilities import Capabilities, SlurmVersion
from slurm_plugin.client.changes import (
    CancelJob,
    Change,
    ChangeFailure,
    DelayStart,
    RequeueJob,
    SetAdminComment,
    SetSiteFactor,
    SignalJob,
    StartAtOnce,
)
from slurm_plugin.client.records import ClusterRecords, ControllerLoad, QueuedJob, SlurmJob, SlurmNode, SlurmReservation

REQUEUE_DELAY_S = 121.0
PROMISES = 10
"""Blocked jobs whose places backfill keeps."""

_HIGH_QOS = 5000
_LONG_PARTITION = 2000
_FAIR_SHARE = 4000
_AGE = 10000
"""The weights of the real site (`site.SPEC`)."""


@dataclass(frozen=True, slots=True)
class Times:
    """How often Slurm looks at its queue, computes all priorities, and after how long a job's age counts no more."""

    schedule_s: float = 30.0
    calc_s: float = 300.0
    max_age_s: float = 36_000.0


@dataclass(slots=True)
class VirtualJob:
    """A job. `saved_s` is what a requeue leaves of `done_s`.

    `native` is the priority without a site factor, `age` and `fair_share` are parts of it.
    """

    job_id: int
    name: str
    user: str
    account: str
    partition: str
    qos: str
    nice: int
    gpus: int
    limit_s: float
    work_s: float
    comment: str
    requeues: bool
    reports: str
    submit_s: float
    eligible_s: float
    state: str = "PENDING"
    reason: str = "None"
    start_s: float | None = None
    node: str = ""
    done_s: float = 0.0
    saved_s: float = 0.0
    restarts: int = 0
    site_factor: int = 0
    native: int = 0
    age: int = 0
    fair_share: int = 0
    admin_comment: str = ""

    @property
    def priority(self) -> int:
        """The one in force."""
        return max(1, self.native + self.site_factor)

    def record(self, age_by_now: int) -> SlurmJob:
        """As the daemon reads it; `age_by_now` is what its waiting would count had Slurm just computed it."""
        runs = self.state == "RUNNING"
        return SlurmJob(
            job_id=self.job_id,
            name=self.name,
            user=self.user,
            uid=os.getuid(),
            account=self.account,
            partition=self.partition,
            qos=self.qos,
            state=self.state,
            reason=self.reason,
            priority=self.priority,
            site_factor=None if runs else self.site_factor,
            submit_s=self.submit_s,
            eligible_s=self.eligible_s,
            start_s=self.start_s,
            time_limit_s=self.limit_s,
            nodes=1,
            gpus=self.gpus,
            gpus_per_node=self.gpus,
            gpu_nodes=((self.node, self.gpus),) if runs else (),
            reservation="",
            comment=self.comment,
            restarts=self.restarts,
            admin_comment=self.admin_comment,
            gres_per_node=f"gpu:{self.gpus}",
            node_names=(self.node,) if runs else (),
            natives=() if runs else (self.native,),
            nice=self.nice,
            fair_share=None if runs else self.fair_share,
            age_lag=age_by_now - self.age,
            requeues=self.requeues,
        )


class VirtualSlurm:
    """A cluster whose clock is `now_s`; `advance` moves it. A `SlurmClient` for the daemon."""

    name = "cli"

    def __init__(self, nodes: Mapping[str, frozenset[str]], gpus: int, shares: Mapping[str, int], times: Times) -> None:
        """`nodes` have `gpus` each, and the partitions they are in; `shares` are those of accounts."""
        self.now_s = 1_700_000_000.0
        self.known: dict[int, VirtualJob] = {}
        self.signalled: list[int] = []
        self.requeued: list[tuple[VirtualJob, float]] = []
        self.started_s: defaultdict[int, list[float]] = defaultdict(list)
        self._nodes = tuple(Node(name, gpus, partitions) for name, partitions in nodes.items())
        self._records = tuple(SlurmNode(name, "MIXED", gpus, partitions) for name, partitions in nodes.items())
        self._shares = shares
        self.times = times
        self._used_gpu_s: defaultdict[str, float] = defaultdict(float)
        self._fair_share: dict[str, float] = dict.fromkeys(shares, 1.0)
        self._last_id = 0
        self._calculated_s = self._scheduled_s = self.now_s

    def add(self, job: VirtualJob) -> int:
        """Submit a job; its id is given here."""
        self._last_id += 1
        job.job_id = self._last_id
        job.submit_s = job.eligible_s = self.now_s
        self._compute(job)
        self.known[job.job_id] = job
        return job.job_id

    def end(self, job_id: int) -> None:
        """A job is no more."""
        self.known.pop(job_id, None)

    def advance(self, to_s: float) -> list[tuple[VirtualJob, float]]:
        """Let time pass; returns the jobs that ran meanwhile and the GPU-seconds that they had."""
        spent = []
        for job in [job for job in self.known.values() if job.state == "RUNNING"]:
            ran_s = min(to_s - self.now_s, job.work_s - job.done_s)
            job.done_s += ran_s
            spent.append((job, ran_s * job.gpus))
            self._used_gpu_s[job.account] += ran_s * job.gpus
            if job.done_s >= job.work_s:
                del self.known[job.job_id]
        self.now_s = to_s
        if to_s - self._calculated_s >= self.times.calc_s:
            self._calculate()
        if to_s - self._scheduled_s >= self.times.schedule_s:
            self._schedule()
        return spent

    def _calculate(self) -> None:
        """Fair share, and the priorities of all waiting jobs, with one clock."""
        self._calculated_s = self.now_s
        all_shares, used = sum(self._shares.values()), max(1.0, sum(self._used_gpu_s.values()))
        level = {
            name: (share / all_shares) / max(1e-9, self._used_gpu_s[name] / used)
            for name, share in self._shares.items()
        }
        # Fair tree: ranks. Users have their account's (fairshare=parent), and all accounts have the same number.
        for rank, name in enumerate(sorted(level, key=lambda name: level[name]), start=1):
            self._fair_share[name] = rank / len(level)
        for job in self.known.values():
            if job.state == "PENDING":
                self._compute(job)

    def _compute(self, job: VirtualJob) -> None:
        job.age = self._age(job)
        extra = _HIGH_QOS * (job.qos == "high") + _LONG_PARTITION * (job.partition == "long")
        job.fair_share = int(_FAIR_SHARE * self._fair_share[job.account])
        job.native = job.age + job.fair_share + extra - job.nice

    def _age(self, job: VirtualJob) -> int:
        return int(_AGE * min(1.0, max(0.0, self.now_s - job.eligible_s) / self.times.max_age_s))

    def _schedule(self) -> None:
        """Start what fits in the order of tiers and priorities, and what fits behind them without a delay."""
        self._scheduled_s = self.now_s
        waiting = [job for job in self.known.values() if job.state == "PENDING"]
        for job in waiting:
            job.reason = "BeginTime" if job.eligible_s > self.now_s else "Priority"
        able = [job for job in waiting if job.eligible_s <= self.now_s]
        able.sort(key=lambda job: (job.partition != "urgent", -job.priority, job.submit_s, job.job_id))
        models = {job.job_id: _model(job) for job in self.known.values()}
        profile = AvailabilityProfile(Snapshot.of(self.now_s, self._nodes, models.values()))
        queue = [models[job.job_id] for job in able]
        booked = Backfill(PROMISES).schedule(profile, self.now_s, queue, Consolidate())
        for start in booked.starts:
            job = self.known[start.job_id]
            job.state, job.start_s, job.node, job.reason = "RUNNING", self.now_s, start.placement[0].node, "None"
            self.started_s[job.job_id].append(self.now_s)
        first = next((job for job in able if job.state == "PENDING"), None)
        if first is not None:
            first.reason = "Resources"

    def capabilities(self) -> Capabilities:
        """Those of 24.11, as far as the daemon asks."""
        period_s = round(self.times.calc_s)
        settings = {
            "PriorityType": "priority/multifactor",
            "PriorityCalcPeriod": f"{period_s // 60:02d}:{period_s % 60:02d}",
            "SchedulerParameters": f"bf_interval={self.times.schedule_s:.0f}",
        }
        return Capabilities(SlurmVersion(24, 11, 5), settings)

    def look(self) -> ClusterRecords:
        """Nodes and jobs."""
        return ClusterRecords(self._records, self.jobs(), ())

    def jobs(self) -> tuple[SlurmJob, ...]:
        """All jobs that wait or run."""
        return tuple(job.record(self._age(job)) for job in self.known.values())

    def load(self) -> ControllerLoad:
        """Never busy."""
        return ControllerLoad(1, 0.0, 0.0, len(self.known))

    def apply(self, changes: Sequence[Change]) -> tuple[ChangeFailure, ...]:
        """Carry out what the daemon may want here."""
        return tuple(failure for change in changes if (failure := self._apply(change)))

    def _apply(self, change: Change) -> ChangeFailure | None:
        job = self.known.get(getattr(change, "job_id", 0))
        if job is None:
            return ChangeFailure(change, "Invalid job id specified")
        match change:
            case SetSiteFactor():
                job.site_factor, job.reason = change.site_factor, "None"
                self._compute(job)
            case SetAdminComment():
                job.admin_comment = change.admin_comment
            case SignalJob():
                job.saved_s = job.done_s
                self.signalled.append(job.job_id)
            case RequeueJob():
                job.state, job.start_s, job.node, job.restarts = "PENDING", None, "", job.restarts + 1
                job.done_s, job.submit_s, job.eligible_s = job.saved_s, self.now_s, self.now_s + REQUEUE_DELAY_S
                job.reason = "BeginTime"
                self.requeued.append((job, self.now_s))
                self._compute(job)
            case StartAtOnce():
                job.eligible_s = self.now_s
                self._compute(job)
            case DelayStart():
                job.eligible_s, job.reason = change.until_s, "BeginTime"
            case CancelJob():
                del self.known[job.job_id]
            case _:
                return ChangeFailure(change, "not in this Slurm")
        return None

    def jobs_of(self, users: Iterable[str]) -> dict[str, list[VirtualJob]]:
        """Each user's jobs."""
        found: dict[str, list[VirtualJob]] = {user: [] for user in users}
        for job in self.known.values():
            found[job.user].append(job)
        return found

    def nodes(self) -> tuple[SlurmNode, ...]:
        """All nodes."""
        return self._records

    def reservations(self) -> tuple[SlurmReservation, ...]:
        """None."""
        return ()

    def tagged_jobs(self, prefix: str) -> tuple[SlurmJob, ...]:
        """None: nothing here submits for itself."""
        raise NotImplementedError(prefix)

    def queue(self) -> tuple[QueuedJob, ...]:
        """Nobody here asks whose turn it is."""
        raise NotImplementedError

    def submit(self, script: str, options: Sequence[str]) -> int:
        """Nothing here submits for itself."""
        raise NotImplementedError(script, options)

    def expected_start_s(self, script: str, options: Sequence[str]) -> float:
        """Nothing here submits for itself."""
        raise NotImplementedError(script, options)


def _model(job: VirtualJob) -> Job:
    runs = job.state == "RUNNING"
    return Job(
        job.job_id,
        GpuRequest.on_each(1, job.gpus),
        job.submit_s,
        partition=job.partition,
        state=JobState.RUNNING if runs else JobState.PENDING,
        start_s=job.start_s,
        time_limit_s=job.limit_s,
        allocation=(NodeGpus(job.node, job.gpus),) if runs else (),
    )
