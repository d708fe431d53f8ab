"""The owner of an exploratory job, who looks at its curve now and then and gives up when it leads nowhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sched_policy.columns import Floats


@dataclass(frozen=True, slots=True)
class Owner:
    """When an owner leaves a job; a rule of thumb, stated so that it can be measured.

    He looks `looks` times, evenly over the planned run, and gives the job up at a look when its reports have ended
    (it diverged), when it has *stalled*, or when it is far *behind* the best training of its sweep at the same share
    of the run. ExplSched (CLUSTER 2023) reports that more than 30 % of the jobs of real clusters end early.

    Attributes:
        looks: looks per run; the last one, at the end of the run, changes nothing any more.
        patience: looks over which a job has to improve.
        least_improvement: the share of its loss reduction so far that it has to add over `patience` looks.
        behind: it is behind while its loss reduction is less than this share of the sweep's best one.
        first_look: looks before this one are not judged: every training starts slowly.

    """

    looks: int = 10
    patience: int = 2
    least_improvement: float = 0.02
    behind: float = 0.5
    first_look: int = 2

    def leaves_at(self, losses: Floats, epochs: int, best_of_sweep: Floats) -> float | None:
        """The share of the run, below 1, at which the owner leaves; None if he waits for the end.

        `losses` (E + 1,) starts before the first epoch and ends early where the training diverged;
        `best_of_sweep` (looks + 1,) is the lowest loss any training of the sweep has reached at each look.
        """
        lowest = np.minimum.accumulate(losses)
        reached = lowest[self.epochs_at_looks(epochs, len(losses) - 1)]
        for look in range(self.first_look, self.looks):
            ended = len(losses) - 1 < look * epochs // self.looks
            earlier = reached[max(0, look - self.patience)]
            stalled = earlier - reached[look] <= self.least_improvement * (losses[0] - earlier)
            behind = losses[0] - reached[look] < self.behind * (losses[0] - best_of_sweep[look])
            if ended or stalled or behind:
                return look / self.looks
        return None

    def best_at_looks(self, losses: Floats, epochs: int) -> Floats:
        """The lowest loss of one training by each look, shape (looks + 1,)."""
        return np.minimum.accumulate(losses)[self.epochs_at_looks(epochs, len(losses) - 1)]

    def epochs_at_looks(self, epochs: int, last: int) -> np.typing.NDArray[np.int64]:
        """Epochs finished at each look, none later than `last`, shape (looks + 1,)."""
        return np.minimum(np.arange(self.looks + 1) * epochs // self.looks, last)
