"""What a policy sees: the cluster at one moment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sched_policy.columns import Columns, Ints, Nodes
from sched_policy.model import Absence, Job, Node


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

    """

    now_s: float
    nodes: Nodes
    jobs: tuple[Job, ...]
    columns: Columns = field(compare=False, repr=False)
    ended: tuple[Job, ...] = ()
    absences: tuple[Absence, ...] = ()

    @classmethod
    def of(
        cls,
        now_s: float,
        nodes: Iterable[Node],
        jobs: Iterable[Job],
        ended: Iterable[Job] = (),
        absences: Iterable[Absence] = (),
    ) -> Snapshot:
        """A snapshot of these jobs, given in any order."""
        in_order = tuple(sorted(jobs, key=lambda job: (job.submit_s, job.job_id)))
        table = nodes if isinstance(nodes, Nodes) else Nodes(nodes)
        return cls(now_s, table, in_order, Columns.of(in_order, now_s), tuple(ended), tuple(absences))

    @cached_property
    def pending(self) -> tuple[Job, ...]:
        """Jobs that wait and may start."""
        return tuple(self.jobs[row] for row in self.columns.waits.nonzero()[0])

    @cached_property
    def scopes(self) -> Ints:
        """The number of each job's scope, shape (J,); all 0 where there is one scope."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(job.scope, len(numbers)) for job in self.jobs], dtype=np.int64)

    @cached_property
    def rows_by_scope(self) -> tuple[Ints, ...]:
        """The positions of the jobs of each scope, rising."""
        by_scope = np.argsort(self.scopes, kind="stable")
        return tuple(np.split(by_scope, np.flatnonzero(np.diff(self.scopes[by_scope])) + 1)) if self.jobs else ()

    @cached_property
    def running(self) -> tuple[Job, ...]:
        """Jobs that hold GPUs."""
        return tuple(self.jobs[row] for row in self.columns.holds.nonzero()[0])
