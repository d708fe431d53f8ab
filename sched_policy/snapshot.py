"""What a policy sees: the cluster at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sched_policy.model import Absence, Job, JobState, Node, Switch

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


_Value = TypeVar("_Value")


class Latest(Generic[_Value]):
    """Remembers what was made of the objects it was asked about last. For objects that never change, by identity."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[object, ...], _Value] | None = None

    def recall(self, of: tuple[object, ...], make: Callable[[], _Value]) -> _Value:
        """What `make` returned for just these objects, called again if they are others than last time."""
        kept = self._kept
        if kept is None or len(kept[0]) != len(of) or not all(map(is_, kept[0], of)):
            kept = self._kept = of, make()
        return kept[1]


class Columns(Struct, frozen=True, eq=False):
    """The jobs of a snapshot, one entry each, in the snapshot's order. All arrays have shape (J,).

    Attributes:
        job_id: Slurm's job ids.
        submit_s: times of submission.
        gpus: GPUs asked for.
        holds: whether the job holds GPUs (it runs, or is being cleaned up).
        waits: whether the job waits and may start.
        executed_s: run time so far, all runs together.
        run_s: run time of the present run, 0 for a job that waits.
        waited_s: time in the queue before the present run; until now for a job that waits.
        left_s: expected run time left, infinity where nothing tells.
        end_s: time by which the GPUs of a job that holds some are booked, infinity where nothing tells.

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
        """The columns of these jobs at a moment."""
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
    """Among whom the jobs of a snapshot stand in the queue, and where. All arrays have shape (J,).

    Attributes:
        scopes: the number of each job's scope.
        peers: the number of those of its scope with whom it may exchange places.
        native_priority: what the resource manager itself gives it.
        is_overdue: whether it has waited too long.
        is_plain: whether there is one scope with one kind of peers, both without a name, and nobody is overdue.

    """

    scopes: Ints
    peers: Ints
    native_priority: Floats
    is_overdue: Bools
    is_plain: bool

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Standing:
        """That of these jobs."""
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
        """That of the jobs at these positions."""
        return Standing(
            self.scopes[rows], self.peers[rows], self.native_priority[rows], self.is_overdue[rows], self.is_plain
        )


class Nodes(tuple[Node, ...]):
    """The nodes of a cluster with their numbers as arrays, shape (N,). Made once, used by many snapshots."""

    def __init__(self, _nodes: Iterable[Node]) -> None:
        self.gpus: Ints = np.array([node.gpus for node in self], dtype=np.int64)
        self.schedulable: Bools = np.array([node.schedulable for node in self], dtype=np.bool_)
        self.gpu_memory_mib: Ints = np.array([node.gpu_memory_mib for node in self], dtype=np.int64)
        self.position = {node.name: i for i, node in enumerate(self)}
        self._partitions: dict[str, Bools] = {}

    def usable(self, partition: str = "") -> Bools:
        """Nodes on which jobs of a partition, or of one of a list, may be planned; of any partition for ""."""
        if partition not in self._partitions:
            named = frozenset(partition.split(","))
            member = [not partition or not node.partitions or bool(named & node.partitions) for node in self]
            self._partitions[partition] = self.schedulable & np.array(member, dtype=np.bool_)
        return self._partitions[partition]

    @cached_property
    def capacity(self) -> int:
        """GPUs of all nodes on which jobs may be planned."""
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
    """How long a job ran that has ended, all runs together, as the resource manager saw it."""

    job_id: int
    submit_s: float
    gpus: int
    run_s: float


@dataclass(frozen=True)
class Snapshot:
    """Everything a policy may know. Made by `Snapshot.of`; a simulator that keeps columns up to date makes it directly.

    Attributes:
        now_s: the moment, in the clock of all other times.
        nodes: the cluster's nodes.
        jobs: jobs that wait or hold GPUs, in order of (submit time, job id): this is how policies break ties.
        columns: the numbers of `jobs`, in the same order.
        ended: jobs of sweeps that have others in `jobs`, and have ended themselves: what they reported tells what the
            others can be expected to. Empty where nobody keeps them.
        absences: when nodes are not there for these jobs.
        ended_runs: jobs of any kind that have ended and tell how long others will run (`order.still_telling`).
        known_standing: `standing`, where somebody has made it already.

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
        """The same moment with the jobs at these positions (rising) alone, and nothing known of others."""
        numbers = {name: getattr(self.columns, name)[rows] for name in self.columns.__struct_fields__}
        jobs = tuple(map(self.jobs.__getitem__, rows.tolist()))
        return Snapshot(self.now_s, self.nodes, jobs, Columns(**numbers), known_standing=self.standing.of_rows(rows))

    @cached_property
    def pending(self) -> tuple[Job, ...]:
        """Jobs that wait and may start."""
        return tuple(self.jobs[row] for row in self.columns.waits.nonzero()[0])

    @cached_property
    def standing(self) -> Standing:
        """Among whom each job stands in the queue, and where."""
        return self.known_standing or Standing.of(self.jobs)

    @property
    def scopes(self) -> Ints:
        """The number of each job's scope, shape (J,)."""
        return self.standing.scopes

    @cached_property
    def rows_by_scope(self) -> tuple[Ints, ...]:
        """The positions of the jobs of each scope, rising."""
        by_scope = np.argsort(self.scopes, kind="stable")
        return tuple(np.split(by_scope, np.flatnonzero(np.diff(self.scopes[by_scope])) + 1)) if self.jobs else ()

    def next_s(self, times_s: Iterable[float]) -> float:
        """The first of some times that is still to come, infinity where none is."""
        return min((time_s for time_s in times_s if time_s > self.now_s), default=float("inf"))

    @cached_property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold GPUs."""
        return tuple(self.jobs[row] for row in self.columns.holds.nonzero()[0])
