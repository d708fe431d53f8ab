"""The result of a policy: a `Plan`, each entry with a readable reason. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np
from msgspec import Struct

from sched_policy.model import GpuRequest, NodeGpus
from sched_policy.snapshot import Floats, Ints, Snapshot


class Score(Struct, frozen=True, gc=False):
    """The score of one job. Higher runs first; ties are broken by (submit time, job id)."""

    job_id: int
    value: float
    reason: str


class Ranking(Sequence[Score]):
    """All jobs of a snapshot, best first. The reasons of the scores are made when they are read.

    Attributes:
        rows: positions in the snapshot, best first, shape (J,).
        values: scores in the snapshot's order, shape (J,).
        stable_until_s: the time until which the order holds if no job starts, ends or reports.

    """

    def __init__(
        self,
        snapshot: Snapshot,
        values: Floats,
        reason: Callable[[int], str],
        stable_until_s: float = float("inf"),
        rows: Ints | None = None,
    ) -> None:
        """Rank by decreasing `values` (ties: submit time, job id), or as `rows`; `reason` explains a position's job."""
        if values.shape != (jobs := snapshot.columns.job_id.shape):
            raise ValueError(f"a ranking needs one value per job, of shape {jobs}, found {values.shape}")
        self.values = values
        self.stable_until_s = stable_until_s
        self.rows: Ints = np.argsort(-values, kind="stable") if rows is None else rows
        self._job_id = snapshot.columns.job_id
        self._reason = reason

    def in_order(self, snapshot: Snapshot, rows: Ints) -> Ranking:
        """The same scores of the same snapshot in another order."""
        return Ranking(snapshot, self.values, self._reason, self.stable_until_s, rows)

    @cached_property
    def value_of(self) -> Mapping[int, float]:
        """Scores by job id."""
        return dict(zip(self._job_id.tolist(), self.values.tolist(), strict=True))

    @property
    def job_ids(self) -> list[int]:
        """The jobs, best first, without the texts of their scores."""
        found: list[int] = self._job_id[self.rows].tolist()
        return found

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Score: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Score, ...]: ...
    def __getitem__(self, index: int | slice) -> Score | tuple[Score, ...]:
        if isinstance(index, slice):
            return tuple(self._score(int(row)) for row in self.rows[index])
        return self._score(int(self.rows[index]))

    def __iter__(self) -> Iterator[Score]:
        return (self._score(row) for row in self.rows.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def _score(self, row: int) -> Score:
        return Score(int(self._job_id[row]), float(self.values[row]), self._reason(row))


class Start(Struct, frozen=True, gc=False):
    """The job can start now on these GPUs."""

    job_id: int
    placement: tuple[NodeGpus, ...]
    reason: str


class Reservation(Struct, frozen=True, gc=False):
    """The job cannot start now; these GPUs are reserved for it from `start_s` to `end_s`."""

    job_id: int
    placement: tuple[NodeGpus, ...]
    start_s: float
    end_s: float
    reason: str


class Group(Struct, frozen=True):
    """Jobs that share GPUs: running, started by this plan, or all waiting for GPUs to come free."""

    job_ids: tuple[int, ...]
    reason: str


class Preemption(Struct, frozen=True, gc=False):
    """The running job should save a checkpoint and return to the queue. Only for jobs that opted in.

    `beneficiary` is the waiting job that needs its GPUs; None if the job itself gains, by another size or group.
    """

    job_id: int
    reason: str
    beneficiary: int | None = None


class Resize(Struct, frozen=True):
    """The elastic job should have this size. A running job is preempted, and resized while it waits."""

    job_id: int
    request: GpuRequest
    reason: str


class Stop(Struct, frozen=True):
    """The job should end early, or never start again: nothing left to learn. Only for jobs that opted in."""

    job_id: int
    reason: str


class Plan(Struct, frozen=True):
    """What should happen next.

    Attributes:
        scores: every job of the snapshot, best first.
        starts: jobs (tasks of arrays) that fit now, resized ones at their new size.
        reservations: planned starts of blocked jobs.
        groups: jobs that share GPUs, and those that wait to share some.
        preemptions: running jobs to checkpoint and requeue.
        stops: jobs that should end.
        resizes: elastic jobs that should have another size.
        held_back: jobs that their sweeps would not let run now, also those that cannot be paused.
        rests: paused jobs of sweeps that should not start now, not even on idle GPUs. Only jobs that opted in.
        placed: jobs among `starts` whose nodes are part of the decision; the resource manager may put others elsewhere.
        replan_s: when to plan again even if no job starts, ends or reports until then.

    """

    scores: Sequence[Score] = ()
    starts: tuple[Start, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    groups: tuple[Group, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    stops: tuple[Stop, ...] = ()
    resizes: tuple[Resize, ...] = ()
    held_back: frozenset[int] = frozenset()
    rests: frozenset[int] = frozenset()
    placed: frozenset[int] = frozenset()
    replan_s: float = float("inf")
