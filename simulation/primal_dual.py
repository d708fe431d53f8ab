"""Primal-dual allocation: GPUs have a price that rises with what is promised of them (OASiS, ExplSched).

Jobs come one after the other. Each is offered the plan that pays best at the prices of that moment, and is admitted if
its payoff is positive; its plan then raises the prices for all who come later:

    price    p(t) = L (U / L)^(g(t) / C)            g(t) of C GPUs are promised in slot t
    payoff   profit(plan) - sum over its slots of p(t) times its GPUs
    U        the most that any job's profit is per GPU of a slot
    L        the least profit per GPU-slot, times the least demand of a job over twice all GPU-slots there are

L makes an empty slot so cheap that everybody can pay it, U a full one so dear that nobody can. OASiS (Bao et al.,
INFOCOM 2018) has a utility that falls with the completion time; ExplSched (Li et al., CLUSTER 2023) the reduction of
the loss. Its text is not public in full: after its abstract this is the form of OASiS with that profit.

Baselines, as those of `simulation.baselines`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import ClassVar

import numpy as np
from msgspec import Struct

from sched_policy.catalog import PolicyOptions
from sched_policy.improvement import remaining_improvement
from sched_policy.plan import Ranking
from sched_policy.policies import depth, resizing
from sched_policy.policy import JobData, Need, Policy
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot

_LENGTHS = Need(JobData.RUN_TIMES, "jobs of unknown length are offered plans of one slot")
SURVIVAL = 0.7
"""Of the jobs that start, so many are not ended early by their owners: ExplSched reports that over 30 % are."""

Profit = Callable[[Snapshot, Floats], Floats]
"""(snapshot, how long after now each job would end, shape (J, K)) -> profit of each job for each end, shape (J, K)."""


def loss_reduction(snapshot: Snapshot, end_s: Floats) -> Floats:
    """ExplSched: what a job may still improve, normalised, weighted by the chance that its owner lets it run so long.

    The chance falls by `SURVIVAL` over a whole run, evenly. A job without a curve may improve as much as any: 1. It
    does not matter when the job ends.
    """
    found = remaining_improvement(snapshot.jobs)
    improves = np.ones(len(snapshot.jobs))
    improves[found.rows] = np.maximum(found.remaining, 0.0)
    columns = snapshot.columns
    whole_s = columns.executed_s + columns.left_s
    ahead = np.divide(columns.left_s, whole_s, out=np.ones_like(whole_s), where=np.isfinite(whole_s) & (whole_s > 0))
    profit: Floats = np.broadcast_to((improves * SURVIVAL**ahead)[:, None], end_s.shape)
    return profit


def timeliness(snapshot: Snapshot, end_s: Floats) -> Floats:
    """OASiS: 1 / (1 + e^(x - 2)), x being the completion time over the job's run time.

    The sigmoid of its evaluation. There the weights are drawn at random for each job; here all are alike, and a job is
    expected within twice its run time.
    """
    columns = snapshot.columns
    whole_s = np.where(np.isfinite(columns.left_s), columns.executed_s + columns.left_s, 1.0)
    waited_s = snapshot.now_s - columns.submit_s
    stretch = (waited_s[:, None] + end_s) / np.maximum(whole_s, 1.0)[:, None]
    return 1.0 / (1.0 + np.exp(np.minimum(stretch - 2.0, 500.0)))


class PrimalDual(Struct, frozen=True):
    """Order by the slot in which a job's plan begins; those that cannot pay come last. What runs keeps its GPUs.

    The originals refuse who cannot pay, and let GPUs idle until a plan begins. A cluster refuses nobody: here all wait,
    and GPUs that are free go to the first in this order.

    Attributes:
        profit: `loss_reduction` or `timeliness`.
        slot_s: length of a slot.
        slots: how many are planned ahead. A job of unknown length is offered plans of one.

    """

    profit: Profit = loss_reduction
    slot_s: float = 600.0
    slots: int = 144
    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Running jobs first, then by the first slot of the plan, then those whose payoff is not positive."""
        columns = snapshot.columns
        jobs, capacity = len(snapshot.jobs), max(snapshot.nodes.capacity, 1)
        left_s = np.where(np.isfinite(columns.left_s), columns.left_s, self.slot_s)
        length: Ints = np.clip(np.ceil(left_s / self.slot_s), 1, self.slots).astype(np.int64)
        gpus = np.maximum(columns.gpus, 1)
        ends_s: Floats = np.arange(self.slots, dtype=np.float64)[None, :] * self.slot_s + left_s[:, None]
        profit = self.profit(snapshot, ends_s)
        low, high = _bounds(profit, gpus, length, capacity * self.slots)
        promised = np.zeros(self.slots)
        begins, payoff = np.full(jobs, self.slots), np.full(jobs, -np.inf)
        for row in np.argsort(~columns.holds, kind="stable").tolist():  # by submission, after those that run
            slots, wants = int(length[row]), int(gpus[row])
            if columns.holds[row]:
                begins[row], payoff[row] = -1, 0.0
                promised[:slots] += wants
                continue
            price = low * (high / low) ** (promised / capacity)
            cost, full = _before(price), _before(promised + wants > capacity)
            starts = self.slots - slots + 1
            pays = profit[row, :starts] - wants * (cost[slots:] - cost[:starts])
            pays[full[slots:] > full[:starts]] = -np.inf
            best = int(np.argmax(pays))
            payoff[row] = pays[best]
            if payoff[row] > 0:
                begins[row] = best
                promised[best : best + slots] += wants
        values = np.where(begins < self.slots, self.slots - begins, 0).astype(np.float64)

        def reason(row: int) -> str:
            if columns.holds[row]:
                return "runs; its plan is kept"
            if begins[row] < self.slots:
                return f"its plan begins in {begins[row] * self.slot_s / 3600:.1f} h and pays {payoff[row]:.3g}"
            return "no plan of it pays at the present prices"

        return Ranking(snapshot, values, reason, snapshot.now_s + self.slot_s if jobs else inf)


def _before(slots: Floats | Bools) -> Floats:
    """Sums over all slots before each one, and over all, shape (K + 1,)."""
    return np.concatenate(([0.0], np.cumsum(slots, dtype=np.float64)))


def _bounds(profit: Floats, gpus: Ints, length: Ints, all_slots: int) -> tuple[float, float]:
    """L and U of the price, of the jobs that there are."""
    best = profit.max(axis=1, initial=0.0)
    gains = best > 0
    if not gains.any():
        return 1.0, 1.0
    demand = (gpus * length)[gains]
    high = float((best[gains] / gpus[gains]).max())
    low = float((best[gains] / demand).min()) * float(demand.min()) / (2 * all_slots)
    return min(low, high), high


def primal_dual(options: PolicyOptions) -> Policy:
    """ExplSched's allocation as published."""
    summary = "GPUs at a price, for the largest loss reduction (ExplSched's primal-dual allocation)"
    curves = Need(JobData.LEARNING_CURVES, "jobs that report nothing are taken to improve alike")
    return _priced("primal-dual", summary, PrimalDual(), options, (_LENGTHS, curves))


def oasis(options: PolicyOptions) -> Policy:
    """OASiS."""
    summary = "GPUs at a price, for timely completion (OASiS's primal-dual allocation)"
    return _priced("oasis", summary, PrimalDual(timeliness), options, (_LENGTHS,))


def _priced(name: str, summary: str, order: PrimalDual, options: PolicyOptions, needs: tuple[Need, ...]) -> Policy:
    return Policy(name, summary, order, backfill=depth(options, 0), resize=resizing(options), needs=needs)
