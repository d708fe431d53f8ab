"""Finish-time fairness (Themis, NSDI 2020) as a choice of time shares, in the form of Gavel (OSDI 2020, section 4.2).

Each job j gets a share x_j of the time. Its finish-time fairness is

    rho_j = (age_j + work_j / x_j) / isolated_j

and the largest of them is minimised under 0 <= x_j <= 1 and sum_j gpus_j x_j <= capacity. The optimum fixes the
shares only where they bind: of the jobs at the maximum, or of all jobs if the capacity binds. For the rest
`least_shares` takes the least and `central_shares` the middle, near what interior-point solvers return. Neither needs
a solver.
"""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np
from msgspec import Struct

from explsched.errors import PolicyError, with_extra
from sched_policy.plan import Ranking
from sched_policy.snapshot import Floats, Ints, Snapshot

SOLVERS = {
    "central": "none: Newton's method for the least maximum of rho, analytic centre of the optimal shares",
    "early": "none: a fit of what SCS 2.1.4 returned for thousands of jobs",
    "whole": "none: all shares 1",
    "solver": "cvxpy with CLARABEL; all shares 1 where it finds no optimum",
}
TIES = "shares times 1 +- 1e-5, from a hash of the job id"
"""Of many optima and of equal shares a solver takes some. What takes its place is said beside every figure."""

_JITTER = 1e-5
_PRICE_REL = 1e-10
_STEPS = 200  # more than any bisection or Newton iteration below needs in double precision


class Claims(Struct, frozen=True, eq=False):
    """What the jobs ask of the cluster. All arrays have shape (J,).

    Attributes:
        age_s: time since submission.
        work_s: remaining run time with all its GPUs, > 0.
        isolated_s: time the job would take in all with its equal part of the cluster alone, > 0.
        gpus: GPUs of the gang.
        capacity_gpus: GPUs of the cluster.

    """

    age_s: Floats
    work_s: Floats
    isolated_s: Floats
    gpus: Floats
    capacity_gpus: float


def fairness(claims: Claims, shares: Floats) -> Floats:
    """Rho of each job under these shares."""
    return (claims.age_s + claims.work_s / shares) / claims.isolated_s


def least_rho(claims: Claims) -> float:
    """The smallest possible maximum of rho, by Newton's method on the capacity that a rho takes.

    The least shares for a rho take `sum gpus work / (rho isolated - age)` GPUs. That is convex and falls with rho, so
    Newton's method climbs to the solution from below: from the rho that even whole shares cannot undercut.
    """
    rho = float(((claims.age_s + claims.work_s) / claims.isolated_s).max())
    for _ in range(_STEPS):
        slack_s = rho * claims.isolated_s - claims.age_s
        taken = claims.gpus * claims.work_s / slack_s
        excess = float(taken.sum()) - claims.capacity_gpus
        if excess <= 1e-12 * claims.capacity_gpus:
            break
        step = excess / float((taken * claims.isolated_s / slack_s).sum())
        if rho + step == rho:
            break
        rho += step
    return rho


def least_shares(claims: Claims, rho: float) -> Floats:
    """The smallest shares with which no job exceeds `rho`."""
    return np.minimum(claims.work_s / (rho * claims.isolated_s - claims.age_s), 1.0)


def central_shares(claims: Claims) -> Floats:
    """Optimal shares in the middle of all optimal ones: their analytic centre, shape (J,).

    With the cone form of `work / x` that modelling languages use, it maximises

        sum_j [2 log(x_j - least_j) + log(1 - x_j)] + log(capacity - sum_j gpus_j x_j)

    where `least_j` is the least optimal share. Interior-point solvers aim at this point; how near they come to it
    before they stop depends on the solver. For a given price of capacity each x_j is the root of a quadratic;
    the price is found by bisection.
    """
    least = least_shares(claims, least_rho(claims))
    spare = claims.capacity_gpus - float(claims.gpus @ least)
    if spare <= 1e-9 * claims.capacity_gpus:
        return least
    low, high = 0.0, 1.0 / spare
    while _spare_at(claims, least, high) * high < 1.0:
        high *= 2.0
    for _ in range(_STEPS):
        price = (low + high) / 2.0
        if high - low <= _PRICE_REL * high:
            break
        if _spare_at(claims, least, price) * price < 1.0:
            low = price
        else:
            high = price
    return _shares_at(claims, least, high)


def _spare_at(claims: Claims, least: Floats, price: float) -> float:
    return claims.capacity_gpus - float(claims.gpus @ _shares_at(claims, least, price))


def _shares_at(claims: Claims, least: Floats, price: float) -> Floats:
    """The x in [least, 1] with 2/(x - least) - 1/(1 - x) = price gpus, in a form without cancellation."""
    room = 1.0 - least
    cost = price * claims.gpus
    # With y = x - least: cost y^2 - (cost room + 3) y + 2 room = 0.
    half = cost * room + 3.0
    return least + 4.0 * room / (half + np.sqrt(half * half - 8.0 * cost * room))


def whole_shares(claims: Claims) -> Floats:
    """All shares 1, shape (J,), whatever the capacity: what Muri's simulator does when its solver fails."""
    return np.ones(len(claims.gpus))


def jitter(job_ids: Ints) -> Floats:
    """Factors near 1, one per job, the same in every process and at every time; shape (J,).

    Jobs of the same kind that arrive together have equal shares. A fixed order among them can let long jobs run for
    weeks before the next decision; the published figures owe their order to the noise of the solver, which is of
    this size. The factors are 1 + 1e-5 u with u in [-1, 1) from the SplitMix64 hash of the job's id.
    """
    mixed = job_ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    unit = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    return 1.0 + _JITTER * (2.0 * unit - 1.0)


def solved_shares(claims: Claims) -> Floats | None:
    """Optimal shares by a convex solver (cvxpy with CLARABEL), shape (J,); None where it is not sure of an optimum.

    Raises `PolicyError` if it is not installed.
    """
    try:
        import cvxpy as cp
    except ImportError as error:
        raise PolicyError(f"shares by a solver need cvxpy: {with_extra('exact')}") from error

    shares = cp.Variable(len(claims.gpus))
    rho = cp.multiply(1.0 / claims.isolated_s, claims.age_s + cp.multiply(claims.work_s, cp.inv_pos(shares)))
    problem = cp.Problem(
        cp.Minimize(cp.max(rho)),
        [shares >= 0, shares <= 1, claims.gpus @ shares <= claims.capacity_gpus],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": so does the status
        try:
            problem.solve(solver=cp.CLARABEL)
        except cp.error.SolverError:
            return None
    return np.asarray(shares.value) if problem.status == cp.OPTIMAL else None


_NEW = 1e9  # jobs that have never run come first, among themselves by their shares (Gavel's priorities, OSDI 2020)


class FinishTimeFair(Struct, frozen=True):
    """By fair share of time over time received; ties broken by a hash of the job's id.

    A job's isolated time is what all of its work would take on an equal part of the GPUs, with as many jobs as there
    are now. A snapshot knows no history, so this does not follow how many there were before. Each scope has the parts
    of its jobs to share among those: what a user says of the work that is left decides nothing among another's jobs.

    Attributes:
        unknown_s: run time that is assumed to be left where nothing tells.

    """

    unknown_s: float = 86_400.0
    needs_durations: ClassVar[bool] = True

    def rank(self, snapshot: Snapshot) -> Ranking:
        """Share over time received, in shares per day."""
        columns = snapshot.columns
        takes_part = (columns.gpus > 0) & (columns.holds | columns.waits)
        shares = np.zeros(columns.gpus.size)
        capacity = float(max(snapshot.nodes.capacity, 1))
        each = capacity / max(1, int(takes_part.sum()))
        for members in snapshot.rows_by_scope:
            own = members[takes_part[members]]
            if own.size:
                shares[own] = self._shares(snapshot, own, each, capacity * own.size / takes_part.sum())
        received_s = columns.executed_s
        values = np.where(received_s > 0, 86_400.0 * shares / np.maximum(received_s, 1.0), _NEW * shares)
        return Ranking(
            snapshot,
            values * jitter(columns.job_id),
            lambda row: f"fair share {shares[row]:.3f} of the time, {received_s[row]:.0f} s received",
        )

    def _shares(self, snapshot: Snapshot, own: Ints, each: float, capacity: float) -> Floats:
        """Of the jobs `own`, which have `capacity` GPUs together; `each` is the part of one job."""
        columns = snapshot.columns
        gpus = columns.gpus[own].astype(np.float64)
        left_s = columns.left_s[own]
        left_s = np.maximum(np.where(np.isfinite(left_s), left_s, self.unknown_s), 1.0)
        equal_part = np.minimum(1.0, np.ceil(each) / gpus)
        return central_shares(
            Claims(
                age_s=snapshot.now_s - columns.submit_s[own],
                work_s=left_s,
                isolated_s=(columns.executed_s[own] + left_s) / equal_part,
                gpus=gpus,
                capacity_gpus=capacity,
            )
        )
