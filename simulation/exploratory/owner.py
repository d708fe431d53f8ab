"""The owner of an exploratory job, who looks at its curve now and then and gives up when it leads nowhere."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from sched_policy.columns import Floats, Ints


class Owner(Struct, frozen=True):
    """When an owner leaves a job; a rule of thumb, stated so that it can be measured.

    He looks `looks` times, evenly over the planned run, and compares the job's loss reduction so far with the best
    one of its sweep at the same share of the run. He gives the job up at a look when its reports have ended (it
    diverged), when it is far *behind*, or when it has *stalled* and is no contender. His contenders he lets finish.
    ExplSched (CLUSTER 2023) reports that more than 30 % of the jobs of real clusters end early.

    Attributes:
        looks: looks per run; the last one, at the end of the run, changes nothing any more.
        first_look: looks before this one are not judged: every training starts slowly.
        behind: a job is behind while its loss reduction is less than this share of the sweep's best one.
        contender: a job is a contender while it is at least this share.
        patience: looks over which a job has to improve.
        least_improvement: the share of its loss reduction so far that it has to add over `patience` looks.

    """

    looks: int = 10
    first_look: int = 3
    behind: float = 0.25
    contender: float = 0.9
    patience: int = 3
    least_improvement: float = 0.02

    def leaves_at(self, losses: Floats, epochs: int, best_of_sweep: Floats) -> float | None:
        """The share of the run, below 1, at which the owner leaves; None if he waits for the end.

        `losses` (E + 1,) starts before the first epoch and ends early where the training diverged;
        `best_of_sweep` (looks + 1,) is the lowest loss any training of the sweep has reached at each look.
        """
        reached = self.best_at_looks(losses, epochs)
        for look in range(self.first_look, self.looks):
            ended = len(losses) - 1 < look * epochs // self.looks
            reduction, possible = losses[0] - reached[look], losses[0] - best_of_sweep[look]
            earlier = losses[0] - reached[max(0, look - self.patience)]
            stalled = reduction - earlier <= self.least_improvement * earlier
            behind = reduction < self.behind * possible
            if ended or behind or (stalled and reduction < self.contender * possible):
                return look / self.looks
        return None

    def best_at_looks(self, losses: Floats, epochs: int) -> Floats:
        """The lowest loss of one training by each look, shape (looks + 1,)."""
        epochs_done: Ints = np.minimum(np.arange(self.looks + 1) * epochs // self.looks, len(losses) - 1)
        return np.minimum.accumulate(losses)[epochs_done]
