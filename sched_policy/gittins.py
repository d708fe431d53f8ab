"""The Gittins index of jobs whose run time is not known, by what jobs near them took.

Gittins (1979): among jobs of unknown length run the one with the largest

    max over d of  P(it ends within d more seconds) / E[seconds that it runs in them],

which for a job of known length is 1 / (what is left), so that known and unknown lengths compare. Its inverse is called
`effective` time left here. Jobs that have ended tell a length, those that have not tell a least one (they count as long
as they were watched, as in Kaplan and Meier's estimate). Where nothing is known, a Pareto tail with
exponent `TAIL` stands in, whose index falls with the service attained: least attained service first.
"""

from __future__ import annotations

import numpy as np

from sched_policy.snapshot import Bools, Floats

NEIGHBOURS = 20
"""Jobs of the same size before and after a job that tell of its length."""
PRIOR = 0.15
"""Weight of the Pareto tail, in neighbours."""
TAIL = 0.6
QUANTUM_S = 600.0
"""What is long and what is short on most clusters: a job is left alone for this time."""
LEAST = 0.1
"""Below so many quanta the tail is flat."""
LIKENESS, LIKENESS_MORE = 1.1, 0.05
"""Alike jobs take about as long: up to so many times what an ended neighbour took, and so many quanta more."""


def effective_left_s(
    ran_s: Floats, length_s: Floats, weight: Floats, ended: Bools, prior: float = PRIOR, quantum_s: float = QUANTUM_S
) -> Floats:
    """The inverse Gittins index of R jobs, in seconds, shape (R,).

    Args:
        ran_s: how long each has run, shape (R,).
        length_s: how long each of its M neighbours has run, shape (R, M).
        weight: how much each neighbour counts, 0 where there is none, shape (R, M).
        ended: whether the neighbour has ended; the others run at least so long, shape (R, M).
        prior: weight of the Pareto tail, in neighbours.
        quantum_s: the time below which differences do not count.

    """
    ran = ran_s[:, None]
    length_s = np.where(ended, LIKENESS * length_s + LIKENESS_MORE * quantum_s, length_s)
    weight = np.where(length_s > ran, weight, 0.0)  # who ended earlier says nothing of a job that has come so far
    more_s = np.where(weight > 0, length_s - ran, np.inf)
    by_length = np.argsort(more_s, axis=1)
    more_s, weight, ended = (np.take_along_axis(one, by_length, axis=1) for one in (more_s, weight, ended))
    more_s = np.where(np.isinf(more_s), 0.0, more_s)
    at_risk = weight.sum(axis=1, keepdims=True)
    counted = np.cumsum(weight, axis=1)
    ends = np.cumsum(weight * ended, axis=1)
    spent_s = np.cumsum(weight * more_s, axis=1) + (at_risk - counted) * more_s
    base_s = ran + LEAST * quantum_s
    growth = (base_s + more_s) / base_s
    ends += prior * (1.0 - growth**-TAIL)
    spent_s += prior * base_s / (1.0 - TAIL) * (growth ** (1.0 - TAIL) - 1.0)
    index = np.where(weight * ended > 0, ends / np.maximum(spent_s, 1e-9), 0.0)
    soon = prior * TAIL / base_s[:, 0] / (prior + at_risk[:, 0])  # of an instant in which only the tail ends
    return np.asarray(1.0 / np.maximum(index.max(axis=1, initial=0.0), soon))


def weights_of_neighbours(decay: float) -> Floats:
    """How much each neighbour counts, from the farthest before a job to the farthest after it."""
    distance = np.abs(np.arange(-NEIGHBOURS, NEIGHBOURS + 1))
    return np.where(distance == 0, 0.0, np.exp(-distance / decay))
