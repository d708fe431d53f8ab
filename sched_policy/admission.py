"""The price of a GPU-second, and who may be promised GPUs at it.

A reconstruction of ExplSched's admission (CLUSTER 2023) in the form of OASiS (Bao et al., INFOCOM 2018): an online
primal-dual algorithm prices a resource between L (all free) and U (all promised),

    p(g) = L * (U / L)^(g / C),

and admits a job while its payoff, profit minus price times demand, is positive. Here the price decides only who
gets a *promise* (a reservation). GPUs that stand idle are never refused to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from sched_policy.model import Job
from sched_policy.plan import Ranking
from sched_policy.snapshot import Snapshot

ETA = 2.0
"""Scaling of the lowest price: L is the least utility on the market divided by 2 * ETA."""


class Market(Struct, frozen=True):
    """Prices between `low` and `high` (utility per GPU-second) for `capacity` GPUs.

    `low` and `high` are the bounds L and U of the price function.
    """

    low: float
    high: float
    capacity: int

    @classmethod
    def of(cls, utilities: Iterable[float], capacity: int) -> Market:
        """The market of jobs with these utilities per GPU-second; jobs without any gain set no price."""
        positive = [value for value in utilities if value > 0]
        if not positive:
            return cls(low=0.0, high=0.0, capacity=capacity)
        return cls(low=min(positive) / (2 * ETA), high=max(positive), capacity=capacity)

    def price(self, promised_gpus: int) -> float:
        """Price of one GPU-second while `promised_gpus` are promised; U from the capacity on."""
        if self.high <= 0 or self.capacity <= 0:
            return 0.0
        share = min(1.0, max(0.0, promised_gpus / self.capacity))
        return float(self.low * (self.high / self.low) ** share)

    def payoff(self, utility: float, gpus: int, promised_gpus: int) -> float:
        """Profit minus price per second for a job of `gpus` GPUs with `utility` per GPU-second.

        The price is that of the market before the job joins it; a payoff of zero or less means: no promise.
        """
        return gpus * (utility - self.price(promised_gpus))


class PayoffAdmission(Struct, frozen=True):
    """Promise a start only to jobs whose payoff at the current price is positive.

    Needs an order whose scores are utilities per GPU-second.
    """

    def admits(self, snapshot: Snapshot, ranking: Ranking) -> Callable[[Job, int], bool]:
        """The test for this snapshot's markets: (job, GPUs promised to others then) -> may be promised.

        Each scope has its own: what one user reports sets no price for another.
        """
        value = ranking.value_of
        capacity = snapshot.nodes.capacity
        markets = {
            snapshot.jobs[int(rows[0])].scope: Market.of(ranking.values[rows].tolist(), capacity)
            for rows in snapshot.rows_by_scope
        }

        def admits(job: Job, promised: int) -> bool:
            return markets[job.scope].payoff(value[job.job_id], job.request.total, promised) > 0

        return admits
