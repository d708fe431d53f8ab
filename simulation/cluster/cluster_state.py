"""The simulated cluster: which job holds which GPUs, how far it has come, and what each decision does to it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import numpy as np

from sched_policy.model import Job, Node, NodeGpus
from sched_policy.order import still_telling
from sched_policy.snapshot import Bools, EndedRun, Ints, Nodes, Snapshot
from simulation.cluster.job_table import JobPhase, JobTable
from simulation.cluster.settings import Settings
from simulation.interference import Interference
from simulation.results.outcome import Ending, JobRecord, Usage
from simulation.traces.trace import ClusterShape, TraceJob
from slurm_plugin.observation.trainings import granted_step

_ENDED_RUNS = 100
"""So many more run times are remembered before those are sought that tell nothing any longer."""


class GpuPool:
    """Free GPUs per node (`free`, shape (N,)). A GPU that jobs share is taken once, until the last of them leaves."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.free: Ints = nodes.gpus.copy()
        self._sharers: dict[tuple[str, int], list[int]] = {}

    def take(self, row: int, placement: Iterable[NodeGpus]) -> None:
        """The job of that row takes the GPUs of a placement."""
        for held in placement:
            node = self._nodes.position[held.node]
            if not held.indices:
                self.free[node] -= held.gpus
            for index in held.indices:
                sharers = self._sharers.setdefault((held.node, index), [])
                self.free[node] -= not sharers
                sharers.append(row)

    def release(self, row: int, placement: Iterable[NodeGpus]) -> None:
        """The job of that row releases its GPUs."""
        for held in placement:
            node = self._nodes.position[held.node]
            if not held.indices:
                self.free[node] += held.gpus
            for index in held.indices:
                sharers = self._sharers[held.node, index]
                sharers.remove(row)
                self.free[node] += not sharers

    def neighbours(self, row: int, placement: Iterable[NodeGpus]) -> tuple[tuple[int, ...], ...]:
        """The other jobs on the GPUs of a placement: each different set of rows once, in order."""
        sets = {
            tuple(sorted(other for other in self._sharers[held.node, index] if other != row))
            for held in placement
            for index in held.indices
        }
        return tuple(sorted(sets - {()}))


class ClusterState:
    """The state of a simulation. Jobs are rows, in the trace's order of (submit time, job id).

    Only `submit`, `resize`, `start`, `preempt`, `requeue`, `end` and `note_plan` change it; `snapshot` is what a policy
    sees of it. After each change `new_ends` returns the running jobs that will end at another time than before.
    """

    def __init__(
        self, jobs: Sequence[TraceJob], cluster: ClusterShape, settings: Settings, interference: Interference
    ) -> None:
        self._trace = jobs
        self._cluster = cluster
        self._settings = settings
        names = (f"node{i + 1:0{len(str(cluster.nodes))}d}" for i in range(cluster.nodes))
        self.nodes = Nodes(Node(name, cluster.gpus_per_node) for name in names)
        self._gpus = GpuPool(self.nodes)
        self._interference = interference
        self._table = JobTable(jobs, settings)
        count = len(jobs)
        self._held: list[tuple[NodeGpus, ...]] = [()] * count
        self._jobs: list[Job | None] = [None] * count
        self._active: Ints = np.empty(0, dtype=np.int64)
        self._records: list[JobRecord | None] = [None] * count
        self._usage: list[Usage] = []
        self._speed_changed: set[int] = set()
        self._ended: list[Job] = []
        self._ended_runs: list[EndedRun] = []
        self._most_ended_runs = _ENDED_RUNS
        self._any_elastic = any(job.least_gpus is not None for job in jobs)

    @property
    def waiting(self) -> Ints:
        """Rows of the jobs that wait."""
        waits: Bools = self._table.phase[self._active] == JobPhase.WAITING
        return self._active[waits]

    @property
    def expects_reports(self) -> bool:
        """Whether a running job reports a learning curve."""
        return bool(np.any(self._table.learns[self._active] & (self._table.phase[self._active] == JobPhase.RUNNING)))

    def any_works(self, now_s: float) -> bool:
        """Whether a running job has made progress since its start."""
        runs = self._active[self._table.phase[self._active] == JobPhase.RUNNING]
        return bool(np.any(self._table.loaded_s[runs] < now_s))

    @property
    def may_grow(self) -> bool:
        """Whether running jobs could be given more GPUs."""
        return self._any_elastic and any((job := self._jobs[row]) and job.elastic for row in self._active.tolist())

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or holds GPUs."""
        return not self._active.size

    @property
    def predicted(self) -> tuple[tuple[bool, bool] | None, ...]:
        """How learnt run times compare with the real ones, see `TraceOutcome`."""
        return tuple(self._table.predicted)

    def phase(self, row: int) -> JobPhase:
        """The phase of a job."""
        return JobPhase(int(self._table.phase[row]))

    def row_of(self, job_id: int) -> int | None:
        """The row of a job that waits or holds GPUs; None for any other id."""
        found = self._active[self._table.job_id[self._active] == job_id]
        return int(found[0]) if found.size else None

    def submit(self, row: int) -> None:
        """The job joins the queue."""
        self._table.submit(row, self._trace[row])
        self._active = np.append(self._active, row)
        self._refresh_job(row)

    def resize(self, row: int, gpus: int) -> None:
        """The waiting job asks for so many GPUs from now on."""
        self._table.resize(row, gpus, (gpus / self._trace[row].gpus) ** self._settings.scaling)
        self._refresh_job(row)

    def start(self, row: int, placement: tuple[NodeGpus, ...], now_s: float) -> None:
        """The job gets its GPUs."""
        self._table.start(row, now_s, self._settings.restart_s)
        self._held[row] = placement
        self._gpus.take(row, placement)
        for changed in (row, *self._running_beside(row)):
            self._update_speed(changed, now_s)
        self._refresh_job(row)

    def preempt(self, row: int, now_s: float) -> float:
        """The job stops working and saves its checkpoint; returns when its GPUs will be free."""
        self._table.save(row, now_s)
        self._refresh_job(row)
        return now_s + self._settings.checkpoint_s

    def new_ends(self) -> list[tuple[int, float]]:
        """(row, expected end) of the running jobs whose expected end has changed since the last call."""
        changed = [
            (row, self._table.end_s(row))
            for row in sorted(self._speed_changed)
            if self._table.phase[row] == JobPhase.RUNNING
        ]
        self._speed_changed.clear()
        return changed

    def requeue(self, row: int, now_s: float) -> None:
        """The job releases its GPUs and waits again."""
        self._release(row, now_s)
        self._table.requeue(row, now_s, self._settings.checkpoint_s + self._settings.restart_s)
        self._refresh_job(row)

    def end(self, row: int, now_s: float, stopped: Ending | None = None) -> None:
        """The job leaves: its work is done, its time is up, or `stopped` says why."""
        if self._table.phase[row] == JobPhase.RUNNING:
            self._table.advance(row, now_s)
        if self._table.phase[row] != JobPhase.WAITING:
            self._release(row, now_s)
        self._keep(row)
        self._table.end(row)
        whole = self._table.is_through(row)
        left = Ending.COMPLETED if self._table.leave_s[row] == self._table.work_s[row] else Ending.ABANDONED
        self._active = self._active[self._active != row]
        self._jobs[row] = None
        job = self._trace[row]
        self._keep_run(EndedRun(job.job_id, job.submit_s, job.gpus, float(self._table.earlier_s[row])), now_s)
        self._records[row] = JobRecord(
            job_id=job.job_id,
            submit_s=job.submit_s,
            start_s=float(self._table.first_start_s[row]),
            end_s=now_s,
            gpus=job.gpus,
            run_s=job.run_s,
            held_s=float(self._table.earlier_s[row]),
            held_gpu_s=float(self._table.held_gpu_s[row]),
            preemptions=int(self._table.preemptions[row]),
            user=job.user,
            ending=stopped or (left if whole else Ending.TIME_LIMIT),
            gain=job.learning.gain(float(self._table.done_s[row])) if job.learning else None,
            done_s=float(self._table.done_s[row]),
        )

    def close(self, now_s: float) -> None:
        """The simulation ends: jobs that are still there are recorded as they are."""
        for row in self._active.tolist():
            if self._table.phase[row] == JobPhase.WAITING:
                self._table.start_s[row] = now_s
            self.end(row, now_s, Ending.UNFINISHED)

    def snapshot(self, now_s: float) -> Snapshot:
        """What a policy may see now."""
        for row in self._table.judge(self._active, now_s).tolist():
            self._refresh_job(row)
        if self._table.learns.any():
            for row in self._active[self._table.phase[self._active] == JobPhase.RUNNING].tolist():
                self._table.advance(row, now_s)
                self._refresh_job(row)
            return Snapshot.of(now_s, self.nodes, self._present_jobs(), self._ended, ended_runs=self._ended_runs)
        columns = self._table.columns(self._active, now_s)
        ended, runs = tuple(self._ended), tuple(self._ended_runs)
        return Snapshot(now_s, self.nodes, self._present_jobs(), columns, ended, ended_runs=runs)

    def note_plan(self, held_back: Container[int]) -> None:
        """Record up to which report the sweeps have let each job continue, and which jobs they hold back."""
        for row in self._active[self._table.learns[self._active]].tolist():
            job = self._jobs[row]
            if job is not None and (step := granted_step(job, held_back)) != job.granted_step:
                self._table.granted_step[row] = step
                self._refresh_job(row)

    def _keep_run(self, run: EndedRun, now_s: float) -> None:
        """Remember how long a job ran that has ended, as long as that may tell of others."""
        if run.run_s <= 0:
            return
        self._ended_runs.append(run)
        if len(self._ended_runs) > self._most_ended_runs:
            self._ended_runs = list(still_telling(self._ended_runs, self._table.columns(self._active, now_s)))
            self._most_ended_runs = _ENDED_RUNS + 2 * len(self._ended_runs)

    def _keep(self, row: int) -> None:
        """Remember what a job of a sweep reported before it ended: its sweep goes on."""
        learning = self._trace[row].learning
        if learning is not None and learning.exploration.sweep is not None:
            self._refresh_job(row)
            job = self._jobs[row]
            if job is not None:
                self._ended.append(job)

    def _present_jobs(self) -> tuple[Job, ...]:
        return tuple(job for row in self._active.tolist() if (job := self._jobs[row]) is not None)

    def note_usage(self, now_s: float) -> None:
        """Record how the cluster is used from now on."""
        free = self._gpus.free
        idle: Bools = free == self.nodes.gpus
        phase = self._table.phase[self._active]
        waiting = int((phase == JobPhase.WAITING).sum())
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

    def _update_speed(self, row: int, now_s: float) -> None:
        """Set the job's speed beside the jobs that share its GPUs now."""
        self._table.advance(row, now_s)
        job = self._jobs[row]
        beside = self._gpus.neighbours(row, self._held[row])
        others = [[other for r in rows if (other := self._jobs[r]) is not None] for rows in beside]
        slowdowns = [self._interference.slowdown(job, found) for found in others if job is not None]
        self._table.speed[row] = self._table.scale[row] / max(slowdowns, default=1.0)
        self._speed_changed.add(row)

    def _running_beside(self, row: int) -> list[int]:
        beside = {other for rows in self._gpus.neighbours(row, self._held[row]) for other in rows}
        return sorted(other for other in beside if self._table.phase[other] == JobPhase.RUNNING)

    def _release(self, row: int, now_s: float) -> None:
        beside = self._running_beside(row)
        self._gpus.release(row, self._held[row])
        for other in beside:
            self._update_speed(other, now_s)
        self._held[row] = ()
        self._table.release(row, now_s)

    def _refresh_job(self, row: int) -> None:
        """Rebuild the job as policies see it; called after each change."""
        self._jobs[row] = self._table.job(row, self._trace[row], self._held[row], self._cluster.gpus_per_node)
