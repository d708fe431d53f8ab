"""The simulated cluster: which job is where, how far it has come, and what each decision does to it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from sched_policy.columns import Bools, Columns, Floats, Ints, Nodes
from sched_policy.interference import Interference
from sched_policy.model import Job, Node, NodeGpus
from sched_policy.simulator.gpus import GpuPool
from sched_policy.simulator.outcome import Ending, JobRecord, Usage
from sched_policy.simulator.portrait import Standing, portrait
from sched_policy.simulator.settings import Estimates, Settings, Source
from sched_policy.simulator.trace import ClusterShape, TraceJob
from sched_policy.snapshot import Snapshot

NEVER_S = float("inf")


class Phase(IntEnum):
    """Where a job of the trace stands."""

    FUTURE = 0
    WAITING = 1
    RUNNING = 2
    YIELDING = 3  # saves its checkpoint, holds its GPUs, makes no progress
    ENDED = 4


class World:
    """The state of a simulation. Jobs are rows, in the trace's order of (submit time, job id).

    Only `submit`, `start`, `ask_to_yield`, `yield_now` and `end` change it; `snapshot` shows it to a policy. After each
    change `new_ends` tells which running jobs will end at another time than was said before.
    """

    def __init__(
        self, jobs: Sequence[TraceJob], cluster: ClusterShape, settings: Settings, interference: Interference
    ) -> None:
        self._trace = jobs
        self._cluster = cluster
        self._settings = settings
        names = (f"node{i + 1:0{len(str(cluster.nodes))}d}" for i in range(cluster.nodes))
        self.nodes = Nodes(Node(name, cluster.gpus_per_node) for name in names)
        self._gpus_left = GpuPool(self.nodes)
        self._interference = interference
        count = len(jobs)
        self._job_id = np.array([job.job_id for job in jobs], dtype=np.int64)
        self._submit_s = np.array([job.submit_s for job in jobs], dtype=np.float64)
        self._gpus = np.array([job.gpus for job in jobs], dtype=np.int64)
        self._work_s = np.array([job.run_s for job in jobs], dtype=np.float64)
        self._leave_s = np.minimum(self._work_s, [_leaves_at_s(job) for job in jobs])
        self._learns = np.array([job.learning is not None for job in jobs], dtype=np.bool_)
        self._limit_s = np.array([_or_never(job.time_limit_s) for job in jobs], dtype=np.float64)
        self._expected_s = _expectations(self._work_s, settings.estimates, settings.seed)
        self._phase = np.full(count, Phase.FUTURE, dtype=np.int8)
        self._done_s = np.zeros(count)
        self._counted_until_s = np.zeros(count)
        self._loaded_s = np.zeros(count)
        self._speed = np.ones(count)
        self._loaded_done_s = np.zeros(count)
        self._earlier_s = np.zeros(count)
        self._start_s = np.full(count, np.nan)
        self._first_start_s = np.full(count, np.nan)
        self._queued_s = self._submit_s.copy()
        self._preemptions = np.zeros(count, dtype=np.int64)
        self._held: list[tuple[NodeGpus, ...]] = [()] * count
        self._jobs: list[Job | None] = [None] * count
        self._active: Ints = np.empty(0, dtype=np.int64)
        self._records: list[JobRecord | None] = [None] * count
        self._usage: list[Usage] = []
        self._paced: set[int] = set()

    @property
    def waiting(self) -> Ints:
        """Rows of the jobs that wait."""
        waits: Bools = self._phase[self._active] == Phase.WAITING
        return self._active[waits]

    @property
    def reports_come(self) -> bool:
        """Whether running jobs go on reporting what they learn."""
        return bool(np.any(self._learns[self._active] & (self._phase[self._active] == Phase.RUNNING)))

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or holds GPUs."""
        return not self._active.size

    def phase(self, row: int) -> Phase:
        """Where a job stands."""
        return Phase(int(self._phase[row]))

    def row_of(self, job_id: int) -> int | None:
        """The row of a job that waits or holds GPUs; None for any other id."""
        found = self._active[self._job_id[self._active] == job_id]
        return int(found[0]) if found.size else None

    def submit(self, row: int) -> None:
        """The job joins the queue."""
        self._phase[row] = Phase.WAITING
        self._active = np.append(self._active, row)
        self._show(row)

    def start(self, row: int, placement: tuple[NodeGpus, ...], now_s: float) -> None:
        """The job gets its GPUs."""
        restarts = self._preemptions[row] > 0
        self._phase[row] = Phase.RUNNING
        self._start_s[row] = now_s
        self._loaded_s[row] = now_s + (self._settings.restart_s if restarts else 0.0)
        self._loaded_done_s[row] = self._done_s[row]
        self._counted_until_s[row] = self._loaded_s[row]
        if np.isnan(self._first_start_s[row]):
            self._first_start_s[row] = now_s
        self._held[row] = placement
        self._gpus_left.take(row, placement)
        self._pace(row, now_s)
        self._pace_neighbours(row, now_s)
        self._show(row)

    def ask_to_yield(self, row: int, now_s: float) -> float:
        """The job stops working and saves; returns when its GPUs will be free."""
        self._advance(row, now_s)
        self._phase[row] = Phase.YIELDING
        self._show(row)
        return now_s + self._settings.checkpoint_s

    def new_ends(self) -> list[tuple[int, float]]:
        """(row, when it will end if nothing changes) of the running jobs for which that is new; each is told once."""
        told = [(row, self._end_s(row)) for row in sorted(self._paced) if self._phase[row] == Phase.RUNNING]
        self._paced.clear()
        return told

    def yield_now(self, row: int, now_s: float) -> None:
        """The job gives its GPUs back and waits again."""
        self._release(row, now_s)
        self._phase[row] = Phase.WAITING
        self._queued_s[row] = now_s
        self._preemptions[row] += 1
        self._expected_s[row] += self._settings.checkpoint_s + self._settings.restart_s
        self._show(row)

    def end(self, row: int, now_s: float, stopped: Ending | None = None) -> None:
        """The job leaves: its work is done, its time is up, or `stopped` says why."""
        if self._phase[row] == Phase.RUNNING:
            self._advance(row, now_s)
        self._release(row, now_s)
        # Rounding: the last moment of work is a sum of many.
        whole = self._done_s[row] >= self._leave_s[row] * (1 - 1e-9) - 1e-6
        left = Ending.COMPLETED if self._leave_s[row] == self._work_s[row] else Ending.ABANDONED
        self._phase[row] = Phase.ENDED
        self._active = self._active[self._active != row]
        self._jobs[row] = None
        job = self._trace[row]
        self._records[row] = JobRecord(
            job_id=job.job_id,
            submit_s=job.submit_s,
            start_s=float(self._first_start_s[row]),
            end_s=now_s,
            gpus=job.gpus,
            run_s=job.run_s,
            held_s=float(self._earlier_s[row]),
            preemptions=int(self._preemptions[row]),
            user=job.user,
            ending=stopped or (left if whole else Ending.TIME_LIMIT),
            gain=job.learning.gain(float(self._done_s[row])) if job.learning else None,
        )

    def close(self, now_s: float) -> None:
        """The simulation ends: jobs that are still there are recorded as they are."""
        for row in self._active.tolist():
            if self._phase[row] == Phase.WAITING:
                self._start_s[row] = now_s
            self.end(row, now_s, Ending.UNFINISHED)

    def snapshot(self, now_s: float) -> Snapshot:
        """What a policy may see now."""
        if self._learns.any():
            for row in self._active[self._phase[self._active] == Phase.RUNNING].tolist():
                self._advance(row, now_s)
                self._show(row)
            return Snapshot.of(now_s, self.nodes, self._present_jobs())
        return Snapshot(now_s, self.nodes, self._present_jobs(), self._columns(now_s))

    def _present_jobs(self) -> tuple[Job, ...]:
        return tuple(job for row in self._active.tolist() if (job := self._jobs[row]) is not None)

    def _columns(self, now_s: float) -> Columns:
        """What `Columns.of` would compute from the jobs, without looking at each of them."""
        rows = self._active
        phase = self._phase[rows]
        holds = (phase == Phase.RUNNING) | (phase == Phase.YIELDING)
        start_s = np.where(holds, self._start_s[rows], now_s)
        run_s = now_s - start_s
        executed_s = self._earlier_s[rows] + run_s
        slowed_s = np.maximum(0.0, now_s - self._counted_until_s[rows]) * (1.0 - self._speed[rows])
        expected_s = self._expected_s[rows] + np.where(phase == Phase.RUNNING, slowed_s, 0.0)
        planned_s = np.where(
            np.isfinite(self._limit_s[rows]) | np.isnan(expected_s),
            self._limit_s[rows],
            np.maximum(1.0, expected_s - self._earlier_s[rows]),
        )
        return Columns(
            job_id=self._job_id[rows],
            submit_s=self._submit_s[rows],
            gpus=self._gpus[rows],
            holds=holds,
            waits=phase == Phase.WAITING,
            executed_s=executed_s,
            run_s=run_s,
            waited_s=start_s - self._queued_s[rows],
            left_s=np.where(
                np.isnan(expected_s),
                np.maximum(0.0, self._limit_s[rows] - run_s),
                np.maximum(0.0, expected_s - executed_s),
            ),
            end_s=np.where(holds, np.maximum(now_s, start_s + planned_s), np.inf),
        )

    def note_usage(self, now_s: float) -> None:
        """Record how the cluster is used from now on."""
        free = self._gpus_left.free
        idle: Bools = free == self.nodes.gpus
        phase = self._phase[self._active]
        waiting = int((phase == Phase.WAITING).sum())
        usage = Usage(
            time_s=now_s,
            busy_gpus=int(self.nodes.gpus.sum() - free.sum()),
            idle_node_gpus=int(free[idle].sum()),
            running_jobs=phase.size - waiting,
            pending_jobs=waiting,
        )
        if self._usage and self._usage[-1].time_s == now_s:
            self._usage.pop()
        self._usage.append(usage)

    def records(self) -> tuple[tuple[JobRecord, ...], tuple[Usage, ...]]:
        """What became of the jobs that have ended, and the use of the cluster."""
        return tuple(record for record in self._records if record is not None), tuple(self._usage)

    def _advance(self, row: int, now_s: float) -> None:
        worked_s = max(0.0, now_s - self._counted_until_s[row])
        self._done_s[row] += worked_s * self._speed[row]
        self._counted_until_s[row] += worked_s
        self._expected_s[row] += worked_s * (1.0 - self._speed[row])  # who shares takes longer than expected

    def _pace(self, row: int, now_s: float) -> None:
        """How fast the job gets on beside its present neighbours."""
        self._advance(row, now_s)
        job = self._jobs[row]
        beside = self._gpus_left.neighbours(row, self._held[row])
        others = [[other for r in rows if (other := self._jobs[r]) is not None] for rows in beside]
        slowdowns = [self._interference.slowdown(job, found) for found in others if job is not None]
        self._speed[row] = 1.0 / max(slowdowns, default=1.0)
        self._paced.add(row)

    def _pace_neighbours(self, row: int, now_s: float) -> None:
        beside = {other for rows in self._gpus_left.neighbours(row, self._held[row]) for other in rows}
        for other in sorted(beside):
            if self._phase[other] == Phase.RUNNING:
                self._pace(other, now_s)

    def _end_s(self, row: int) -> float:
        """When the job will end: its work is done, or its time is up."""
        left_s = (self._leave_s[row] - self._done_s[row]) / self._speed[row]
        return float(min(self._counted_until_s[row] + left_s, self._start_s[row] + self._limit_s[row]))

    def _release(self, row: int, now_s: float) -> None:
        placement = self._held[row]
        beside = {other for rows in self._gpus_left.neighbours(row, placement) for other in rows}
        self._gpus_left.give_back(row, placement)
        for other in sorted(beside):
            if self._phase[other] == Phase.RUNNING:
                self._pace(other, now_s)
        self._held[row] = ()
        self._earlier_s[row] += now_s - self._start_s[row]
        self._start_s[row] = np.nan

    def _show(self, row: int) -> None:
        """Make the job as policies see it, anew after each change."""
        holds = self._phase[row] in (Phase.RUNNING, Phase.YIELDING)
        expected_s = float(self._expected_s[row])
        standing = Standing(
            done_s=float(self._done_s[row]),
            queued_s=float(self._queued_s[row]),
            start_s=float(self._start_s[row]) if holds else None,
            loaded_s=float(self._loaded_s[row]),
            loaded_done_s=float(self._loaded_done_s[row]),
            earlier_s=float(self._earlier_s[row]),
            expected_s=None if np.isnan(expected_s) else expected_s,
            preemptions=int(self._preemptions[row]),
            held=self._held[row],
            yielding=self._phase[row] == Phase.YIELDING,
        )
        self._jobs[row] = portrait(self._trace[row], standing, self._cluster.gpus_per_node)


def _or_never(limit_s: float | None) -> float:
    return NEVER_S if limit_s is None else limit_s


def _leaves_at_s(job: TraceJob) -> float:
    """Run time after which the owner gives the job up."""
    return _or_never(job.learning.abandoned_at_s if job.learning else None)


def _expectations(work_s: Floats, estimates: Estimates, seed: int) -> Floats:
    """What policies are told about run times, shape (J,); NaN where they are told nothing."""
    if estimates.source is Source.LIMIT:
        return np.full_like(work_s, np.nan)
    noise = np.random.default_rng(seed).normal(0.0, estimates.sigma, work_s.size)
    return work_s * np.exp(noise)
