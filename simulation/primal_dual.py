"""ExplSched as published, and primal-dual allocation: the price of GPUs rises with how many are reserved (OASiS).

Jobs are taken in order of submission. For each the plan with the largest payoff at the present prices is found, and the
job is admitted if this payoff is positive; its plan then raises the prices for later jobs:

    price    p(t) = L (U / L)^(g(t) / C)            g(t) of C GPUs are reserved in slot t
    payoff   profit(plan) - sum over its slots of p(t) times its GPUs
    U        the largest profit of any job per GPU of a slot
    L        the least profit per GPU-slot, times the least demand of a job over twice the number of all GPU-slots

At price L (an empty slot) every job has a positive payoff, at U (a full one) none. In OASiS (Bao et al., INFOCOM 2018)
the profit falls with the completion time; in ExplSched (Li et al., CLUSTER 2023) it is the reduction of the loss. The
full text of the latter is not public: this is OASiS with that profit, after ExplSched's abstract.

These are baselines, like `simulation.baselines`; and the objective `total` of the policy `explsched`: ExplSched's order
by utility, its admission (`PayoffAdmission`) and its early stop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from typing import ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sched_policy.catalog import PolicyOptions
from sched_policy.improvement import RemainingImprovement, remaining_improvement
from sched_policy.model import Job, JobState
from sched_policy.plan import Ranking, Stop
from sched_policy.policies import NO_REPORT, best, depth, resizing
from sched_policy.policy import JobData, Need, Policy
from sched_policy.snapshot import Bools, Floats, Ints, Snapshot
from sched_policy.utility import ByUtility

_LENGTHS = Need(JobData.RUN_TIMES, "jobs of unknown length are offered plans of one slot")
SURVIVAL = 0.7
"""Share of started jobs that their owners do not end early: ExplSched reports that over 30 % are ended."""

Profit = Callable[[Snapshot, Floats], Floats]
"""(snapshot, K possible ends of each job in seconds from now, shape (J, K)) -> profit for each end, shape (J, K)."""


def loss_reduction(snapshot: Snapshot, end_s: Floats) -> Floats:
    """ExplSched: a job's expected remaining improvement, normalised, times the probability that it is not ended early.

    The probability falls exponentially over a run, to `SURVIVAL` at its end. Jobs without a curve have the largest
    possible improvement, 1. The profit does not depend on when the job ends.
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

    The sigmoid of its evaluation. There its parameters are drawn at random for each job; here they are the same for
    all, and the profit falls most steeply at twice the run time.
    """
    columns = snapshot.columns
    whole_s = np.where(np.isfinite(columns.left_s), columns.executed_s + columns.left_s, 1.0)
    waited_s = snapshot.now_s - columns.submit_s
    stretch = (waited_s[:, None] + end_s) / np.maximum(whole_s, 1.0)[:, None]
    return 1.0 / (1.0 + np.exp(np.minimum(stretch - 2.0, 500.0)))


class PrimalDual(Struct, frozen=True):
    """Order by the slot in which a job's plan begins; jobs without a positive payoff come last. Non-preemptive.

    The originals reject such jobs, and leave GPUs idle until a plan begins. Slurm rejects no job: here they wait, and
    free GPUs go to the first jobs in this order.

    Attributes:
        profit: `loss_reduction` or `timeliness`.
        slot_s: length of a slot.
        slots: number of slots planned ahead. A job of unknown length gets plans of one slot.

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
        reserved = np.zeros(self.slots)
        begins, payoff = np.full(jobs, self.slots), np.full(jobs, -np.inf)
        for row in np.argsort(~columns.holds, kind="stable").tolist():  # by submission, after those that run
            slots, wants = int(length[row]), int(gpus[row])
            if columns.holds[row]:
                begins[row], payoff[row] = -1, 0.0
                reserved[:slots] += wants
                continue
            # Where more than the capacity is reserved (nodes are down) no plan fits, and the price does not matter.
            price = low * (high / low) ** (np.minimum(reserved, capacity) / capacity)
            cost, full = _before(price), _before(reserved + wants > capacity)
            starts = self.slots - slots + 1
            pays = profit[row, :starts] - wants * (cost[slots:] - cost[:starts])
            pays[full[slots:] > full[:starts]] = -np.inf
            best = int(np.argmax(pays))
            payoff[row] = pays[best]
            if payoff[row] > 0:
                begins[row] = best
                reserved[best : best + slots] += wants
        values = np.where(begins < self.slots, self.slots - begins, 0).astype(np.float64)

        def reason(row: int) -> str:
            if columns.holds[row]:
                return "runs; its plan is kept"
            if begins[row] < self.slots:
                return f"its plan begins in {begins[row] * self.slot_s / 3600:.1f} h and pays {payoff[row]:.3g}"
            return "no plan of it pays at the present prices"

        return Ranking(snapshot, values, reason, snapshot.now_s + self.slot_s if jobs else inf)


def _before(slots: Floats | Bools) -> Floats:
    """Sums over the slots before each slot, and over all K slots, shape (K + 1,)."""
    return np.concatenate(([0.0], np.cumsum(slots, dtype=np.float64)))


def _bounds(profit: Floats, gpus: Ints, length: Ints, all_slots: int) -> tuple[float, float]:
    """L and U of the price function for the present jobs."""
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


ETA = 2.0
"""Scaling of the lowest price: L is the least utility in a market divided by 2 * ETA."""


class Market(Struct, frozen=True):
    """Prices between `low` and `high` (utility per GPU-second) for `capacity` GPUs.

    `low` and `high` are the bounds L and U of the price function.
    """

    low: float
    high: float
    capacity: int

    @classmethod
    def of(cls, utilities: Iterable[float], capacity: int) -> Market:
        """The market of jobs with these utilities per GPU-second; those of zero or less have no effect on prices."""
        positive = [value for value in utilities if value > 0]
        if not positive:
            return cls(low=0.0, high=0.0, capacity=capacity)
        return cls(low=min(positive) / (2 * ETA), high=max(positive), capacity=capacity)

    def price(self, reserved_gpus: int) -> float:
        """Price of one GPU-second while `reserved_gpus` are reserved; U from the capacity on."""
        if self.high <= 0 or self.capacity <= 0:
            return 0.0
        share = min(1.0, max(0.0, reserved_gpus / self.capacity))
        return float(self.low * (self.high / self.low) ** share)

    def payoff(self, utility: float, gpus: int, reserved_gpus: int) -> float:
        """Profit minus price per second for a job of `gpus` GPUs with `utility` per GPU-second.

        The price is that without the job's own GPUs. With a payoff of zero or less a job gets no reservation.
        """
        return gpus * (utility - self.price(reserved_gpus))


class PayoffAdmission(Struct, frozen=True):
    """Reservations only for jobs whose payoff at the present price is positive.

    A reconstruction of ExplSched's admission after OASiS. Any job may start on idle GPUs. The scores of the order must
    be utilities per GPU-second.
    """

    def admits(self, snapshot: Snapshot, ranking: Ranking) -> Callable[[Job, int], bool]:
        """The test for this snapshot's markets: (job, GPUs reserved for others then) -> may get a reservation.

        Each scope has a market of its own, so that what one user reports does not change prices for others.
        """
        value = ranking.value_of
        capacity = snapshot.nodes.capacity
        markets = {
            snapshot.jobs[int(rows[0])].scope: Market.of(ranking.values[rows].tolist(), capacity)
            for rows in snapshot.rows_by_scope
        }

        def admits(job: Job, reserved: int) -> bool:
            return markets[job.scope].payoff(value[job.job_id], job.request.total, reserved) > 0

        return admits


MIN_REPORTS = 8
"""A job with fewer reports is never stopped."""


class EarlyStop(Struct, frozen=True):
    """Stop a job that allows it when it can hardly improve any more.

    That is if its remaining improvement, even in the optimistic case (mean + 2 standard deviations), is below a share
    of its sweep's known improvement: `threshold` for a job that would still end behind the best value of its sweep,
    `leader_threshold` for one that may become the best.

    Attributes:
        threshold: 0 never stops a job that is behind.
        leader_threshold: 0 never stops a job that leads, however flat its curve is.
        least_share: share of its steps that a job does before it may be stopped. Many trainings stay on a plateau
            before they begin to learn, which no family of falling curves predicts.

    """

    threshold: float = 0.05
    leader_threshold: float = 0.0
    least_share: float = 0.1

    def stops(self, snapshot: Snapshot) -> tuple[Stop, ...]:
        """Jobs of the snapshot that should end now."""
        stoppable = {job.job_id for job in snapshot.running if _may_stop(job, self.least_share)}
        known = remaining_improvement(snapshot.jobs)
        hope = known.remaining + 2 * known.remaining_std
        behind = known.best - hope * known.scale > best_of_sweep(known)
        exhausted = known.measured & (hope < np.where(behind, self.threshold, self.leader_threshold))
        stops = []
        for i in exhausted.nonzero()[0].tolist():
            job = snapshot.jobs[known.rows[i]]
            if job.job_id in stoppable:
                learns = f"expected to improve by {100 * known.remaining[i]:.2g} % of its sweep"
                stops.append(Stop(job.job_id, f"{learns} and to end behind its best" if behind[i] else learns))
        return tuple(stops)


def _may_stop(job: Job, least_share: float) -> bool:
    exploration = job.exploration
    return (
        exploration is not None
        and exploration.may_stop
        and exploration.sweep is not None
        and job.state is JobState.RUNNING
        and len(job.points) >= MIN_REPORTS
        and job.points[-1].step >= least_share * (job.total_steps or 0)
    )


def prior(known: RemainingImprovement, snapshot: Snapshot, quantum_s: float) -> Floats:
    """Prior utility of trainings without a curve: share of the sweep's improvement per GPU-second, shape (E,).

    Optimism in the face of uncertainty: an untried configuration may be as good as the best one, and a short run costs
    little. It is expected to learn as fast, per GPU-second, as the best of its sweep did in the beginning; if no
    training of the sweep has a curve, to reach the whole improvement in one quantum, whatever its GPUs.

    Users could claim priors without ever reporting, and name as many sweeps as they like. Therefore

    * a training outside a sweep has none;
    * it ends when a training has run for a quantum without enough reports for a curve, or was requeued without them;
    * in sweeps without a curve only one training of each user has it at a time, however many sweeps the user has: a
      running one, else the first that may start. A job array, which would start many tasks at once, has none;
    * a user whose present and recent trainings have run for a quantum in all without a curve has none.

    NaN where there is no prior: the job is ranked as one that does not report. Values of jobs that have a curve
    themselves have no meaning.
    """
    on = known.measured
    gpus = np.maximum(known.gpus, 1)
    ahead_gpu_s = quantum_s * gpus[on]
    first, _ = known.curves.improvement(np.zeros(int(on.sum())), ahead_gpu_s)
    best = np.full(int(known.sweep.max(initial=-1)) + 1, np.nan)
    np.fmax.at(best, known.sweep[on], first / known.scale[on] / ahead_gpu_s)
    shown = best[known.sweep]
    jobs = [snapshot.jobs[row] for row in known.rows.tolist()]
    untried = _untried(known, jobs, snapshot.now_s, quantum_s)
    chosen = _first_of_users(jobs, untried & np.isnan(shown))
    value = np.where(np.isnan(shown), np.where(chosen, 1.0 / (quantum_s * gpus), np.nan), shown)
    return np.where(untried | on, value, np.nan)


def _untried(known: RemainingImprovement, jobs: list[Job], now_s: float, quantum_s: float) -> Bools:
    """Trainings without a curve that have not run for a quantum, of users who have not either; shape (E,)."""
    silent_s: defaultdict[str, float] = defaultdict(float)
    untried = ~known.measured & np.array([job.is_of_sweep for job in jobs], dtype=np.bool_)
    for i in untried.nonzero()[0].tolist():
        job = jobs[i]
        # How long a job ran before it was requeued is known from its reports only.
        if job.restarts > 0 or job.executed_s(now_s) >= quantum_s:
            untried[i] = False
            silent_s[job.user] += max(quantum_s, job.executed_s(now_s))
    spent = [job.user_silent_s + silent_s[job.user] >= quantum_s for job in jobs]
    return untried & ~np.array(spent, dtype=np.bool_)


def _first_of_users(jobs: list[Job], untried: Bools) -> Bools:
    """One of each user's untried trainings: the first running one, else the first that may start; shape (E,)."""
    runs: dict[str, int] = {}
    waits: dict[str, int] = {}
    for i in untried.nonzero()[0].tolist():
        job = jobs[i]
        if job.holds_gpus:
            runs.setdefault(job.user, i)
        elif job.eligible and job.array_tasks == 1:
            waits.setdefault(job.user, i)
    first = np.zeros(len(jobs), dtype=np.bool_)
    first[list({**waits, **runs}.values())] = True
    return first


def total(options: PolicyOptions) -> Policy:
    """The sum of all improvements: expected improvement per GPU-second first."""
    return replace(
        best(options),
        summary="expected improvement per GPU-second first; preempts and stops jobs that opted in",
        order=ByUtility(options.quantum_s, NO_REPORT[options.no_report_order], prior),
        admission=PayoffAdmission(),
        stop=EarlyStop(options.stop_threshold, options.stop_leader_threshold, options.stop_least_share),
        sweeps=None,
    )


def best_of_sweep(known: RemainingImprovement) -> Floats:
    """The best metric value in each job's sweep, infinity where no job has a curve; shape (E,)."""
    best = np.full(int(known.sweep.max(initial=-1)) + 1, np.inf)
    np.minimum.at(best, known.sweep[known.measured], known.best[known.measured])
    return best[known.sweep]
