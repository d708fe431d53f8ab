"""Step functions of time: what a count did between events, summed exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sched_policy.columns import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """`values[i]` holds from `times_s[i]` until `times_s[i + 1]`, the last one for good; 0 before the first.

    Both arrays have shape (N,), `times_s` never falls. N may be 0: the function is 0 everywhere.
    """

    times_s: Floats
    values: Floats

    @classmethod
    def of_changes(cls, times_s: Floats, changes: Floats) -> Steps:
        """The running sum of `changes`, each taking effect at its time; given in any order."""
        order = np.argsort(times_s, kind="stable")
        return cls(times_s[order], np.cumsum(changes[order]))

    def integral(self, until_s: Floats) -> Floats:
        """Integral from minus infinity until each of these times, in value x seconds; any shape."""
        if self.times_s.size == 0:
            return np.zeros_like(until_s)
        until_entry = np.concatenate(([0.0], np.cumsum(self.values[:-1] * np.diff(self.times_s))))
        entry = np.searchsorted(self.times_s, until_s, side="right") - 1
        last = np.maximum(entry, 0)
        return np.where(entry < 0, 0.0, until_entry[last] + self.values[last] * (until_s - self.times_s[last]))

    def means(self, edges_s: Floats) -> Floats:
        """Mean value in each interval between neighbouring edges, shape (E - 1,). Edges must rise strictly."""
        return np.diff(self.integral(edges_s)) / np.diff(edges_s)
