"""The input of a policy: the cluster at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sched_policy.model import NARROWED, Absence, Job, JobState, Node, Switch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_Value = TypeVar("_Value")


class Latest(Generic[_Value]):
    """A cache of one entry, keyed by the identity of immutable objects."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], _Value] | None = None

    def recall(self, of: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        """The value that `make` returned for these objects; it is called again when the objects are not the same."""
        kept = self._kept
        if kept is None or len(kept[0]) != len(of) or not all(map(is_, kept[0], of)):
            kept = self._kept = of, make()
        return kept[1]


class Columns(Struct, frozen=True, eq=False):
    """The numbers of a snapshot's jobs, in the snapshot's order. All arrays have shape (J,).

    Attributes:
        job_id: Slurm's job ids.
        submit_s: times of submission.
        gpus: GPUs asked for.
        holds: whether the job holds GPUs (it runs or is completing).
        waits: whether the job is pending and eligible.
        executed_s: run time so far, over all runs.
        run_s: run time of the current run, 0 for a pending job.
        waited_s: time in the queue before the current run; until now for a pending job.
        left_s: expected remaining run time, infinity if unknown.
        end_s: until when the GPUs of a job that holds some are reserved, infinity if unknown.

    """

    job_id: Ints
    submit_s: Floats
    gpus: Ints
    holds: Bools
    waits: Bools
    executed_s: Floats
    run_s: Floats
    waited_s: Floats
    left_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, jobs: Sequence[Job], now_s: float) -> Columns:
        """The columns of these jobs at the time `now_s`."""
        return cls(
            job_id=np.array([job.job_id for job in jobs], dtype=np.int64),
            submit_s=np.array([job.submit_s for job in jobs], dtype=np.float64),
            gpus=np.array([job.request.total for job in jobs], dtype=np.int64),
            holds=np.array([job.holds_gpus for job in jobs], dtype=np.bool_),
            waits=np.array([job.state is JobState.PENDING and job.eligible for job in jobs], dtype=np.bool_),
            executed_s=np.array([job.executed_s(now_s) for job in jobs], dtype=np.float64),
            run_s=np.array([job.run_s(now_s) for job in jobs], dtype=np.float64),
            waited_s=np.array([job.waited_s(now_s) for job in jobs], dtype=np.float64),
            left_s=np.array([job.left_s(now_s) for job in jobs], dtype=np.float64),
            end_s=np.array([job.end_s(now_s) for job in jobs], dtype=np.float64),
        )


class Standing(Struct, frozen=True, eq=False):
    """The scope, peers and priority of each job of a snapshot. All arrays have shape (J,).

    Attributes:
        scopes: the number of each job's scope.
        peers: the number of each job's set of peers, with which it may exchange places.
        native_priority: the priority that the resource manager itself computes.
        is_overdue: whether the job has waited too long.
        is_plain: whether all jobs have the same, unnamed scope and peers, and none is overdue.

    """

    scopes: Ints
    peers: Ints
    native_priority: Floats
    is_overdue: Bools
    is_plain: bool

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Standing:
        """The standing of these jobs."""
        whose = [(job.scope, job.peers) for job in jobs]
        kinds = {kind: number for number, kind in enumerate(dict.fromkeys(whose))}
        scopes = {scope: number for number, scope in enumerate(dict.fromkeys(scope for scope, _ in kinds))}
        peers = np.fromiter(map(kinds.__getitem__, whose), np.int64, len(whose))
        is_overdue = np.array([job.is_overdue for job in jobs], dtype=np.bool_)
        return cls(
            scopes=np.array([scopes[scope] for scope, _ in kinds], dtype=np.int64)[peers],
            peers=peers,
            native_priority=np.array([job.native_priority for job in jobs], dtype=np.float64),
            is_overdue=is_overdue,
            is_plain=kinds.keys() <= {("", "")} and not is_overdue.any(),
        )

    def of_rows(self, rows: Ints) -> Standing:
        """The standing of the jobs at these positions."""
        return Standing(
            self.scopes[rows], self.peers[rows], self.native_priority[rows], self.is_overdue[rows], self.is_plain
        )


class Nodes(tuple[Node, ...]):
    """The nodes of a cluster, with their numbers as arrays of shape (N,). Built once, shared by many snapshots."""

    def __init__(self, _nodes: Iterable[Node]) -> None:
        self.gpus: Ints = np.array([node.gpus for node in self], dtype=np.int64)
        self.schedulable: Bools = np.array([node.schedulable for node in self], dtype=np.bool_)
        self.gpu_memory_mib: Ints = np.array([node.gpu_memory_mib for node in self], dtype=np.int64)
        self.position = {node.name: i for i, node in enumerate(self)}
        self._partitions: dict[str, Bools] = {}

    def usable(self, partition: str = "") -> Bools:
        """Mask of the nodes on which jobs of a partition, or of a comma-separated list, may be planned; "" is any."""
        if partition not in self._partitions:
            named = frozenset([partition] if NARROWED in partition else partition.split(","))
            member = [not partition or not node.partitions or bool(named & node.partitions) for node in self]
            self._partitions[partition] = self.schedulable & np.array(member, dtype=np.bool_)
        return self._partitions[partition]

    @cached_property
    def capacity(self) -> int:
        """Number of GPUs on all schedulable nodes."""
        return int(self.gpus[self.schedulable].sum())

    @cached_property
    def switches(self) -> tuple[tuple[int, Ints], ...]:
        """Levels of the network, leaves first: what switches hold, and each node's switch as a number, 0 for none."""
        none = (Switch(""),) * max((len(node.switches) for node in self), default=0)
        levels = list(zip(*(node.switches or none for node in self), strict=True))
        tables = [{switch: i for i, switch in enumerate(dict.fromkeys((Switch(""), *level)))} for level in levels]
        numbers = [np.array([table[switch] for switch in level]) for table, level in zip(tables, levels, strict=True)]
        return tuple(zip((max(switch.holds for switch in table) for table in tables), numbers, strict=True))


class EndedRun(Struct, frozen=True, gc=False):
    """The run time of a job that has ended, over all its runs, as the resource manager recorded it."""

    job_id: int
    submit_s: float
    gpus: int
    run_s: float


@dataclass(frozen=True)
class Snapshot:
    """Everything a policy may know. Built by `Snapshot.of`, or directly by a simulator that keeps the columns itself.

    Attributes:
        now_s: the current time, on the clock of all other times.
        nodes: the cluster's nodes.
        jobs: jobs that are pending or hold GPUs, ordered by (submit time, job id), which is how policies break ties.
        columns: the numbers of `jobs`, in the same order.
        ended: ended jobs of sweeps that still have jobs in `jobs`: their curves help to predict those of the others.
            Empty where they are not recorded.
        absences: when nodes are not available to these jobs.
        ended_runs: ended jobs of any kind, from which the run times of others are estimated (`order.still_telling`).
        known_standing: `standing`, if it has been computed already.

    """

    now_s: float
    nodes: Nodes
    jobs: tuple[Job, ...]
    columns: Columns = field(compare=False, repr=False)
    ended: tuple[Job, ...] = ()
    absences: tuple[Absence, ...] = ()
    ended_runs: tuple[EndedRun, ...] = ()
    known_standing: Standing | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        now_s: float,
        nodes: Iterable[Node],
        jobs: Iterable[Job],
        ended: Iterable[Job] = (),
        absences: Iterable[Absence] = (),
        ended_runs: Iterable[EndedRun] = (),
    ) -> Snapshot:
        """A snapshot of these jobs, given in any order."""
        in_order = tuple(sorted(jobs, key=lambda job: (job.submit_s, job.job_id)))
        table = nodes if isinstance(nodes, Nodes) else Nodes(nodes)
        columns = Columns.of(in_order, now_s)
        return cls(now_s, table, in_order, columns, tuple(ended), tuple(absences), tuple(ended_runs))

    def only(self, rows: Ints) -> Snapshot:
        """The snapshot restricted to the jobs at these positions (ascending), without any ended jobs."""
        numbers = {name: getattr(self.columns, name)[rows] for name in self.columns.__struct_fields__}
        jobs = tuple(map(self.jobs.__getitem__, rows.tolist()))
        return Snapshot(self.now_s, self.nodes, jobs, Columns(**numbers), known_standing=self.standing.of_rows(rows))

    @cached_property
    def standing(self) -> Standing:
        """The scope, peers and priority of each job."""
        return self.known_standing or Standing.of(self.jobs)

    @cached_property
    def stays_s(self) -> Floats:
        """How long each node will be there, shape (N,): infinity if it is never absent, less than 0 if it is now."""
        stays_s = np.full(len(self.nodes), np.inf)
        for absence in self.absences:
            if absence.end_s > self.now_s:
                known = [self.nodes.position[name] for name in absence.nodes if name in self.nodes.position]
                in_s = absence.start_s - self.now_s
                stays_s[known] = np.minimum(stays_s[known], in_s if in_s > 0 else -np.inf)
        return stays_s

    @cached_property
    def rows_by_scope(self) -> tuple[Ints, ...]:
        """The positions of the jobs of each scope, ascending."""
        by_scope = np.argsort(self.standing.scopes, kind="stable")
        first = np.flatnonzero(np.diff(self.standing.scopes[by_scope])) + 1
        return tuple(np.split(by_scope, first)) if self.jobs else ()

    def next_s(self, times_s: Iterable[float]) -> float:
        """The earliest of these times that is in the future, infinity if none is."""
        return min((time_s for time_s in times_s if time_s > self.now_s), default=float("inf"))

    def next_quantum_s(self, quantum_s: float) -> float:
        """When the next running job has had its quantum, at most one from now on: scores change with time."""
        ends_s = (job.productive_since_s + quantum_s for job in self.running if job.is_preemptible)
        return self.next_s((*ends_s, self.now_s + quantum_s)) if self.running else float("inf")

    @cached_property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold GPUs."""
        return tuple(self.jobs[row] for row in self.columns.holds.nonzero()[0])
