"""Themis as Muri's simulator has it: fair time shares, solved again at every event, decide who runs next."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import numpy as np

from sched_policy.snapshot import Floats, Ints
from simulation.finish_time import Claims, central_shares, jitter, solved_shares, whole_shares
from simulation.muri.loop import Merging, MuriJob
from simulation.muri.preemptive import Refilling, Yarn
from simulation.traces.trace import ClusterShape

_NEVER_RAN = 1e9
_LEAST_LEFT = 1e-9  # iterations; a job about to end still has a share

_LEAST_SHARE = 1e-12  # a solver's may be a little below 0

# Rows of the table: the data of finish-time fairness for each job, one column per job.
_SUBMIT_S, _ITERATION_S, _GPUS, _FACTOR = 0, 1, 2, 3  # the factor breaks ties, see `jitter`
_LEFT, _BEFORE = 4, 5  # iterations left now, and at the last event
_PART = 6  # part of the cluster alone, at the last event
_ISOLATED = 7  # time the job would have taken alone so far; in iterations, see `Themis`
_EXECUTED_S, _DUE_S = 8, 9  # time it has held GPUs, and should have
_ROWS = 10

Solve = Callable[[Claims, Floats], Floats]
"""From the jobs' claims and their seconds per iteration to their shares."""


def central(claims: Claims, _iteration_s: Floats) -> Floats:
    """In the middle of all optimal shares, near ECOS', the original's solver."""
    return central_shares(claims)


def solved(claims: Claims, iteration_s: Floats) -> Floats:
    """By a convex solver, as the original's; where it fails, the original's last resort."""
    shares = solved_shares(claims)
    return whole(claims, iteration_s) if shares is None else np.maximum(shares, _LEAST_SHARE)


def whole(claims: Claims, _iteration_s: Floats) -> Floats:
    """All shares 1: the original's last resort."""
    return whole_shares(claims)


def early(claims: Claims, iteration_s: Floats) -> Floats:
    """What SCS, the original's second solver, returns for thousands of jobs: it stops far from the optimum.

    Its test is relative to the norm of the constants, which grows with the number of jobs; shares of 1e-3 pass it
    before they have moved towards the optimum, and depend on the coefficients of the constraints only. Fitted to what
    SCS 2.1.4 returned for the original's cone program in rounds of trace2_pr with 5200 to 5640 jobs, after 120 to 360
    steps: gpus^0.77 iteration_s^1.02, R^2 0.95 to 0.98. Optimal shares fall with gpus: nearly the reverse.
    """
    shares = claims.gpus**0.77 * iteration_s**1.02
    return shares * (claims.capacity_gpus / float(claims.gpus @ shares))


class Themis(Refilling):
    """Jobs by share over time received; jobs that never ran come first.

    Two passes: what fits in that order is chosen, then placed again, largest first. A quirk that the figures depend
    on: the time a job would take alone is computed from its part of the cluster without its speed.
    """

    merging = Merging()

    def __init__(self, cluster: ClusterShape, shares: Solve) -> None:
        super().__init__(cluster)
        self._shares = shares
        self._jobs: list[MuriJob] = []
        self._table = np.zeros((_ROWS, 64))
        self._order: Ints = np.zeros(0, dtype=np.int64)
        self._last_s = 0.0

    def arrive(self, job: MuriJob) -> None:
        """To the end of the list."""
        if job.index >= self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        factor = float(jitter(np.array([job.trace.job_id]))[0])
        row = (job.trace.submit_s, job.iteration_s, job.gpus, factor, job.left, job.left, 1.0, 0.0, 0.0, 0.0)
        self._table[:, job.index] = row
        self._jobs.append(job)
        self._order = np.append(self._order, job.index)

    def leave(self, job: MuriJob) -> None:
        """Out of the list."""
        self._order = self._order[self._order != job.index]

    def schedule(self, now_s: float) -> list[MuriJob]:
        """Solve, sort, choose in order, place the chosen ones largest first."""
        for job in self._running:
            self._table[_LEFT, job.index] = job.left
            self._table[_EXECUTED_S, job.index] = job.executed_s
        self._yarn = Yarn(self._cluster)
        self._running = []
        if len(self._order):
            rows = self._table[:, self._order]
            shares = self._shares(self._claims(rows, now_s), rows[_ITERATION_S]) * rows[_FACTOR]
            descending = self._descending(rows, shares)
            rows[_DUE_S] += shares * (now_s - self._last_s)
            self._table[:, self._order] = rows
            chosen = Yarn(self._cluster).fill(map(self._jobs.__getitem__, self._order[descending].tolist()))
            self._running = self._yarn.fill(sorted(chosen, key=_largest_first))
            self._order = self._order[descending][np.argsort(-rows[_GPUS][descending], kind="stable")]
        self._last_s = now_s
        return self._running

    def _claims(self, rows: Floats, now_s: float) -> Claims:
        gpus = self._cluster.gpus
        rows[_ISOLATED] += (rows[_BEFORE] - rows[_LEFT]) / rows[_PART]
        rows[_BEFORE] = rows[_LEFT]
        rows[_PART] = np.minimum(1.0, ceil(gpus / rows.shape[1]) / rows[_GPUS])
        left = np.maximum(rows[_LEFT], _LEAST_LEFT)
        return Claims(
            age_s=now_s - rows[_SUBMIT_S],
            work_s=left * rows[_ITERATION_S],
            isolated_s=rows[_ISOLATED] + left / rows[_PART],
            gpus=rows[_GPUS],
            capacity_gpus=float(gpus),
        )

    @staticmethod
    def _descending(rows: Floats, shares: Floats) -> Ints:
        """The order by (priority, deficit, share), all descending; equal ones keep their order."""
        received_s = rows[_EXECUTED_S]
        priority = shares * _NEVER_RAN
        np.divide(shares, received_s, out=priority, where=received_s > 0)
        return np.lexsort((-shares, received_s - rows[_DUE_S], -priority))


def _largest_first(job: MuriJob) -> int:
    return -job.gpus
